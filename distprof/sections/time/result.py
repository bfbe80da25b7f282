"""Where did each rank's time go: computation, exposed communication, exposed copies, idle."""

from __future__ import annotations

from distprof.schema import Record
from distprof.sections.base import Result
from distprof.terms import StepSource

__all__ = [
    "BreakdownResult",
    "RankBreakdown",
    "RankWaterfall",
    "StepBreakdown",
    "StepTimeResult",
    "WaterfallResult",
]


class StepBreakdown(Record, frozen=True, kw_only=True):
    """One rank and step; the last four add up to ``span_ns`` exactly."""

    rank: int
    step: int
    span_ns: int
    computation_ns: int
    exposed_comm_ns: int
    exposed_copy_ns: int
    idle_ns: int


class RankBreakdown(Record, frozen=True, kw_only=True):
    """One rank over all analysed steps; the last four add up to ``span_ns`` exactly."""

    rank: int
    span_ns: int
    computation_ns: int
    exposed_comm_ns: int
    exposed_copy_ns: int
    idle_ns: int


class RankWaterfall(Record, frozen=True, kw_only=True):
    """One rank over all analysed steps; everything after ``span_ns`` adds up to it exactly."""

    rank: int
    span_ns: int
    computation_ns: int
    exposed_transfer_ns: int
    exposed_wait_ns: int  # waiting in a collective for its last member
    exposed_p2p_wait_ns: int  # the same in send and recv: bubble, in a pipeline
    exposed_comm_unsplit_ns: int  # members could not be matched: wait and transfer not separated
    exposed_copy_ns: int
    idle_host_ns: int
    idle_sync_ns: int
    idle_input_ns: int
    idle_comm_wait_ns: int
    idle_unknown_ns: int


# Where did each rank's time go: computation, exposed communication, exposed copies, idle ---------


class BreakdownResult(Result, frozen=True, kw_only=True):
    """Exclusive split of the analysed time; source: formula sheet, "Measured from traces"."""

    needs_traces = True

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

    @property
    def marks_steps(self) -> bool:
        """Whether anything marks steps: a whole capture is none."""
        return self.median_ns is not None


# The lost-time waterfall: a step as an exact sum of its causes -----------------------------------


class WaterfallResult(Result, frozen=True, kw_only=True):
    """Per rank, and all ranks added up; divide by ``num_ranks * num_steps`` for a mean step."""

    needs_traces = True

    num_ranks: int
    num_steps: int
    ranks: tuple[RankWaterfall, ...]
    all: RankWaterfall | None  # rank is -1
