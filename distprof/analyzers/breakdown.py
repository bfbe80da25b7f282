"""Where did each rank's time go: computation, exposed communication, exposed copies, idle."""

from __future__ import annotations

from distprof.analyzers.result import Record, Result
from distprof.terms import StepSource

__all__ = ["BreakdownResult", "RankBreakdown", "StepBreakdown", "StepTimeResult"]


class RankBreakdown(Record, frozen=True, kw_only=True):
    """One rank over all analysed steps; the last four add up to ``span_ns`` exactly."""

    rank: int
    span_ns: int
    computation_ns: int
    exposed_comm_ns: int
    exposed_copy_ns: int
    idle_ns: int


class StepBreakdown(Record, frozen=True, kw_only=True):
    """One rank and step; the last four add up to ``span_ns`` exactly."""

    rank: int
    step: int
    span_ns: int
    computation_ns: int
    exposed_comm_ns: int
    exposed_copy_ns: int
    idle_ns: int


class BreakdownResult(Result, frozen=True, kw_only=True):
    """Exclusive split of the analysed time; source: formula sheet, "Measured from traces"."""

    ranks: tuple[RankBreakdown, ...]
    steps: tuple[StepBreakdown, ...]


class StepTimeResult(Result, frozen=True, kw_only=True):
    """Durations of the analysed steps; one value per step, the slowest rank's."""

    num_steps: int
    median_ns: int | None
    p95_ns: int | None
    cv: float | None
    source: StepSource
    note: str
