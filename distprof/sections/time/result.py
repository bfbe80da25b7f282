"""Where did each rank's time go: computation, exposed communication, exposed copies, idle."""

from __future__ import annotations

from distprof.artefacts.record import Record
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
    """One rank and step; the last four add up to ``span_ns`` exactly.

    Args:
        rank: Global rank.
        step: Step number.
        span_ns: Duration of the step on this rank; the other four add up to it exactly.
        computation_ns: Time in which at least one computation kernel or operator runs.
        exposed_comm_ns: Communication that does not overlap with computation, plus time blocked in
            messages of gloo.
        exposed_copy_ns: Memory copies that neither computation nor communication hides.
        idle_ns: The rest.
    """

    rank: int
    step: int
    span_ns: int
    computation_ns: int
    exposed_comm_ns: int
    exposed_copy_ns: int
    idle_ns: int


class RankBreakdown(Record, frozen=True, kw_only=True):
    """One rank over all analysed steps; the last four add up to ``span_ns`` exactly.

    Args:
        rank: Global rank.
        span_ns: Analysed time; the other four add up to it exactly.
        computation_ns: Time in which at least one computation kernel or operator runs.
        exposed_comm_ns: Communication that does not overlap with computation, plus time blocked in
            messages of gloo. ``overlap`` leaves the latter out, so its field of this name can be
            smaller.
        exposed_copy_ns: Memory copies that neither computation nor communication hides.
        idle_ns: The rest.
    """

    rank: int
    span_ns: int
    computation_ns: int
    exposed_comm_ns: int
    exposed_copy_ns: int
    idle_ns: int


class RankWaterfall(Record, frozen=True, kw_only=True):
    """One rank over all analysed steps; everything after ``span_ns`` adds up to it exactly.

    Args:
        rank: Global rank; -1 for all added up.
        span_ns: Analysed time; all other times add up to it exactly.
        computation_ns: Time in which at least one computation kernel or operator runs.
        exposed_transfer_ns: Exposed communication while data moves: all members have started.
        exposed_wait_ns: Exposed waiting in a collective for its last member.
        exposed_p2p_wait_ns: Exposed waiting in send and recv; in a pipeline this is bubble.
        exposed_comm_unsplit_ns: Exposed communication whose members could not be matched, so that
            waiting and transfer cannot be separated.
        exposed_copy_ns: Memory copies that neither computation nor communication hides.
        idle_host_ns: Idle because the CPU launched too late.
        idle_sync_ns: Idle because a call had waited for the GPU.
        idle_input_ns: Idle while the training thread waited for input.
        idle_comm_wait_ns: Idle between work launched in time and communication on another stream.
        idle_unknown_ns: Idle without a cause in the trace.
    """

    rank: int
    span_ns: int
    computation_ns: int
    exposed_transfer_ns: int
    exposed_wait_ns: int
    exposed_p2p_wait_ns: int
    exposed_comm_unsplit_ns: int
    exposed_copy_ns: int
    idle_host_ns: int
    idle_sync_ns: int
    idle_input_ns: int
    idle_comm_wait_ns: int
    idle_unknown_ns: int


# Where did each rank's time go: computation, exposed communication, exposed copies, idle ---------


class BreakdownResult(Result, frozen=True, kw_only=True):
    """Exclusive split of the analysed time; source: formula sheet, "Measured from traces".

    Args:
        ranks: Each rank over all analysed steps.
        steps: Each rank and step; of a large run, each step of some ranks, an eighth of them those
            whose computation differs most from the median rank's and the rest evenly spaced.
        num_ranks_left_out: Ranks of which ``steps`` has no rows; ``--every-step`` leaves none out.
    """

    needs_traces = True

    ranks: tuple[RankBreakdown, ...]
    steps: tuple[StepBreakdown, ...]
    num_ranks_left_out: int = 0


class StepTimeResult(Result, frozen=True, kw_only=True):
    """Durations of the analysed steps; one value per step, the median over ranks.

    Args:
        num_steps: Analysed steps.
        median_ns: Median duration of a step; null where nothing marks steps.
        p95_ns: 95th percentile of the durations; null as above.
        cv: Standard deviation over mean of the durations; null as above.
        source: What marks the steps.
        note: How the steps were found, one sentence.
    """

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


class ExposedCopies(Record, frozen=True, kw_only=True):
    """Copies of one direction; means over ranks and steps.

    Args:
        direction: ``HtoD``, ``DtoH``, ``DtoD``, ``PtoP``, ``HtoH`` or ``memset``; ``other`` where
            the name says none.
        host_memory: ``pinned`` or ``pageable``; empty where the CPU's memory takes no part or the
            name does not say.
        num_per_step: Copies.
        bytes_per_step: Bytes that they move; null where a copy lacks its size.
        exposed_ns_per_step: Time in which such a copy runs and nothing else.
        operators: The outermost tensor operators that launch most of them, at most three; empty
            where they are unknown, or copies are exposed for less than 5 % of the step.
    """

    direction: str
    host_memory: str
    num_per_step: float
    bytes_per_step: float | None
    exposed_ns_per_step: int
    operators: tuple[str, ...] = ()


class WaterfallResult(Result, frozen=True, kw_only=True):
    """Per rank, and all ranks added up; divide by ``num_ranks * num_steps`` for a mean step.

    Args:
        num_ranks: Ranks that were added up.
        num_steps: Analysed steps, 1 for a whole capture.
        ranks: Each rank over all analysed steps.
        all: All ranks added up, ``rank`` is -1; null where nothing was measured.
        copies: Copies by direction and kind of CPU memory, the most exposed first.
    """

    needs_traces = True

    num_ranks: int
    num_steps: int
    ranks: tuple[RankWaterfall, ...]
    all: RankWaterfall | None
    copies: tuple[ExposedCopies, ...] = ()
