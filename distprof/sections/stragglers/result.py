"""Ranks that leave their device idle while others wait for their messages.

In a pipeline, or a ring, ranks wait for each other in sends and receives, and of those it is not
known who came last. But a rank whose host stalls idles, and does not wait, longer than its peers
(:mod:`distprof.sections.own_time`), and the others wait for messages meanwhile.
"""

from __future__ import annotations

from distprof.schema import Record
from distprof.sections.base import Result
from distprof.sections.stragglers.links import SlowLink
from distprof.sections.stragglers.sequences import SequenceImbalance
from distprof.terms import StragglerCause, StragglerPattern

__all__ = ["MessageRank", "MessagesResult", "RankStraggler", "StepBlame", "StragglersResult"]


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
    """Ranks that exchange messages, ascending; empty where nobody waits for one.

    Args:
        ranks: One row per rank.
        step_ns: Mean step that the times are parts of, None where there is none.
    """

    needs_traces = True

    ranks: tuple[MessageRank, ...] = ()
    step_ns: int | None = None


# Who made the others wait, how long per step, in which pattern, and why --------------------------


class RankStraggler(Record, frozen=True, kw_only=True):
    """What one rank cost the others.

    Args:
        lost_ns_per_step: Exposed wait of a typical other member, summed over the collectives that
            this rank made late, each weighted with its members, as a mean over all other ranks and
            steps. Lateness handed on to other groups is among it, waits below the clock residual
            are not.
        share_of_step_ratio: The same over the mean step of all ranks.
        late_ratio: Share of its judged collectives in which this rank came last, whoever is to
            blame.
        pattern: How its lateness is spread over steps; ``none`` when it is not worth naming.
        cause: Why, ``unknown`` where the evidence is not in the traces.
        detail: What of that, where it is known: ``gc`` (garbage collection), ``throttled``,
            ``low_clocks``, ``sequence_length``, ``tokens``; empty otherwise.
        confidence: 0 to 1, that the rank is rightly named.
        evidence: What pattern and cause rest on, one sentence each.
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


class StepBlame(Record, frozen=True, kw_only=True):
    """One step: what was lost to late ranks, and the rank that cost most (None when nobody)."""

    step: int
    lost_ns: int
    rank: int | None
    rank_lost_ns: int


class StragglersResult(Result, frozen=True, kw_only=True):
    """Ranks by what they cost, dearest first; ``pattern`` is that of the run as a whole.

    ``links``: groups whose transfers take longer than the same of other groups, for which no rank
    is to blame. ``sequences``: computation that differs by sequence lengths, None where it does
    not, or where nothing tells.
    """

    needs_traces = True

    ranks: tuple[RankStraggler, ...]
    steps: tuple[StepBlame, ...]
    pattern: StragglerPattern
    lost_ns_per_step: int  # all ranks
    num_judged: int  # matched collectives with a spread above the clock residual or below it
    num_below_residual: int
    links: tuple[SlowLink, ...] = ()
    sequences: SequenceImbalance | None = None
