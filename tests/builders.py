"""Inputs made by hand in a few lines: tables of one rank, ranks and runs.

::

    rank = RankBuilder(0)
    rank.step(10, 0, 100)
    rank.kernel("gemm", 5, 40, launched=(0, 2))
    rank.comm("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 30, 60, kind=CollectiveKind.ALL_REDUCE)
    rank.sync("cudaStreamSynchronize", 60, 80)
    tables = rank.tables()
    run = make_run([rank.rank()])

Times are plain ints in ns. Nothing here computes an expected answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from distprof.artefacts.record import Gap
from distprof.run.run import (
    CaptureWindow,
    ClockAlignment,
    CollectiveMatches,
    Device,
    Quality,
    Rank,
    Run,
)
from distprof.run.tables import ACTIVITY, COLLECTIVES, HOST, STEPS, RankTables
from distprof.run.topology import ProcessGroup, Topology
from distprof.schema import ABSENT, Coded, Column, Table, TableSchema
from distprof.terms import ActivityKind, CollectiveKind, Origin, StepSource
from distprof.units import fold_ranks

MAIN_THREAD = "100/100"

__all__ = [
    "MAIN_THREAD",
    "MemoryTables",
    "RankBuilder",
    "identity_clock",
    "make_run",
    "table_of",
]


def table_of(schema: TableSchema, rows: Sequence[Mapping[str, Any]]) -> Table:
    """A table from rows; columns that a row leaves out are absent (names: the empty string)."""
    for row in rows:
        unknown = set(row) - set(schema.names)
        if unknown:
            raise ValueError(f"{schema.name} has no columns {sorted(unknown)}")
    return Table(schema, {column.name: _column_of(column, rows) for column in schema})


def _column_of(column: Column, rows: Sequence[Mapping[str, Any]]) -> Any:
    if column.dtype == "category":
        return Coded.encode([row.get(column.name, "") for row in rows])
    values = [row.get(column.name, ABSENT) for row in rows]
    return np.array(values, dtype=np.dtype(column.dtype))


@dataclass(frozen=True)
class MemoryTables:
    """A TableSource that already holds the tables."""

    held: RankTables

    def load(self, *, every_host_row: bool = False) -> RankTables:
        return self.held


class RankBuilder:
    """Collects the events of one rank; :meth:`tables` and :meth:`rank` make the objects.

    Methods that add events return the builder, so that calls can be chained.
    """

    def __init__(self, rank: int = 0, *, world_size: int | None = None) -> None:
        self.number = rank
        self.world_size = world_size
        self.activities: list[dict[str, Any]] = []
        self.host: list[dict[str, Any]] = []
        self.collectives: list[dict[str, Any]] = []
        self.steps: list[dict[str, Any]] = []
        self.groups: list[ProcessGroup] = []
        self._correlation = 0

    # What the device did ------------------------------------------------------------------------

    def kernel(
        self,
        name: str,
        start: int,
        end: int,
        *,
        stream: int = 7,
        launched: tuple[int, int] | None = None,
        thread: str = MAIN_THREAD,
        kind: ActivityKind = ActivityKind.COMPUTATION,
        size: int = ABSENT,
        blocks: int = ABSENT,
    ) -> Self:
        """A device activity; ``launched`` is the span of the host's launch call, if recorded."""
        self._correlation += 1
        self.activities.append(
            {
                "start_ns": start,
                "end_ns": end,
                "name": name,
                "kind": kind,
                "stream": stream,
                "device": 0,
                "correlation": self._correlation,
                "bytes": size,
                "blocks": blocks,
            }
        )
        if launched is not None:
            call = "cudaMemcpyAsync" if kind is ActivityKind.COPY else "cudaLaunchKernel"
            self.call(call, *launched, thread=thread, correlation=self._correlation)
        return self

    def copy(self, name: str, start: int, end: int, **more: Any) -> Self:
        """A memory copy or set on the device."""
        return self.kernel(name, start, end, kind=ActivityKind.COPY, **more)

    def range(self, name: str, start: int, end: int, *, stream: int = 7) -> Self:
        """An annotation drawn on the device's time line."""
        return self.kernel(name, start, end, kind=ActivityKind.ANNOTATION, stream=stream)

    def comm(
        self,
        name: str,
        start: int,
        end: int,
        *,
        kind: CollectiveKind = CollectiveKind.ALL_REDUCE,
        group: str = "0",
        desc: str = "default_pg",
        ranks: Iterable[int] = (),
        seq: int = ABSENT,
        size: int = ABSENT,
        dtype: str = "Float",
        peer: int = ABSENT,
        stream: int = 20,
        launched: tuple[int, int] | None = None,
        thread: str = MAIN_THREAD,
        record: bool = True,
    ) -> Self:
        """A communication kernel and, unless ``record`` is false, its row in COLLECTIVES."""
        self.kernel(
            name,
            start,
            end,
            stream=stream,
            launched=launched,
            thread=thread,
            kind=ActivityKind.COMMUNICATION,
        )
        if not record:
            return self
        members = tuple(ranks)
        self.collectives.append(
            {
                "start_ns": start,
                "end_ns": end,
                "is_timed": True,
                "enqueue_ns": ABSENT if launched is None else launched[0],
                "kind": kind,
                "kind_origin": Origin.MEASURED,
                "group": group,
                "group_desc": desc,
                "group_ranks": fold_ranks(members),
                "group_size": len(members) or ABSENT,
                "group_origin": Origin.MEASURED if group else Origin.ABSENT,
                "seq": seq,
                "dtype": dtype,
                "bytes": size,
                "bytes_origin": Origin.ABSENT if size == ABSENT else Origin.MEASURED,
                "peer": peer,
                "stream": stream,
                "correlation": self._correlation,
                "name": name,
            }
        )
        return self

    # What the host did --------------------------------------------------------------------------

    def call(
        self,
        name: str,
        start: int,
        end: int,
        *,
        category: str = "runtime",
        thread: str = MAIN_THREAD,
        correlation: int = ABSENT,
    ) -> Self:
        """Any host row."""
        self.host.append(
            {
                "start_ns": start,
                "end_ns": end,
                "name": name,
                "category": category,
                "thread": thread,
                "correlation": correlation,
            }
        )
        return self

    def sync(self, name: str, start: int, end: int, *, thread: str = MAIN_THREAD) -> Self:
        """A blocking runtime call, for example ``cudaStreamSynchronize``."""
        self._correlation += 1
        return self.call(name, start, end, thread=thread, correlation=self._correlation)

    def annotation(self, name: str, start: int, end: int, *, thread: str = MAIN_THREAD) -> Self:
        """A host annotation, for example ``ProfilerStep#3``."""
        return self.call(name, start, end, category="annotation", thread=thread)

    def operator(
        self,
        name: str,
        start: int,
        end: int,
        *,
        thread: str = MAIN_THREAD,
        sequence: int = ABSENT,
        inputs: str = "",
    ) -> Self:
        """A host operator, for example ``aten::mm``; ``inputs`` as in HOST."""
        self.call(name, start, end, category="cpu_op", thread=thread)
        self.host[-1] |= {"sequence": sequence, "inputs": inputs}
        return self

    # Steps, groups ------------------------------------------------------------------------------

    def step(self, number: int, start: int, end: int, *, complete: bool = True) -> Self:
        """A step window."""
        self.steps.append({"step": number, "start_ns": start, "end_ns": end, "complete": complete})
        return self

    def member_of(self, group: ProcessGroup) -> Self:
        """Join a process group."""
        self.groups.append(group)
        return self

    # Results ------------------------------------------------------------------------------------

    def tables(self, *, has_host: bool | None = None) -> RankTables:
        """The tables; rows of ACTIVITY and HOST in the order they were added."""
        collectives = sorted(self.collectives, key=lambda row: row["start_ns"])
        return RankTables(
            activity=table_of(ACTIVITY, self.activities),
            host=table_of(HOST, self.host),
            collectives=table_of(COLLECTIVES, collectives),
            steps=table_of(STEPS, self.steps),
            has_host=bool(self.host) if has_host is None else has_host,
        )

    def rank(self, **changes: Any) -> Rank:
        """A Rank whose tables lie in memory; ``changes`` overrides its fields."""
        tables = self.tables()
        times = [row["start_ns"] for row in self.activities + self.host + self.steps]
        ends = [row["end_ns"] for row in self.activities + self.host + self.steps]
        fields: dict[str, Any] = {
            "rank": self.number,
            "path": f"rank{self.number}.json",
            "rank_origin": "trace",
            "world_size": self.world_size,
            "host": "node0",
            "backend": "nccl",
            "device": Device(name="NVIDIA H100"),
            "groups": tuple(self.groups),
            "versions": {},
            "capture_start_ns": min(times, default=0),
            "capture_end_ns": max(ends, default=0),
            "has_epoch": True,
            "step_source": StepSource.PROFILER_STEP if self.steps else StepSource.CAPTURE,
            "step_note": "",
            "steps": tables.steps,
            "collectives": tables.collectives,
            "quality": Quality(num_events=len(times)),
            "tables": MemoryTables(tables),
        }
        return Rank(**{**fields, **changes})


def identity_clock(ranks: Sequence[int], residual_ns: int = 0) -> ClockAlignment:
    """All ranks on one clock that needs no correction."""
    return ClockAlignment(
        domains=(tuple(ranks),),
        names=("node0",),
        offset_ns=np.zeros(1),
        drift_ratio=np.zeros(1),
        reference_ns=0,
        residual_ns=np.array([residual_ns], dtype=np.int64),
        component=np.zeros(1, dtype=np.int32),
    )


def make_run(
    ranks: Sequence[Rank],
    *,
    steps: Sequence[int] = (),
    groups: Sequence[ProcessGroup] = (),
    matches: CollectiveMatches | None = None,
    clock: ClockAlignment | None = None,
    world_size: int | None = None,
    gaps: Sequence[Gap] = (),
) -> Run:
    """A Run of ranks on one node and one clock, nothing matched unless said."""
    numbers = tuple(rank.rank for rank in ranks)
    return Run(
        source="by hand",
        ranks=tuple(ranks),
        topology=Topology(
            world_size=len(ranks) if world_size is None else world_size,
            nodes={"node0": numbers},
            node_origin="host_name",
            groups=tuple(groups),
        ),
        matches=CollectiveMatches.none() if matches is None else matches,
        clock=identity_clock(numbers) if clock is None else clock,
        window=CaptureWindow(steps=tuple(steps)),
        gaps=tuple(gaps),
    )
