"""A simulated rank as the Kineto JSON that torch.profiler writes, faithful in form."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from distprof.terms import CollectiveKind
from tests.simulator.recording import CommEvent, Recording
from tests.simulator.tables import captured_comm, clock_of, group_description, group_name

BASE_NS = 1_711_964_646_000_000_000
PID = 4321
CATEGORIES = {"annotation": "gpu_user_annotation", "copy": "gpu_memcpy"}
BF16_BYTES = 2
COLLECTIVE_NAMES = {
    CollectiveKind.ALL_REDUCE: "allreduce",
    CollectiveKind.ALL_GATHER: "_allgather_base",
    CollectiveKind.REDUCE_SCATTER: "_reduce_scatter_base",
    CollectiveKind.ALL_TO_ALL: "all_to_allv",
    CollectiveKind.BROADCAST: "broadcast",
    CollectiveKind.SEND: "send",
    CollectiveKind.RECV: "recv",
}


class _Micros(float):
    """A time or duration that JSON shows in microseconds with three decimals, exactly."""

    def __new__(cls, ns: int) -> _Micros:
        self = super().__new__(cls, ns / 1000)
        self.ns = ns  # type: ignore[attr-defined]
        return self

    def __repr__(self) -> str:
        ns = self.ns  # type: ignore[attr-defined]
        return f"{ns // 1000}.{ns % 1000:03d}"


def write_rank(recording: Recording, rank: int, folder: Path, *, with_seq: bool) -> Path:
    """Write one rank's trace.

    The file is named as ``tensorboard_trace_handler`` does it: host, process id, time.
    """
    job = recording.job
    clock = clock_of(recording, rank)
    _, finish = recording.capture(rank)
    path = folder / (
        f"node{job.node_of(rank)}_{PID + rank % job.ranks_per_node}.{clock(finish)}"
        ".pt.trace.json.gz"
    )
    # the same bytes for the same job: no time stamp in the gzip header
    with (
        path.open("wb") as raw,
        gzip.GzipFile("", "wb", compresslevel=1, mtime=0, fileobj=raw) as f,
    ):
        f.write(_header(recording, rank).encode())
        f.write(b',\n  "traceEvents": [\n')
        f.write(",\n".join(map(_dump, _events(recording, rank, with_seq=with_seq))).encode())
        f.write(b'\n  ],\n  "traceName": "trace.json",\n  "displayTimeUnit": "ms",\n')
        f.write(f'  "baseTimeNanoseconds": {BASE_NS}\n}}\n'.encode())
    return path


def _dump(event: dict[str, Any]) -> str:
    fields = ", ".join(
        f"{json.dumps(key)}: {value!r}"
        if isinstance(value, _Micros)
        else f"{json.dumps(key)}: {json.dumps(value)}"
        for key, value in event.items()
    )
    return f"  {{{fields}}}"


def _header(recording: Recording, rank: int) -> str:
    job = recording.job
    groups = [
        {
            "pg_name": group_name(recording, axis),
            "pg_desc": group_description(axis),
            "backend_config": "cuda:nccl",
            "pg_size": len(group),
            "ranks": list(group),
        }
        for axis, axis_groups in job.groups.items()
        for group in axis_groups
        if rank in group
    ]
    header = {
        "schemaVersion": 1,
        "deviceProperties": [
            {"id": index, "name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": 85_024_112_640}
            for index in range(job.ranks_per_node)
        ],
        "distributedInfo": {
            "backend": "nccl",
            "rank": rank,
            "world_size": job.world_size,
            "pg_count": len(groups),
            "pg_config": groups,
            "nccl_version": "2.21.5",
        },
        "cuda_runtime_version": 12040,
        "cuda_driver_version": 12040,
    }
    return json.dumps(header, indent=2).removesuffix("\n}")


def _events(recording: Recording, rank: int, *, with_seq: bool) -> Iterator[dict[str, Any]]:
    clock = clock_of(recording, rank)
    begin, finish = recording.capture(rank)
    log = recording.logs[rank]
    device = rank % recording.job.ranks_per_node
    comm = {event.correlation: event for event in captured_comm(recording, rank)}

    def span(start: float, end: float) -> dict[str, _Micros]:
        low, high = clock(start), clock(end)
        return {"ts": _Micros(low - BASE_NS), "dur": _Micros(high - low)}

    def host(start: float, end: float, name: str, cat: str, **args: Any) -> dict[str, Any]:
        place = {"pid": PID + device, "tid": PID + device}
        return {"ph": "X", "cat": cat, "name": name, **place, **span(start, end), "args": args}

    for step, start, end in log.steps:
        if begin <= start and end <= finish:
            yield host(start, end, f"ProfilerStep#{step}", "user_annotation", **{"External id": 1})
    categories = {"runtime": "cuda_runtime", "annotation": "user_annotation"}
    for event in log.host:
        if begin <= event.start and event.end <= finish:
            args = {"correlation": event.correlation} if event.correlation >= 0 else {}
            if event.correlation in comm:
                kernel = comm[event.correlation]
                args_of = _comm_args(recording, kernel, with_seq=with_seq)
                yield host(
                    event.start - 2, event.end + 2, "record_param_comms", "cpu_op", **args_of
                )
            yield host(event.start, event.end, event.name, categories[event.category], **args)
    for event in log.device:
        if begin <= event.start and event.end <= finish:
            args = {
                "External id": event.correlation,
                "device": device,
                "context": 1,
                "stream": event.stream,
                "correlation": event.correlation,
            }
            if event.kind == "communication" and event.correlation in comm:
                kernel = comm[event.correlation]
                args |= _comm_args(recording, kernel, with_seq=with_seq)
            if event.blocks >= 0:
                args |= {"grid": [event.blocks, 1, 1], "block": [256, 1, 1]}
            if event.bytes >= 0:
                args |= {"bytes": event.bytes}
            place = {"pid": device, "tid": event.stream}
            yield {
                "ph": "X",
                "cat": CATEGORIES.get(event.kind, "kernel"),
                "name": event.name,
                **place,
                **span(event.start, event.end),
                "args": args,
            }
    whole = {"pid": "Spans", "tid": "PyTorch Profiler", **span(begin, finish)}
    yield {"ph": "X", "cat": "Trace", "name": "PyTorch Profiler (0)", **whole, "args": {}}


def _comm_args(recording: Recording, event: CommEvent, *, with_seq: bool) -> dict[str, Any]:
    instance = event.instance
    size = len(instance.ranks)
    nelems = instance.bytes // BF16_BYTES
    shard = nelems // size
    args: dict[str, Any] = {
        "Collective name": COLLECTIVE_NAMES[event.kind],
        "In msg nelems": shard if event.kind is CollectiveKind.ALL_GATHER else nelems,
        "Out msg nelems": shard if event.kind is CollectiveKind.REDUCE_SCATTER else nelems,
        "Group size": size,
        "dtype": "BFloat16",
        "In split size": "[]",
        "Out split size": "[]",
        "Process Group Name": group_name(recording, instance.axis),
        "Process Group Description": group_description(instance.axis),
        "Process Group Ranks": str(list(instance.ranks)),
    }
    if with_seq:
        args["Seq"] = instance.seq
    # each end names the other only
    if event.kind is CollectiveKind.SEND:
        args["Dst Rank"] = instance.members[1]
    elif event.kind is CollectiveKind.RECV:
        args["Src Rank"] = instance.members[0]
    return args
