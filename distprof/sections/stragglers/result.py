"""Who made the others wait, whose messages are held up, which links are slow.

Ranks that exchange messages stand apart (:class:`MessagesResult`): in a pipeline, or a ring, ranks
wait for each other in sends and receives, and of those it is not known who came last.
"""

from __future__ import annotations

from typing import Literal

from distprof.artefacts.record import Record
from distprof.sections.base import Result
from distprof.terms import StragglerCause, StragglerPattern
from distprof.units import fold_ranks

__all__ = [
    "MessageRank",
    "MessagesResult",
    "RankStraggler",
    "SequenceImbalance",
    "SlowLink",
    "StepBlame",
    "StragglerSet",
    "StragglersResult",
]


class SlowTransfers(Record, frozen=True, kw_only=True):
    """Transfers over a slow link, of one kind and size among the same ranks.

    Args:
        ranks: All that take part.
        kind: Of the collective or message.
        bytes: Their size, None when unknown.
        transfer_ns: Median of them.
        others_ns: Median of the same among other ranks.
    """

    ranks: tuple[int, ...]
    kind: str
    bytes: int | None
    transfer_ns: int
    others_ns: int


class SlowLink(Record, frozen=True, kw_only=True):
    """Ranks whose transfers take longer than the same of other groups.

    Args:
        ranks: Those that the slow transfers have in common; one of their links is slow.
        nodes: Their nodes, as far as known.
        axis: Mesh axis or description of their groups.
        kind: Of the collectives that lose most.
        bytes: Their size, None when unknown.
        transfer_ns: Median of theirs.
        others_ns: Median of the other groups'.
        ratio: The one over the other.
        num_compared: Other groups.
        lost_ns_per_step: Exposed transfer beyond the other groups', mean per step.
        share_of_step_ratio: The same over the mean step.
        transfers: All that the link slows down.
    """

    ranks: tuple[int, ...]
    nodes: tuple[str, ...]
    axis: str
    kind: str
    bytes: int | None
    transfer_ns: int
    others_ns: int
    ratio: float
    num_compared: int
    lost_ns_per_step: int
    share_of_step_ratio: float
    transfers: tuple[SlowTransfers, ...] = ()

    @property
    def scenario(self) -> str:
        """Key of the simulation in which they take as long as others."""
        return f"link {fold_ranks(self.ranks)}"


class SequenceImbalance(Record, frozen=True, kw_only=True):
    """Computation that differs between ranks, in each step otherwise, by sequence lengths.

    Args:
        evidence: What it was told by: tokens of the step logs, or attention in the traces.
        correlation: Of what ranks compute beyond the mean with that.
        max_over_mean: The busiest rank's computation over the mean, mean over steps.
        attention_spread: Standard deviation over mean of attention between the ranks of a step.
        rest_spread: The same of all other computation.
        lost_ns_per_step: The busiest rank's computation less the mean, mean over steps.
        share_of_step_ratio: The same over the mean step.
        ranks: Ranks compared.
    """

    evidence: Literal["tokens", "attention"]
    correlation: float
    max_over_mean: float
    attention_spread: float | None
    rest_spread: float | None
    lost_ns_per_step: int
    share_of_step_ratio: float
    ranks: tuple[int, ...]


class MessageRank(Record, frozen=True, kw_only=True):
    """One rank's mean step.

    Args:
        rank: Global rank.
        wait_ns_per_step: Exposed waiting in sends and receives.
        idle_ns_per_step: Idle that its host is to blame for.
        late_ns_per_step: The same beyond the median of its peers: ranks that hold the same pipeline
            stages, else all; 0 if it idles less than they do.
        chance: That ranks which are all alike show it, at most 1.
    """

    rank: int
    wait_ns_per_step: int
    idle_ns_per_step: int
    late_ns_per_step: int
    chance: float


class MessagesResult(Result, frozen=True, kw_only=True):
    """Ranks that exchange messages, ascending; empty where no rank waits for one.

    Args:
        ranks: One row per rank.
        step_ns: Mean step that the times are parts of, None where there is none.
    """

    needs_traces = True

    ranks: tuple[MessageRank, ...] = ()
    step_ns: int | None = None


class RankStraggler(Record, frozen=True, kw_only=True):
    """What one rank cost the others.

    Args:
        rank: Global rank.
        lost_ns_per_step: Exposed wait of a typical other member, summed over the collectives that
            this rank made late, each weighted with its members, as a mean over all other ranks and
            steps. It includes lateness propagated to other groups, waits below the clock residual
            are not.
        share_of_step_ratio: The same over the mean step of all ranks.
        late_ratio: Share of its judged collectives in which this rank came last, whoever is to
            blame.
        pattern: How its lateness is spread over steps; ``none`` when it is not worth naming.
        cause: Why, ``unknown`` where the evidence is not in the traces.
        confidence: 0 to 1, that the rank is rightly named.
        cause_confidence: 0 to 1, that the cause is right if the rank is; 0 where it is unknown.
        evidence: What pattern and cause rest on, one sentence each.
        detail: What of that, where it is known: ``gc`` (garbage collection), ``throttled``,
            ``low_clocks``, ``sequence_length``, ``tokens``, ``experts`` (they get more tokens);
            empty otherwise.
    """

    rank: int
    lost_ns_per_step: int
    share_of_step_ratio: float
    late_ratio: float | None
    pattern: StragglerPattern
    cause: StragglerCause
    confidence: float
    evidence: tuple[str, ...] = ()
    detail: str = ""
    cause_confidence: float = 0.0


class StragglerSet(Record, frozen=True, kw_only=True):
    """Ranks that are slow for one reason, by their own time next to that of the other ranks.

    Args:
        ranks: Global ranks; one, or several that are slow together or in turn.
        shares: What these ranks and no others have in common: ``node``, ``stage``, ``group``,
            ``rail``; empty where nothing is known.
        name: Its name, for example of the node.
        pattern: How the slowness is spread over steps.
        steps: Step numbers in which they are slow; empty for all steps.
        steps_by_rank: For each of the ranks its steps, where these are not all steps.
        since_step: The step from which it lasts; null where it lasts from the beginning or does
            not last.
        cause: Why, ``unknown`` where the evidence is not in the traces.
        detail: As of a straggler.
        exchange_ratio: What the busiest of them exchanges in all-to-alls over what each rank of its
            group would if all exchanged the same; null where none of known size was recorded.
        is_hidden: Whether the others would wait for it if they did not wait for another rank.
        lost_ns_per_step: What the others wait for the set, mean over all steps; what they would
            wait, if it is hidden.
        share_of_step_ratio: The same over the mean step.
        confidence: 0 to 1, that these ranks and no others are slow.
        cause_confidence: 0 to 1, that the cause is right if the ranks are; 0 where it is unknown.
        evidence: What this rests on, one sentence each.
        scenario: Key of the simulation in which all of them keep up.
    """

    ranks: tuple[int, ...]
    shares: str = ""
    name: str = ""
    pattern: StragglerPattern
    steps: tuple[int, ...] = ()
    steps_by_rank: tuple[tuple[int, ...], ...] = ()
    since_step: int | None = None
    cause: StragglerCause
    detail: str = ""
    exchange_ratio: float | None = None
    is_hidden: bool = False
    lost_ns_per_step: int
    share_of_step_ratio: float
    confidence: float
    cause_confidence: float
    evidence: tuple[str, ...] = ()
    scenario: str


class StepBlame(Record, frozen=True, kw_only=True):
    """One step: what was lost to late ranks, and the rank that cost most (None without one).

    Args:
        step: Step number.
        lost_ns: What a typical rank lost to late ranks in this step.
        rank: The rank that cost most; null where none did.
        rank_lost_ns: What that rank cost.
    """

    step: int
    lost_ns: int
    rank: int | None
    rank_lost_ns: int


class StragglersResult(Result, frozen=True, kw_only=True):
    """Ranks by what they cost, most expensive first; ``pattern`` is that of the run as a whole.

    ``links``: groups whose transfers take longer than the same of other groups, for which no rank
    is to blame. ``sequences``: computation that differs by sequence lengths, None where it does
    not, or where nothing tells.

    Args:
        ranks: Ranks by what they cost the others, most first.
        steps: Each step's loss and the rank that cost most in it.
        pattern: How lateness is spread over steps in the run as a whole.
        lost_ns_per_step: Sum of what the ranks cost, each as in ``ranks``.
        num_judged: Matched collectives whose members start further apart than the clock residual,
            or closer.
        num_below_residual: Of these, closer than the residual: no rank is blamed for them.
        links: Groups whose transfers take longer than those of other groups, with no rank to blame.
        sequences: Computation that differs by sequence length; null where it does not, or nothing
            shows it.
        sets: Ranks that are slow for one reason, most expensive first; each of them is in ``ranks``
            too.
    """

    needs_traces = True

    ranks: tuple[RankStraggler, ...]
    steps: tuple[StepBlame, ...]
    pattern: StragglerPattern
    lost_ns_per_step: int
    num_judged: int
    num_below_residual: int
    links: tuple[SlowLink, ...] = ()
    sequences: SequenceImbalance | None = None
    sets: tuple[StragglerSet, ...] = ()
