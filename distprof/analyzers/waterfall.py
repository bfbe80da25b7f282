"""The lost-time waterfall: a step as an exact sum of its causes."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from distprof.analyzers.breakdown import Timeline
from distprof.analyzers.context import RankAnalysis
from distprof.analyzers.result import Result
from distprof.analyzers.rows import RankIdle, RankWaterfall, StepBreakdown
from distprof.intervals import Intervals, covered, intersect, subtract, union
from distprof.run.tables import intervals_of
from distprof.schema import ABSENT, Int64Array, Table
from distprof.terms import CollectiveKind

__all__ = [
    "WaterfallResult",
    "combine_waterfall",
    "rank_waterfall",
    "waits_of",
]

_POINT_TO_POINT = tuple(int(kind) for kind in CollectiveKind if kind.is_point_to_point)


class WaterfallResult(Result, frozen=True, kw_only=True):
    """Per rank, and all ranks added up; divide by ``num_ranks * num_steps`` for a mean step."""

    num_ranks: int
    num_steps: int
    ranks: tuple[RankWaterfall, ...]
    all: RankWaterfall | None  # rank is -1


def waits_of(collectives: Table, wait_end_ns: Int64Array) -> Intervals:
    """For each row, the part of it before the last member started; empty where it was the last.

    Rows that were not matched get an empty interval too: tell them by ``wait_end_ns``.
    """
    start, end = intervals_of(collectives)
    until = np.maximum(start, np.minimum(end, wait_end_ns))
    return Intervals(start, np.where(wait_end_ns == ABSENT, start, until))


def rank_waterfall(
    rank: int,
    steps: Sequence[StepBreakdown],
    windows: Intervals,
    timeline: Timeline,
    collectives: Table,
    wait_end_ns: Int64Array,
    idle: RankIdle | None,
) -> RankWaterfall:
    """One rank's analysed time as an exact sum.

    Exposed communication is split by what the matched rows say: where any collective waits for its
    last member it is wait, else where a send or recv does it is point-to-point wait, else where a
    matched row runs it is transfer; what only unmatched rows cover stays unsplit. Being blocked in
    a send or receive of which no transfer time is known is point-to-point wait.
    """
    wait, p2p_wait, transfer, unsplit = _split_exposed(
        timeline.exposed_comm, collectives, wait_end_ns
    )
    idle_ns = sum(step.idle_ns for step in steps)
    return RankWaterfall(
        rank=rank,
        span_ns=sum(step.span_ns for step in steps),
        computation_ns=sum(step.computation_ns for step in steps),
        exposed_transfer_ns=_inside(windows, transfer),
        exposed_wait_ns=_inside(windows, wait),
        exposed_p2p_wait_ns=_inside(windows, p2p_wait) + _inside(windows, timeline.message_wait),
        exposed_comm_unsplit_ns=_inside(windows, unsplit),
        exposed_copy_ns=sum(step.exposed_copy_ns for step in steps),
        idle_host_ns=idle.host_ns if idle else 0,
        idle_sync_ns=idle.sync_ns if idle else 0,
        idle_input_ns=idle.input_ns if idle else 0,
        idle_comm_wait_ns=idle.comm_wait_ns if idle else 0,
        idle_unknown_ns=idle.unknown_ns if idle else idle_ns,
    )


def combine_waterfall(
    analyses: Sequence[RankAnalysis], num_steps: int, unavailable: Sequence[str] = ()
) -> WaterfallResult:
    """Each rank's waterfall and their sum."""
    ranks = tuple(analysis.waterfall for analysis in analyses)
    return WaterfallResult(
        num_ranks=len(ranks),
        num_steps=num_steps,
        ranks=ranks,
        all=_add_up(ranks) if ranks else None,
        unavailable=tuple(unavailable),
    )


def _split_exposed(
    exposed: Intervals, collectives: Table, wait_end_ns: Int64Array
) -> tuple[Intervals, Intervals, Intervals, Intervals]:
    """Disjoint sets that make up ``exposed``: wait, point-to-point wait, transfer, unsplit."""
    is_p2p = np.isin(collectives["kind"], _POINT_TO_POINT)
    waits = waits_of(collectives, wait_end_ns)
    matched = _union_where(intervals_of(collectives), wait_end_ns != ABSENT)
    wait = intersect(exposed, _union_where(waits, ~is_p2p))
    p2p_wait = subtract(intersect(exposed, _union_where(waits, is_p2p)), wait)
    transfer = subtract(subtract(intersect(exposed, matched), wait), p2p_wait)
    return wait, p2p_wait, transfer, subtract(exposed, matched)


def _union_where(rows: Intervals, mask: NDArray[np.bool_]) -> Intervals:
    return union(Intervals(rows.start[mask], rows.end[mask]))


def _inside(windows: Intervals, disjoint: Intervals) -> int:
    return int(covered(windows, disjoint).sum())


def _add_up(ranks: Sequence[RankWaterfall]) -> RankWaterfall:
    sums = {
        field: sum(getattr(rank, field) for rank in ranks)
        for field in RankWaterfall.__struct_fields__
    }
    return msgspec.structs.replace(ranks[0], **{**sums, "rank": ABSENT})
