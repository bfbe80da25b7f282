"""Who made the others wait, how long per step, in which pattern, and why."""

from __future__ import annotations

from distprof.analyzers.result import Record, Result
from distprof.terms import StragglerCause, StragglerPattern

__all__ = ["RankStraggler", "StepBlame", "StragglersResult"]


class RankStraggler(Record, frozen=True, kw_only=True):
    """What one rank cost the others.

    Args:
        lost_ns_per_step: Exposed wait of a typical other member, summed over the collectives in
            which this rank came last, per step. Waits below the clock residual count nothing.
        share_of_step_ratio: The same over the median step time.
        late_ratio: Share of judged collectives in which this rank came last.
        pattern: How its lateness is spread over steps; ``none`` when it is not worth naming.
        cause: Why, ``unknown`` where the evidence is not in the traces.
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


class StepBlame(Record, frozen=True, kw_only=True):
    """One step: what was lost to late ranks, and the rank that cost most (None when nobody)."""

    step: int
    lost_ns: int
    rank: int | None
    rank_lost_ns: int


class StragglersResult(Result, frozen=True, kw_only=True):
    """Ranks by what they cost, dearest first; ``pattern`` is that of the run as a whole."""

    ranks: tuple[RankStraggler, ...]
    steps: tuple[StepBlame, ...]
    pattern: StragglerPattern
    lost_ns_per_step: int  # all ranks
    num_judged: int  # matched collectives with a spread above the clock residual or below it
    num_below_residual: int
