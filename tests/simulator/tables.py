"""From a simulated log to what ingest yields: a ``Rank`` whose tables are in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from distprof.run.run import Device, Quality, Rank
from distprof.run.tables import ACTIVITY, COLLECTIVES, HOST, STEPS, RankTables
from distprof.run.topology import ProcessGroup
from distprof.schema import ABSENT, Coded, Table, TableSchema
from distprof.terms import ActivityKind, MeshAxis, Origin, StepSource
from tests.simulator.recording import CommEvent, Recording

EPOCH_NS = 1_716_423_322_000_000_000
THREAD = "4321/4321"


@dataclass(frozen=True, kw_only=True)
class TraceDetail:
    """What the traces tell."""

    seq: bool = True
    groups: bool = True
    steps: bool = True
    hosts: bool = True
    host_rows: bool = True


@dataclass(frozen=True)
class InMemory:
    """A TableSource that hands out what it holds."""

    tables: RankTables

    def load(self, *, every_host_row: bool = False) -> RankTables:
        return self.tables


def fold(ranks: Sequence[int]) -> str:
    """0,1,2,3,8 as ``0-3,8``."""
    parts: list[list[int]] = []
    for rank in sorted(ranks):
        if parts and parts[-1][1] == rank - 1:
            parts[-1][1] = rank
        else:
            parts.append([rank, rank])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)


def group_name(recording: Recording, axis: str) -> str:
    """PyTorch numbers groups; groups of one axis share a name, as after splitting."""
    return str(list(recording.job.groups).index(axis))


def group_description(axis: str) -> str:
    return "default_pg" if axis == "world" else f"mesh_{axis}"


def table(schema: TableSchema, rows: Sequence[dict[str, Any]]) -> Table:
    """A table from one mapping per row."""
    columns: dict[str, Any] = {}
    for column in schema:
        name = column.name
        values = [row.get(name, True) if name == "is_timed" else row[name] for row in rows]
        if column.dtype == "category":
            columns[name] = Coded.encode(values)
        else:
            columns[name] = np.array(values, dtype=column.dtype)
    return Table(schema, columns)


def clock_of(recording: Recording, rank: int) -> Callable[[float], int]:
    """From true time since the job's start to epoch ns on the rank's own clock."""
    return lambda time: EPOCH_NS + recording.job.own_clock(rank, time)


def process_groups(recording: Recording, rank: int) -> tuple[ProcessGroup, ...]:
    axes = {axis.value for axis in MeshAxis}
    return tuple(
        ProcessGroup(
            name=group_name(recording, axis),
            description=group_description(axis),
            ranks=group,
            size=len(group),
            backend="nccl",
            axis=MeshAxis(axis) if axis in axes else None,
        )
        for axis, groups in recording.job.groups.items()
        for group in groups
        if rank in group
    )


def rank_of(recording: Recording, rank: int, detail: TraceDetail) -> Rank:
    job = recording.job
    clock = clock_of(recording, rank)
    begin, finish = recording.capture(rank)
    steps = _steps(recording, rank, detail)
    collectives = _collectives(recording, rank, detail)
    tables = RankTables(
        activity=_activity(recording, rank),
        host=_host(recording, rank, detail) if detail.host_rows else Table.empty(HOST),
        collectives=collectives,
        steps=steps,
        has_host=detail.host_rows,
    )
    source = StepSource.CAPTURE
    if detail.steps:
        source = StepSource.PROFILER_STEP if job.synchronise else StepSource.DEVICE
    return Rank(
        rank=rank,
        path=f"memory://node{job.node_of(rank)}/rank{rank}",
        rank_origin="trace",
        world_size=job.world_size,
        host=f"node{job.node_of(rank)}" if detail.hosts else None,
        backend="nccl",
        device=Device(name="Simulated GPU", count=job.ranks_per_node),
        groups=process_groups(recording, rank) if detail.groups else (),
        versions={"nccl": "2.21.5"},
        capture_start_ns=clock(begin),
        capture_end_ns=clock(finish),
        has_epoch=True,
        step_source=source,
        step_note="simulated",
        steps=steps,
        collectives=collectives,
        quality=Quality(num_events=len(tables.activity) + len(tables.host)),
        tables=InMemory(tables),
    )


def inside(recording: Recording, rank: int, start: float, end: float) -> bool:
    """Whether an event is in the rank's trace: it started after the capture and ended before."""
    begin, finish = recording.capture(rank)
    return start >= begin and end <= finish


def _activity(recording: Recording, rank: int) -> Table:
    clock = clock_of(recording, rank)
    begin, finish = recording.capture(rank)
    kinds = {
        "computation": ActivityKind.COMPUTATION,
        "communication": ActivityKind.COMMUNICATION,
        "copy": ActivityKind.COPY,
        "annotation": ActivityKind.ANNOTATION,
    }
    events = sorted(recording.logs[rank].device, key=lambda event: event.start)
    return table(
        ACTIVITY,
        [
            {
                "start_ns": clock(event.start),
                "end_ns": clock(event.end),
                "name": event.name,
                "kind": kinds[event.kind],
                "stream": event.stream,
                "device": rank % recording.job.ranks_per_node,
                "correlation": event.correlation,
                "bytes": event.bytes,
                "blocks": event.blocks,
            }
            for event in events
            if event.start >= begin and event.end <= finish
        ],
    )


def _host(recording: Recording, rank: int, detail: TraceDetail) -> Table:
    clock = clock_of(recording, rank)
    begin, finish = recording.capture(rank)
    log = recording.logs[rank]
    rows = [
        (event.start, event.end, event.name, event.category, event.correlation)
        for event in log.host
    ]
    if detail.steps:
        rows += [(s, e, f"ProfilerStep#{step}", "annotation", ABSENT) for step, s, e in log.steps]
    rows = sorted(row for row in rows if row[0] >= begin and row[1] <= finish)
    return table(
        HOST,
        [
            {
                "start_ns": clock(start),
                "end_ns": clock(end),
                "name": name,
                "category": category,
                "thread": THREAD,
                "correlation": correlation,
                "sequence": ABSENT,
                "inputs": "",
            }
            for start, end, name, category, correlation in rows
        ],
    )


def _steps(recording: Recording, rank: int, detail: TraceDetail) -> Table:
    clock = clock_of(recording, rank)
    begin, finish = recording.capture(rank)
    windows = [(0, begin, finish)]
    if detail.steps:
        windows = recording.step_windows(rank)
    return table(
        STEPS,
        [
            {
                "step": step,
                "start_ns": clock(start),
                "end_ns": clock(min(end, finish)),
                "complete": end <= finish,
            }
            for step, start, end in windows
            # an annotation that began before the profiler is not in a trace at all
            if begin <= start < finish
        ],
    )


def captured_comm(recording: Recording, rank: int) -> list[CommEvent]:
    """Communication in the rank's trace, in order of start."""
    begin, finish = recording.capture(rank)
    return sorted(
        (
            event
            for event in recording.logs[rank].comm
            if event.start >= begin and event.end <= finish
        ),
        key=lambda event: event.start,
    )


def _collectives(recording: Recording, rank: int, detail: TraceDetail) -> Table:
    clock = clock_of(recording, rank)
    begin, _ = recording.capture(rank)
    return table(
        COLLECTIVES,
        [
            {
                "start_ns": clock(event.start),
                "end_ns": clock(event.end),
                # a launch before the capture is not in the trace
                "enqueue_ns": clock(event.enqueue) if event.enqueue >= begin else ABSENT,
                "kind": event.kind,
                "kind_origin": Origin.MEASURED,
                **_group_columns(recording, event, detail),
                "seq": event.instance.seq if detail.seq else ABSENT,
                "dtype": "BFloat16",
                "bytes": event.instance.bytes,
                "bytes_origin": Origin.MEASURED,
                "peer": _peer(event, rank),
                "in_splits": _split_text(event.instance.in_splits.get(rank, ())),
                "out_splits": _split_text(event.instance.out_splits.get(rank, ())),
                "stream": event.stream,
                "correlation": event.correlation,
                "name": event.name,
            }
            for event in captured_comm(recording, rank)
        ],
    )


def _split_text(split: tuple[int, ...]) -> str:
    return ",".join(map(str, split))


def _peer(event: CommEvent, rank: int) -> int:
    if not event.kind.is_point_to_point:
        return ABSENT
    return next(member for member in event.instance.members if member != rank)


def _group_columns(recording: Recording, event: CommEvent, detail: TraceDetail) -> dict[str, Any]:
    if not detail.groups:
        return {
            "group": "",
            "group_desc": "",
            "group_ranks": "",
            "group_size": ABSENT,
            "group_origin": Origin.ABSENT,
        }
    ranks = event.instance.ranks
    return {
        "group": group_name(recording, event.instance.axis),
        "group_desc": group_description(event.instance.axis),
        "group_ranks": fold(ranks),
        "group_size": len(ranks),
        "group_origin": Origin.MEASURED,
    }
