"""The recording with all times moved to where they would be without the profiler."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np
from msgspec.structs import replace

from distprof.intervals import Intervals
from distprof.run.run import Rank, Run, TablesOf
from distprof.run.tables import RankTables, intervals_of
from distprof.schema import ABSENT, Int64Array, Table
from distprof.sections.perturbation import PerturbationResult
from distprof.sections.perturbation.model import RankTimes


class Correction(msgspec.Struct, frozen=True, kw_only=True):
    """A recording, without the profiler's cost if possible."""

    run: Run  # The recording to analyse.
    result: PerturbationResult  # What was done to it.
    # Garbage collections of each rank's training thread, a set; own clock.
    collections: Mapping[int, Intervals] = msgspec.field(default_factory=dict)


class CorrectedTables(TablesOf, frozen=True):
    """The tables of another :class:`~distprof.run.run.TableSource`, moved in time."""

    times: RankTimes  # Where the rank's events are.

    def load(self, *, every_host_row: bool = False) -> RankTables:
        """Read the tables and move them."""
        tables = self.source.load(every_host_row=every_host_row)
        host, times = tables.host, self.times
        start, end = map(times.moved_on_gpu, intervals_of(tables.activity))
        start[times.events.row], end[times.events.row] = times.start_ns, times.end_ns
        activity = _between(tables.activity, start, end)
        if (start[1:] < start[:-1]).any():
            activity = activity.take(np.argsort(start, kind="stable"))
        return RankTables(
            activity=activity,
            host=_between(host, *map(times.moved, intervals_of(host))),
            collectives=_collectives(tables.collectives, times),
            steps=_steps(tables.steps, times),
            has_host=tables.has_host,
        )


def corrected_run(run: Run, times: Mapping[int, RankTimes]) -> Run:
    """The run with the times of these ranks; others stay as they are."""
    return replace(run, ranks=tuple(_rank(rank, times.get(rank.rank)) for rank in run.ranks))


def _rank(rank: Rank, times: RankTimes | None) -> Rank:
    if times is None:
        return rank
    bounds = np.array([rank.capture_start_ns, rank.capture_end_ns])
    start, end = times.moved_on_gpu(bounds).tolist()
    return replace(
        rank,
        capture_start_ns=start,
        capture_end_ns=end,
        steps=_steps(rank.steps, times),
        collectives=_collectives(rank.collectives, times),
        tables=CorrectedTables(rank.tables, times),
    )


def _between(table: Table, start: Int64Array, end: Int64Array) -> Table:
    return table.with_columns(start_ns=start, end_ns=np.maximum(start, end))


def _collectives(table: Table, times: RankTimes) -> Table:
    of = times.events.of_collective
    start, end = map(times.moved, intervals_of(table))
    known = np.flatnonzero(of != ABSENT)
    start[known], end[known] = times.start_ns[of[known]], times.end_ns[of[known]]
    enqueue = table["enqueue_ns"]
    moved = np.where(enqueue == ABSENT, ABSENT, times.moved(enqueue))
    return _between(table, start, end).with_columns(enqueue_ns=moved)


def _steps(table: Table, times: RankTimes) -> Table:
    return _between(table, *map(times.boundaries, intervals_of(table)))
