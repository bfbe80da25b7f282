"""Where did each rank's time go: computation, exposed communication, exposed copies, idle."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from distprof.analyzers.context import RankAnalysis
from distprof.analyzers.result import Result
from distprof.analyzers.rows import RankBreakdown, StepBreakdown
from distprof.intervals import EMPTY, Intervals, complement, covered, subtract, union
from distprof.run.tables import intervals_of
from distprof.schema import Int64Array, Table
from distprof.terms import ActivityKind, StepSource

__all__ = [
    "BreakdownResult",
    "StepTimeResult",
    "Timeline",
    "break_down",
    "combine_breakdown",
    "step_times",
    "timeline_of",
]


class BreakdownResult(Result, frozen=True, kw_only=True):
    """Exclusive split of the analysed time; source: formula sheet, "Measured from traces"."""

    ranks: tuple[RankBreakdown, ...]
    steps: tuple[StepBreakdown, ...]


class StepTimeResult(Result, frozen=True, kw_only=True):
    """Durations of the analysed steps; one value per step, the median over ranks."""

    num_steps: int
    median_ns: int | None
    p95_ns: int | None
    cv: float | None
    source: StepSource
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """What one rank's device did, as sets of intervals over the whole capture.

    Args:
        computation: K, the union of computation.
        communication: C, the union of communication.
        exposed_comm: C without K.
        exposed_copy: The union of copies without K and C.
        message_wait: Blocked in a send or receive of which no transfer time is known, without K, C
            and copies. It is exposed communication, but takes no part in overlap.
    """

    computation: Intervals
    communication: Intervals
    exposed_comm: Intervals
    exposed_copy: Intervals
    message_wait: Intervals = EMPTY

    def idle(self, low: int, high: int) -> Intervals:
        """What of ``[low, high)`` the device spent on nothing."""
        rest = subtract(complement(self.computation, low, high), self.exposed_comm)
        rest = subtract(rest, self.exposed_copy)
        return subtract(rest, self.message_wait) if self.message_wait.size else rest


def timeline_of(activity: Table) -> Timeline:
    """The sets that all time sums rest on. Annotations take no part.

    Source:
        Formula sheet, "Measured from traces".
    """
    computation = _union_of(activity, ActivityKind.COMPUTATION)
    communication = _union_of(activity, ActivityKind.COMMUNICATION)
    copies = _union_of(activity, ActivityKind.COPY)
    waiting = _union_of(activity, ActivityKind.WAITING)
    for busy in (computation, communication, copies):
        waiting = subtract(waiting, busy) if waiting.size else waiting
    return Timeline(
        computation=computation,
        communication=communication,
        exposed_comm=subtract(communication, computation),
        exposed_copy=subtract(subtract(copies, computation), communication),
        message_wait=waiting,
    )


def break_down(
    rank: int, steps: Int64Array, windows: Intervals, timeline: Timeline
) -> tuple[StepBreakdown, ...]:
    """The exclusive split of each window; an activity that spans two counts in each by its part."""
    span = windows.end - windows.start
    computation = covered(windows, timeline.computation)
    exposed_comm = covered(windows, timeline.exposed_comm)
    exposed_comm += covered(windows, timeline.message_wait)
    exposed_copy = covered(windows, timeline.exposed_copy)
    idle = span - computation - exposed_comm - exposed_copy
    columns = (steps, span, computation, exposed_comm, exposed_copy, idle)
    return tuple(
        StepBreakdown(
            rank=rank,
            step=step,
            span_ns=span_ns,
            computation_ns=computation_ns,
            exposed_comm_ns=exposed_comm_ns,
            exposed_copy_ns=exposed_copy_ns,
            idle_ns=idle_ns,
        )
        for (
            step,
            span_ns,
            computation_ns,
            exposed_comm_ns,
            exposed_copy_ns,
            idle_ns,
        ) in zip(*(column.tolist() for column in columns), strict=True)
    )


def combine_breakdown(
    analyses: Iterable[RankAnalysis], unavailable: Sequence[str] = ()
) -> BreakdownResult:
    """All ranks' steps, and each rank's steps added up."""
    steps: list[StepBreakdown] = []
    ranks: list[RankBreakdown] = []
    for analysis in analyses:
        steps.extend(analysis.steps)
        ranks.append(_add_up(analysis.rank, analysis.steps))
    return BreakdownResult(ranks=tuple(ranks), steps=tuple(steps), unavailable=tuple(unavailable))


def step_times(
    durations: Int64Array, *, source: StepSource, note: str, unavailable: Sequence[str] = ()
) -> StepTimeResult:
    """Statistics of step durations.

    Args:
        durations: int64 ns, shape ``(ranks, steps)``; a step lasts as long as on the median rank.
            Ranks go at one pace, but a rank that ends one step late has begun the next one late,
            so that the longest of each step add up to more than the job took. No columns where
            nothing marks steps: then nothing is said about step times.
        source: How step windows were found.
        note: One sentence on it.
        unavailable: What could not be measured.
    """
    per_step = np.median(durations, axis=0) if durations.size else np.empty(0)
    some = len(per_step) > 0
    return StepTimeResult(
        num_steps=len(per_step),
        median_ns=int(np.median(per_step)) if some else None,
        p95_ns=int(np.percentile(per_step, 95)) if some else None,
        cv=float(per_step.std() / per_step.mean()) if len(per_step) > 1 else None,
        source=source,
        note=note,
        unavailable=tuple(unavailable),
    )


def _union_of(activity: Table, kind: ActivityKind) -> Intervals:
    start, end = intervals_of(activity)
    mask = activity["kind"] == kind
    return union(Intervals(start[mask], end[mask]), overwrite=True)  # copies, by the mask


def _add_up(rank: int, steps: Sequence[StepBreakdown]) -> RankBreakdown:
    return RankBreakdown(
        rank=rank,
        span_ns=sum(step.span_ns for step in steps),
        computation_ns=sum(step.computation_ns for step in steps),
        exposed_comm_ns=sum(step.exposed_comm_ns for step in steps),
        exposed_copy_ns=sum(step.exposed_copy_ns for step in steps),
        idle_ns=sum(step.idle_ns for step in steps),
    )
