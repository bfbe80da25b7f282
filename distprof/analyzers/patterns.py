"""Is a rank late more often than chance makes one: persistent, transient, rotating or nobody.

In a healthy job some rank is last at every collective, and waiting adds up. A rank is named only if
it costs at least :data:`MIN_SHARE` of the step and one of these holds:

- *chance*: its share of each step's loss is too large for ranks that are all alike. Under that
  hypothesis its share in a step is one of that step's shares drawn at random; the probability that
  their mean gets so large is bounded by Chernoff's inequality with the exact moment generating
  function, times the number of ranks.
- *steady*: over at least three steps its mean lateness is :data:`STEADY` times its standard
  deviation.
- *standing out*: at single collectives it comes later than the second last by :data:`STAND_OUT`
  times the distance at which the other members usually lie apart (their 90th percentile).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from distprof.analyzers.arrivals import Arrivals, Blame
from distprof.terms import StragglerPattern
from distprof.units import format_ratio

__all__ = ["ALPHA", "MIN_SHARE", "MOST_STEPS", "Verdict", "chance_of_share", "find_patterns"]

MIN_SHARE = 0.01
"""Share of the step below which nobody is named."""
ALPHA = 0.002
"""Chance of naming a rank of a healthy job that is accepted."""
MOST_STEPS = 0.6
"""Share of the steps in which a persistent straggler (or all of them together) costs most."""
STEADY = 10.0
STAND_OUT = 3.0
MIN_STEPS = 3
"""Fewer steps cannot tell persistent from transient."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What was concluded about one rank.

    Args:
        position: Among the analysed ranks.
        pattern: Never ``none``.
        confidence: 0 to 1, before what the capture lacks is taken into account.
        steps: Indices of the steps in which it was late.
        why: One sentence each.
    """

    position: int
    pattern: StragglerPattern
    confidence: float
    steps: tuple[int, ...]
    why: tuple[str, ...]


def find_patterns(blame: Blame, step_ns: float) -> tuple[Verdict, ...]:
    """Verdicts on the ranks worth naming; empty for a healthy job.

    Args:
        blame: What each rank cost.
        step_ns: Typical step time, at least 1.
    """
    num_ranks, num_steps = blame.lost_ns.shape
    if num_ranks < 2 or blame.num_judged == 0:
        return ()
    persistent = _persistent(blame, step_ns) if num_steps >= MIN_STEPS else ()
    if persistent:
        return persistent
    return _by_events(blame, step_ns)


def chance_of_share(shares: NDArray[np.float64], position: int) -> float:
    """Upper bound of the chance that any rank of a healthy job gets so large a share.

    Args:
        shares: Each step's loss divided up between ranks, shape ``(P, S)``, columns sum to 1.
        position: The rank whose mean share is judged.
    """
    num_ranks, num_steps = shares.shape
    if num_steps == 0:
        return 1.0
    observed = float(shares[position].sum())
    logs = [
        float(np.log(np.exp(theta * (shares - 1)).mean(axis=0)).sum())
        + theta * (num_steps - observed)
        for theta in np.geomspace(0.05, 200, 60).tolist()
    ]
    chance: float = num_ranks * math.exp(min(logs))
    return min(1.0, chance)


def _persistent(blame: Blame, step_ns: float) -> tuple[Verdict, ...]:
    lost = blame.lost_ns
    steps_with_loss = lost.sum(axis=0) > 0
    shares = lost[:, steps_with_loss] / lost[:, steps_with_loss].sum(axis=0)
    suspects: dict[int, float] = {}
    for position in np.flatnonzero(lost.mean(axis=1) >= MIN_SHARE * step_ns).tolist():
        chance = chance_of_share(shares, position)
        if chance > ALPHA and not _is_steady(blame.lateness_ns[position]):
            continue
        suspects[position] = min(0.99, 1 - chance) if chance <= ALPHA else 0.9
    top = np.argmax(lost[:, steps_with_loss], axis=0)
    if not suspects or len(suspects) > lost.shape[0] / 2:
        return ()
    if np.isin(top, list(suspects)).mean() < MOST_STEPS:
        return ()
    return tuple(
        _persistent_verdict(blame, position, confidence)
        for position, confidence in suspects.items()
    )


def _is_steady(lateness: NDArray[np.float64]) -> bool:
    """Whether a rank is late by much the same time in each step."""
    return bool(lateness.mean() > STEADY * lateness.std(ddof=1))


def _persistent_verdict(blame: Blame, position: int, confidence: float) -> Verdict:
    lost = blame.lost_ns
    late = np.flatnonzero(lost[position] > 0)
    num_top = int((np.argmax(lost, axis=0) == position).sum())
    return Verdict(
        position=position,
        pattern=StragglerPattern.PERSISTENT,
        confidence=confidence,
        steps=tuple(late.tolist()),
        why=(
            f"cost the others most in {num_top} of {lost.shape[1]} steps; "
            f"last at {format_ratio(_late_share(blame, position))} of its collectives",
        ),
    )


def _late_share(blame: Blame, position: int) -> float:
    return float(blame.late[position] / max(int(blame.judged[position]), 1))


def _by_events(blame: Blame, step_ns: float) -> tuple[Verdict, ...]:
    """Single late arrivals that stand out: one rank's (transient) or in turn many ranks'."""
    events = _events(blame)
    num_steps = blame.lost_ns.shape[1]
    total = events.sum()
    if total < MIN_SHARE * step_ns * num_steps:
        return ()
    per_rank = events.sum(axis=1)
    involved = np.flatnonzero(per_rank >= 0.02 * total)
    dominant = np.flatnonzero(per_rank > 0.5 * total)
    if len(dominant):
        return (_transient_verdict(events, int(dominant[0])),)
    if len(involved) < MIN_STEPS:
        return tuple(_transient_verdict(events, int(position)) for position in involved)
    return tuple(_rotating_verdict(events, int(position)) for position in involved)


def _events(blame: Blame) -> NDArray[np.float64]:
    """What standing out cost, shape ``(P, S)``: no more than the margin to the second last.

    Lateness handed on stands out where it came from.
    """
    arrivals = blame.arrivals
    stands_out = arrivals.clear & (arrivals.margin_ns >= STAND_OUT * _usual_distance(arrivals))
    stands_out = np.where(arrivals.root >= 0, stands_out[arrivals.root], False)
    excess = np.minimum(arrivals.cost_ns, arrivals.margin_ns)[stands_out]
    num_ranks, num_steps = blame.lost_ns.shape
    cell = arrivals.blamed[stands_out] * num_steps + arrivals.step[stands_out]
    sums = np.bincount(cell, weights=excess.astype(np.float64), minlength=num_ranks * num_steps)
    return sums.astype(np.float64).reshape(num_ranks, num_steps)


def _usual_distance(arrivals: Arrivals) -> float:
    """How far members other than the last usually lie apart.

    Between two members there are no others: then it is how far the two usually lie apart.
    """
    three_or_more = arrivals.size > 2
    if three_or_more.any():
        return float(np.percentile(arrivals.rest_spread_ns[three_or_more], 90))
    return float(np.percentile(arrivals.margin_ns, 90))


def _transient_verdict(events: NDArray[np.float64], position: int) -> Verdict:
    steps = np.flatnonzero(events[position] > 0)
    num_steps = events.shape[1]
    where = f"{len(steps)} of {num_steps} steps" if num_steps > 1 else "the only window"
    why = [f"arrived far behind all others in {where}"]
    lasting = num_steps >= MIN_STEPS and len(steps) >= MOST_STEPS * num_steps
    if num_steps < MIN_STEPS:
        windows = "one window was" if num_steps == 1 else f"{num_steps} steps were"
        why.append(f"only {windows} analysed: whether it lasts cannot be told")
    return Verdict(
        position=position,
        pattern=StragglerPattern.PERSISTENT if lasting else StragglerPattern.TRANSIENT,
        confidence=0.8 if num_steps >= MIN_STEPS else 0.6,
        steps=tuple(steps.tolist()),
        why=tuple(why),
    )


def _rotating_verdict(events: NDArray[np.float64], position: int) -> Verdict:
    steps = np.flatnonzero(events[position] > 0)
    num_involved = int((events.sum(axis=1) > 0).sum())
    return Verdict(
        position=position,
        pattern=StragglerPattern.ROTATING,
        confidence=0.7,
        steps=tuple(steps.tolist()),
        why=(
            f"one of {num_involved} ranks that in turn arrive far behind all others; "
            f"its turn in {len(steps)} of {events.shape[1]} steps",
        ),
    )
