"""Which ranks made the others wait, whose messages are held up, and which links are slow.

Ranks that exchange messages have a separate result (:class:`MessagesResult`). In a pipeline or a
ring, ranks wait for each other in sends and receives, and it is unknown which rank came last.
"""

from __future__ import annotations

from functools import partial
from typing import Literal

from distprof.artefacts.record import Record
from distprof.bounds import table_beside
from distprof.sections.base import Result
from distprof.terms import StragglerCause, StragglerPattern
from distprof.units import fold_ranks

words = partial(table_beside, __package__, "words.toml")

EXPLAINS = 0.5
"""Share of a rank's lateness, or cost, that a cause must explain."""

COLLECTIONS = "gc"
"""Detail of a cause: Python's garbage collector runs."""

MEMORY_CALLS = "memory"
"""Detail of a cause: the CPU allocates and frees GPU memory."""

STALL = "stall"
"""Detail of a cause: a few launches of one kernel take far longer than all others of it."""

PAUSED_FOR = "pause "
"""Prefix of a detail of a cause: the name of a range that spans the pause of the CPU."""


class SlowTransfers(Record, frozen=True, kw_only=True):
    """Transfers over a slow link, of one kind and size among the same ranks."""

    ranks: tuple[int, ...]  # All ranks that take part.
    kind: str  # Kind of the collective or message.
    bytes: int | None  # Their size, None if unknown.
    transfer_ns: int  # Median transfer time.
    others_ns: int  # Median of the same transfers among other ranks.


class SlowLink(Record, frozen=True, kw_only=True):
    """Ranks whose transfers take longer than the same of other groups, or of other steps."""

    # Ranks that the slow transfers have in common; one of their links is slow. All ranks of the
    # axis if its groups are slow together for a time.
    ranks: tuple[int, ...]
    nodes: tuple[str, ...]  # Their nodes, as far as known.
    axis: str  # Mesh axis or description of their groups.
    kind: str  # Kind of the collectives that lose most.
    bytes: int | None  # Their size, None if unknown.
    transfer_ns: int  # Median of their transfers.
    # Median of the other groups' transfers; of the other steps' if all groups are slow together.
    others_ns: int
    ratio: float  # ``transfer_ns`` over ``others_ns``.
    num_compared: int  # Number of other groups; 0 if all are slow together.
    steps: tuple[int, ...] = ()  # Numbers of the steps in which they are slow; empty for all steps.
    num_steps: int = 0  # Number of steps that were compared.
    lost_ns_per_step: int  # Exposed transfer above ``others_ns``, mean per step.
    share_of_step_ratio: float  # The same over the mean step.
    transfers: tuple[SlowTransfers, ...] = ()  # All transfers that the link slows down.

    @property
    def scenario(self) -> str:
        """Key of the simulation in which these transfers take as long as others."""
        when = f" in steps {fold_ranks(self.steps)}" if self.steps else ""
        return f"link {fold_ranks(self.ranks)}{when}"


class SequenceImbalance(Record, frozen=True, kw_only=True):
    """Computation that differs between ranks with sequence lengths, differently in each step."""

    # What shows it: tokens of the step logs, or attention in the traces.
    evidence: Literal["tokens", "attention"]
    correlation: float  # Correlation of the evidence with the ranks' computation above the mean.
    max_over_mean: float  # The busiest rank's computation over the mean, mean over steps.
    # Standard deviation over mean of attention between the ranks of a step.
    attention_spread: float | None
    rest_spread: float | None  # The same for all other computation.
    lost_ns_per_step: int  # The busiest rank's computation less the mean, mean over steps.
    share_of_step_ratio: float  # The same over the mean step.
    ranks: tuple[int, ...]  # Ranks compared.


class MessageRank(Record, frozen=True, kw_only=True):
    """One rank's mean step."""

    rank: int  # Global rank.
    wait_ns_per_step: int  # Exposed waiting in sends and receives.
    idle_ns_per_step: int  # Idle time that its CPU is to blame for.
    # The same above the median of its peers: ranks that hold the same pipeline stages, else all; 0
    # if it idles less than they do.
    late_ns_per_step: int
    chance: float  # Probability that identical ranks show this, at most 1.


class MessagesResult(Result, frozen=True, kw_only=True):
    """Ranks that exchange messages, ascending; empty if no rank waits for one."""

    needs_traces = True

    ranks: tuple[MessageRank, ...] = ()  # One row per rank.
    step_ns: int | None = None  # Mean step that the times are parts of, None if there is none.


class RankStraggler(Record, frozen=True, kw_only=True):
    """The cost of one rank to the others."""

    rank: int  # Global rank.
    # Exposed wait of a typical other member, summed over the collectives that this rank made late,
    # each weighted with its members, as a mean over all other ranks and steps. It includes lateness
    # propagated to other groups, but no waits below the clock residual.
    lost_ns_per_step: int
    share_of_step_ratio: float  # The same over the mean step of all ranks.
    # Share of its judged collectives in which this rank came last, whichever rank is to blame.
    late_ratio: float | None
    # How its lateness is spread over steps; ``none`` if it is not worth naming.
    pattern: StragglerPattern
    cause: StragglerCause  # Why, ``unknown`` if the traces do not show it.
    confidence: float  # Confidence that the rank is rightly named, 0 to 1.
    evidence: tuple[str, ...] = ()  # Evidence for pattern and cause, one sentence each.
    # Detail of the cause if known: ``gc`` (garbage collection), ``throttled``, ``low_clocks``,
    # ``sequence_length``, ``tokens``, ``inputs``, ``experts`` (they get more tokens), ``memory``
    # (calls that allocate and free GPU memory), ``pause NAME`` (its CPU is in this range),
    # ``stall`` (a few launches of one kernel take far longer than the others); empty otherwise.
    detail: str = ""
    # Confidence that the cause is right if the rank is, 0 to 1; 0 if the cause is unknown.
    cause_confidence: float = 0.0


class StragglerSet(Record, frozen=True, kw_only=True):
    """Ranks that are slow for one reason, judged by their own time and that of the other ranks."""

    ranks: tuple[int, ...]  # Global ranks; one, or several that are slow together or alternately.
    # What these ranks and no others have in common: ``node``, ``stage``, ``group``, ``rail``; empty
    # if nothing is known.
    shares: str = ""
    name: str = ""  # Name of what they have in common, for example of the node.
    pattern: StragglerPattern  # How the slowness is spread over steps.
    steps: tuple[int, ...] = ()  # Step numbers in which they are slow; empty for all steps.
    # Step numbers of each of the ranks; empty for all steps.
    steps_by_rank: tuple[tuple[int, ...], ...] = ()
    # The first slow step; null if the slowness lasts from the beginning or does not last.
    since_step: int | None = None
    cause: StragglerCause  # Why, ``unknown`` if the traces do not show it.
    detail: str = ""  # Detail of the cause, as in a straggler's.
    # How many times longer all-to-alls take than with even traffic; null if no all-to-all of known
    # size was recorded.
    exchange_ratio: float | None = None
    # Whether the others would wait for the set if they did not wait for another rank.
    is_hidden: bool = False
    # How long the others wait for the set, or would wait if it is hidden, mean over all steps.
    lost_ns_per_step: int
    share_of_step_ratio: float  # The same over the mean step.
    confidence: float  # Confidence that these ranks and no others are slow, 0 to 1.
    # Confidence that the cause is right if the ranks are, 0 to 1; 0 if the cause is unknown.
    cause_confidence: float
    evidence: tuple[str, ...] = ()  # Evidence for ranks and cause, one sentence each.
    scenario: str  # Key of the simulation in which all of them keep up.


class StepBlame(Record, frozen=True, kw_only=True):
    """The time that one step lost to late ranks, and the rank that cost most."""

    step: int  # Step number.
    lost_ns: int  # Time that a typical rank lost to late ranks in this step.
    rank: int | None  # The rank that cost most; null if none did.
    rank_lost_ns: int  # Time that this rank cost.


class StragglersResult(Result, frozen=True, kw_only=True):
    """Ranks that make the others wait, and other reasons why ranks wait for each other."""

    needs_traces = True

    ranks: tuple[RankStraggler, ...]  # Ranks by their cost to the others, most expensive first.
    steps: tuple[StepBlame, ...]  # Each step's loss and the rank that cost most in it.
    pattern: StragglerPattern  # How lateness is spread over steps in the run as a whole.
    lost_ns_per_step: int  # Sum of the costs in ``ranks``.
    num_judged: int  # Matched collectives that were judged, including ``num_below_residual``.
    # Judged collectives whose members start closer together than the clock residual: no rank is
    # blamed for them.
    num_below_residual: int
    # Groups whose transfers take longer than those of other groups, with no rank to blame.
    links: tuple[SlowLink, ...] = ()
    # Computation that differs with sequence lengths; null if it does not, or nothing shows it.
    sequences: SequenceImbalance | None = None
    # Ranks that are slow for one reason, most expensive first; each rank is also in ``ranks``.
    sets: tuple[StragglerSet, ...] = ()
    # Waiting for ranks that may have waited for an unrecorded rank themselves, as a mean over all
    # ranks; no recorded rank is blamed for it.
    unrecorded_ns_per_step: int = 0
