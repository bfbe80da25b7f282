"""From a simulated pipeline to tables in memory and to Kineto files."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distprof.run.run import Rank
from distprof.run.topology import ProcessGroup
from distprof.terms import ActivityKind, CollectiveKind, MeshAxis
from tests.builders import RankBuilder

if TYPE_CHECKING:
    from tests.simulator.pipeline_job import Marks, Message, PipelineRecording, Slot

EPOCH_NS = 1_716_423_322_000_000_000
BASE_NS = EPOCH_NS - 10_000_000_000
"""What Kineto's times count from: near, so that microseconds with decimals are exact."""
COMPUTE, COMM, MESSAGES = 7, 20, 24
KERNELS = {"F": "gemm_forward", "B": "gemm_backward", "I": "gemm_dgrad", "W": "gemm_wgrad"}


def builders_of(recording: PipelineRecording, *, marks: Marks, messages: bool) -> list[RankBuilder]:
    """One per rank, times on its own clock."""
    job = recording.job
    slots: dict[int, list[Slot]] = defaultdict(list)
    received: dict[int, list[Message]] = defaultdict(list)
    sent: dict[int, list[Message]] = defaultdict(list)
    for slot in recording.slots:
        slots[slot.rank].append(slot)
    for message in recording.messages if messages else ():
        received[message.target].append(message)
        sent[message.source].append(message)
    builders = []
    for rank in range(job.world_size):
        offset = EPOCH_NS + (job.clock_offset_ns[rank] if job.clock_offset_ns else 0)
        builder = _Clocked(rank, offset, job.world_size)
        for group in groups_of(recording, rank):
            builder.member_of(group)
        if marks == "host":
            _add_launched(builder, slots[rank])
        else:
            for slot in slots[rank]:
                _add_slot(builder, slot, marks)
        _add_messages(builder, recording, received[rank], sent[rank])
        _add_steps(builder, recording, rank)
        builders.append(builder)
    return builders


class _Clocked(RankBuilder):
    """Takes true times and writes them on the rank's own clock."""

    def __init__(self, rank: int, offset: int, world_size: int) -> None:
        super().__init__(rank, world_size=world_size)
        self.offset = offset

    def kernel(self, name: str, start: int, end: int, **more: Any) -> _Clocked:
        return super().kernel(name, start + self.offset, end + self.offset, **more)

    def comm(self, name: str, start: int, end: int, **more: Any) -> _Clocked:
        super().comm(name, start, end, **more)
        self.collectives[-1]["start_ns"] += self.offset
        self.collectives[-1]["end_ns"] += self.offset
        return self

    def call(self, name: str, start: int, end: int, **more: Any) -> _Clocked:
        return super().call(name, start + self.offset, end + self.offset, **more)

    def step(self, number: int, start: int, end: int, *, complete: bool = True) -> _Clocked:
        return super().step(number, start + self.offset, end + self.offset, complete=complete)


def groups_of(recording: PipelineRecording, rank: int) -> list[ProcessGroup]:
    """The world, and the rank's pipeline."""
    job = recording.job
    everyone = tuple(range(job.world_size))
    pipeline = pipeline_of(recording, rank)
    return [
        ProcessGroup(
            name="0",
            description="default_pg",
            ranks=everyone,
            size=len(everyone),
            backend="nccl",
            axis=MeshAxis.WORLD,
        ),
        ProcessGroup(
            name=f"{1 + rank % job.replicas}",
            description="mesh_pp",
            ranks=pipeline,
            size=len(pipeline),
            backend="nccl",
            axis=MeshAxis.PP,
        ),
    ]


def pipeline_of(recording: PipelineRecording, rank: int) -> tuple[int, ...]:
    job = recording.job
    return tuple(
        job.rank_of(position, rank % job.replicas) for position in range(job.num_positions)
    )


def _add_slot(builder: RankBuilder, slot: Slot, marks: Marks) -> None:
    builder.kernel(KERNELS[slot.letter], slot.start, slot.end, stream=COMPUTE)
    if marks == "distprof":
        name = f"distprof:pp stage={slot.stage} op={slot.letter} mb={slot.micro_batch}"
        builder.range(name, slot.start, slot.end, stream=COMPUTE)
    elif marks == "torch":
        # torch's annotations begin before the wait for the message
        name = f"PP:{slot.stage}{slot.letter}{slot.micro_batch}"
        builder.range(name, slot.posted, slot.end, stream=COMPUTE)


def _add_launched(builder: RankBuilder, slots: list[Slot]) -> None:
    """Slots that a host two slots ahead of its device launches, annotated on the host alone."""
    ordered = sorted(slots, key=lambda slot: slot.start)
    for number, slot in enumerate(ordered):
        ahead = ordered[max(number - 2, 0)].start - 5_000 - 10_000 * max(2 - number, 0)
        builder.kernel(
            KERNELS[slot.letter],
            slot.start,
            slot.end,
            stream=COMPUTE,
            launched=(ahead - 1_000, ahead + 1_000),
        )
        name = f"PP:{slot.stage}{slot.letter}{slot.micro_batch}"
        builder.annotation(name, ahead - 2_000, ahead + 2_000)


def _add_messages(
    builder: RankBuilder,
    recording: PipelineRecording,
    received: list[Message],
    sent: list[Message],
) -> None:
    """A receive runs from when it can to the arrival, a send from when it is ready to that."""
    ranks = pipeline_of(recording, builder.number)
    group = {"group": f"{1 + builder.number % recording.job.replicas}", "desc": "mesh_pp"}
    for message in received:
        builder.comm(
            "ncclDevKernel_SendRecv",
            min(message.posted, message.sent),
            message.arrival,
            kind=CollectiveKind.RECV,
            ranks=ranks,
            peer=message.source,
            size=1 << 20,
            stream=MESSAGES + 1,
            **group,
        )
    for message in sent:
        builder.comm(
            "ncclDevKernel_SendRecv",
            message.sent,
            message.arrival,
            kind=CollectiveKind.SEND,
            ranks=ranks,
            peer=message.target,
            size=1 << 20,
            stream=MESSAGES,
            **group,
        )


def _add_steps(builder: RankBuilder, recording: PipelineRecording, rank: int) -> None:
    for number, step in enumerate(recording.steps):
        builder.comm(
            "ncclDevKernel_AllReduce_Sum_bf16_RING_LL",
            step.ready[rank],
            step.joined,
            kind=CollectiveKind.ALL_REDUCE,
            ranks=range(recording.job.world_size),
            seq=number,
            size=1 << 26,
            stream=COMM,
        )
        builder.kernel("adam", step.joined, step.end, stream=COMPUTE)
        builder.annotation(f"ProfilerStep#{step.step}", step.begin, step.end)
        builder.step(step.step, step.begin, step.end)


def rank_of(recording: PipelineRecording, builder: RankBuilder) -> Rank:
    """With a node of its own where ranks have clocks of their own."""
    alone = bool(recording.job.clock_offset_ns)
    return builder.rank(host=f"node{builder.number}" if alone else "node0")


# Kineto -------------------------------------------------------------------------------------------

_NAMES = {
    CollectiveKind.ALL_REDUCE: "allreduce",
    CollectiveKind.SEND: "send",
    CollectiveKind.RECV: "recv",
}


def write_builder(recording: PipelineRecording, builder: RankBuilder, folder: Path) -> Path:
    """A rank's trace in the form of torch.profiler's."""
    groups = [
        {
            "pg_name": group.name,
            "pg_desc": group.description,
            "backend_config": "cuda:nccl",
            "pg_size": group.size,
            "ranks": list(group.ranks),
        }
        for group in builder.groups
    ]
    trace = {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}],
        "distributedInfo": {
            "backend": "nccl",
            "rank": builder.number,
            "world_size": recording.job.world_size,
            "pg_count": len(groups),
            "pg_config": groups,
            "nccl_version": "2.21.5",
        },
        "traceEvents": _events(builder),
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": BASE_NS,
    }
    host = f"node{builder.number}" if recording.job.clock_offset_ns else "node0"
    path = folder / f"{host}_{4321 + builder.number}.{EPOCH_NS}.pt.trace.json.gz"
    path.write_bytes(gzip.compress(json.dumps(trace).encode(), compresslevel=1, mtime=0))
    return path


def _events(builder: RankBuilder) -> list[dict[str, Any]]:
    comm = {row["correlation"]: row for row in builder.collectives}
    events = []
    for row in builder.activities:
        is_range = row["kind"] is ActivityKind.ANNOTATION
        args = {"device": 0, "stream": row["stream"], "correlation": row["correlation"]}
        if row["correlation"] in comm:
            args |= _comm_args(comm[row["correlation"]], builder.number)
        events.append(
            {
                "ph": "X",
                "cat": "gpu_user_annotation" if is_range else "kernel",
                "name": row["name"],
                "pid": 0,
                "tid": row["stream"],
                **_span(row),
                "args": args,
            }
        )
    for row in builder.host:
        place = {"ph": "X", "cat": "user_annotation", "pid": 4321, "tid": 4321}
        events.append({**place, "name": row["name"], **_span(row), "args": {}})
    return events


def _span(row: dict[str, Any]) -> dict[str, float]:
    """In microseconds."""
    return {
        "ts": (row["start_ns"] - BASE_NS) / 1000,
        "dur": (row["end_ns"] - row["start_ns"]) / 1000,
    }


def _comm_args(row: dict[str, Any], rank: int) -> dict[str, Any]:
    size = row["group_size"]
    args: dict[str, Any] = {
        "Collective name": _NAMES[row["kind"]],
        "In msg nelems": row["bytes"] // 2,
        "Out msg nelems": row["bytes"] // 2,
        "Group size": size,
        "dtype": "BFloat16",
        "Process Group Name": row["group"],
        "Process Group Description": row["group_desc"],
    }
    if row["kind"] is CollectiveKind.SEND:
        args["Dst Rank"] = row["peer"]
    elif row["kind"] is CollectiveKind.RECV:
        args["Src Rank"] = row["peer"]
    else:
        args["Seq"] = row["seq"]
    return args


# Timelines ----------------------------------------------------------------------------------------


def write_timeline(recording: PipelineRecording, folder: Path) -> None:
    """``pp_rank_N.json`` and ``config.json``, milliseconds since the rank began the step."""
    job = recording.job
    chunks = len(job.forward_ns) // job.num_positions
    batches = {batch for order in job.orders for _, _, batch in order}
    config = {"pp_size": job.num_positions, "vp_size": chunks, "num_mbs": len(batches)}
    (folder / "config.json").write_text(json.dumps({**config, "dp_size": 1, "tp_size": 1}))
    for position in range(job.num_positions):
        rank = job.rank_of(position, 0)
        steps = {
            str(number): _iteration(recording, rank, step.step, step.begin, step.end)
            for number, step in enumerate(recording.steps, start=1)
        }
        (folder / f"pp_rank_{position}.json").write_text(json.dumps(steps))


def _iteration(
    recording: PipelineRecording, rank: int, step: int, begin: int, end: int
) -> dict[str, Any]:
    slots = [slot for slot in recording.slots if (slot.rank, slot.step) == (rank, step)]
    times: dict[str, Any] = {"total": (end - begin) / 1e6, "memory": 1.0}
    for letter, name in (("F", "fwd"), ("B", "bwd")):
        mine = [slot for slot in slots if slot.letter == letter]
        times[f"{name}_start"] = [(slot.start - begin) / 1e6 for slot in mine]
        times[f"{name}_end"] = [(slot.end - begin) / 1e6 for slot in mine]
    return times
