"""Where each rank's time went: computation, exposed communication, exposed copies, idle."""

from __future__ import annotations

from distprof.artefacts.record import Record
from distprof.sections.base import Result
from distprof.terms import StepSource


class StepBreakdown(Record, frozen=True, kw_only=True):
    """One rank and step; the last four add up to ``span_ns`` exactly."""

    rank: int  # Global rank.
    step: int  # Step number.
    span_ns: int  # Duration of the step on this rank; the other four add up to it exactly.
    computation_ns: int  # Time in which at least one computation kernel or operator runs.
    # Communication that does not overlap with computation, plus time blocked in gloo messages.
    exposed_comm_ns: int
    exposed_copy_ns: int  # Memory copies that overlap with neither computation nor communication.
    idle_ns: int  # The rest.


class RankBreakdown(Record, frozen=True, kw_only=True):
    """One rank over all analysed steps; the last four add up to ``span_ns`` exactly."""

    rank: int  # Global rank.
    span_ns: int  # Analysed time; the other four add up to it exactly.
    computation_ns: int  # Time in which at least one computation kernel or operator runs.
    # Communication that does not overlap with computation, plus time blocked in gloo messages.
    # ``overlap`` leaves the latter out, so its field of this name can be smaller.
    exposed_comm_ns: int
    exposed_copy_ns: int  # Memory copies that overlap with neither computation nor communication.
    idle_ns: int  # The rest.


class RankWaterfall(Record, frozen=True, kw_only=True):
    """One rank over all analysed steps; everything after ``span_ns`` adds up to it exactly."""

    rank: int  # Global rank; -1 for the sum over ranks.
    span_ns: int  # Analysed time; all other times add up to it exactly.
    computation_ns: int  # Time in which at least one computation kernel or operator runs.
    # Exposed communication while data moves, after all members have started.
    exposed_transfer_ns: int
    exposed_wait_ns: int  # Exposed waiting in a collective for its last member.
    exposed_p2p_wait_ns: int  # Exposed waiting in send and recv; in a pipeline this is bubble.
    # Exposed communication whose members could not be matched, so waiting and transfer cannot be
    # separated.
    exposed_comm_unsplit_ns: int
    exposed_copy_ns: int  # Memory copies that overlap with neither computation nor communication.
    idle_host_ns: int  # Idle because the CPU launched too late.
    idle_sync_ns: int  # Idle because the CPU had waited for the GPU in a call.
    idle_input_ns: int  # Idle while the training thread waited for input.
    # Idle between work launched in time and communication on another stream.
    idle_comm_wait_ns: int
    idle_unknown_ns: int  # Idle without a cause in the trace.
    idle_pause_ns: int = 0  # Idle because the CPU did something else than launching.


# Where each rank's time went: computation, exposed communication, exposed copies, idle ----------


class BreakdownResult(Result, frozen=True, kw_only=True):
    """Exclusive split of the analysed time; source: formula sheet, "Measured from traces"."""

    needs_traces = True

    ranks: tuple[RankBreakdown, ...]  # Each rank over all analysed steps.
    # Each rank and step. A large run lists the steps of only some ranks: an eighth are those whose
    # computation differs most from the median, and the rest are evenly spaced.
    steps: tuple[StepBreakdown, ...]
    num_ranks_left_out: int = 0  # Ranks without rows in ``steps``; 0 with ``--every-step``.


class StepTimeResult(Result, frozen=True, kw_only=True):
    """Durations of the analysed steps; one value per step, the median over ranks."""

    num_steps: int  # Analysed steps.
    median_ns: int | None  # Median duration of a step; null if nothing marks steps.
    p95_ns: int | None  # 95th percentile of the durations; null as above.
    cv: float | None  # Standard deviation over mean of the durations; null as above.
    source: StepSource  # What marks the steps.
    note: str  # How the steps were found, one sentence.

    @property
    def marks_steps(self) -> bool:
        """Whether anything marks steps; False for a whole capture."""
        return self.median_ns is not None


# The lost-time waterfall: a step as an exact sum of its causes -----------------------------------


class ExposedCopies(Record, frozen=True, kw_only=True):
    """Copies of one direction; means over ranks and steps."""

    # ``HtoD``, ``DtoH``, ``DtoD``, ``PtoP``, ``HtoH`` or ``memset``; ``other`` if the name shows
    # none.
    direction: str
    # ``pinned`` or ``pageable``; empty if no CPU memory is involved or the name does not say.
    host_memory: str
    num_per_step: float  # Number of copies.
    bytes_per_step: float | None  # Bytes that they move; null if the size of any copy is unknown.
    exposed_ns_per_step: int  # Time during which only such copies run.
    # The outermost tensor operators that launch most of them, at most three; empty if they are
    # unknown, or if copies are exposed for less than 5 % of the step.
    operators: tuple[str, ...] = ()


class WaterfallResult(Result, frozen=True, kw_only=True):
    """Each rank and the sum over ranks; divide by ``num_ranks * num_steps`` for a mean step."""

    needs_traces = True

    num_ranks: int  # Ranks in the sum.
    num_steps: int  # Analysed steps, 1 for a whole capture.
    ranks: tuple[RankWaterfall, ...]  # Each rank over all analysed steps.
    all: RankWaterfall | None  # Sum over ranks, with ``rank`` -1; null if nothing was measured.
    # Copies by direction and kind of CPU memory, most exposed first.
    copies: tuple[ExposedCopies, ...] = ()
