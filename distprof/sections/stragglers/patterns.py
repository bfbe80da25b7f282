"""Whether a rank is late more often than by chance: persistent, transient, rotating or none.

In a healthy job some rank is last at every collective, and waiting adds up. A rank is named only if
it costs at least :data:`MIN_SHARE` of the step and one of these holds:

- *chance*: its share of each step's loss is too large for identical ranks. Under that hypothesis
  its share in a step is one of that step's shares drawn at random. The probability of a mean this
  large is bounded by Chernoff's inequality with the exact moment generating function, times the
  number of ranks.
- *steady*: over at least three steps its mean lateness is beyond chance by Student's t test, or
  :data:`STEADY` times its standard deviation.
- *own time*: over at least three steps one part of its own time
  (:mod:`distprof.sections.own_time`) is longer than its peers' beyond chance (t test), by at least
  :data:`EXPLAINS` of the rank's cost.
- *standing out*: at single collectives it arrives after the second last by :data:`STAND_OUT` times
  the usual spread of the other members (its 90th percentile).
"""

from __future__ import annotations

import math

import msgspec
import numpy as np
from msgspec.structs import replace

from distprof.run.run import Run
from distprof.schema import Floats
from distprof.sections.own_time import OwnTime, chance_of_mean
from distprof.sections.stragglers import EXPLAINS
from distprof.sections.stragglers.arrivals import Blame
from distprof.terms import MeshAxis, StragglerPattern
from distprof.units import format_ratio

MIN_SHARE = 0.01
"""Share of the step below which no rank is named."""

ALPHA = 0.002
"""Accepted probability of naming a rank of a healthy job."""

ALPHA_OWN_TIME = 0.01
"""The same for the test by own time, which the rank's cost must confirm."""

MOST_STEPS = 0.6
"""Share of the steps in which a persistent straggler (or all of them together) must cost most."""

STEADY = 10.0
STAND_OUT = 3.0

MIN_STALL = 0.1
"""Share of a step that a late arrival must cost: every machine has small stalls."""

LONE_STALL = 0.25
"""The same for a rank that stalls in one step only."""

DOMINANT = 0.8
"""Share of the cost of all late arrivals from which one rank alone is named."""

MIN_STEPS = 3
"""Fewer steps cannot distinguish persistent from transient."""


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict on one rank."""

    position: int  # Its position among the analysed ranks.
    pattern: StragglerPattern  # Never ``none``.
    confidence: float  # 0 to 1, before gaps in the capture are taken into account.
    steps: tuple[int, ...]  # Indices of the steps in which it was late.
    why: tuple[str, ...]  # Reasons, one sentence each.
    part: str = ""  # Part of own time that proves it; empty if something else does.


def find_patterns(
    blame: Blame, step_ns: float, own_time: OwnTime | None = None
) -> tuple[Verdict, ...]:
    """Verdicts on the ranks worth naming; empty for a healthy job."""
    num_ranks, num_steps = blame.lost_ns.shape
    if num_ranks < 2 or blame.num_judged == 0:
        return ()
    persistent = proven_by_own_time(blame, step_ns, own_time)
    if num_steps >= MIN_STEPS:
        persistent = persistent or _persistent(blame, step_ns)
    return persistent or _by_events(blame, step_ns)


def chance_of_share(shares: Floats, position: int) -> float:
    """Upper bound of the probability that any rank of a healthy job gets a share this large.

    Shares have shape ``(P, S)``; columns sum to 1.
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


def proven_by_own_time(
    blame: Blame, step_ns: float, own_time: OwnTime | None
) -> tuple[Verdict, ...]:
    """Ranks whose own time shows why the others wait for them; at most half of all."""
    if own_time is None or own_time.total_excess.shape != blame.lost_ns.shape:
        return ()
    if blame.lost_ns.shape[1] < MIN_STEPS:
        return ()
    total = np.median(own_time.total_excess, axis=1)  # a rank that gains elsewhere is not late
    cost = blame.lost_ns.mean(axis=1)
    min_excess = np.maximum(MIN_SHARE * step_ns, EXPLAINS * cost)
    costs = (cost >= MIN_SHARE * step_ns) & (cost >= EXPLAINS * cost.max())
    num_tests = len(cost) * len(own_time.parts)
    parts = list(own_time.parts)
    chance = np.ones((len(parts), len(cost)))
    for row, part in enumerate(parts):
        excess = own_time.excess[part]
        usual = np.median(excess, axis=1)
        counts = costs & (excess.mean(axis=1) >= min_excess) & (total >= EXPLAINS * usual)
        chance[row] = np.where(counts, np.minimum(1.0, num_tests * own_time.chance(part)), 1.0)
    best, proof = chance.min(axis=0), chance.argmin(axis=0)
    named = np.flatnonzero(best <= ALPHA_OWN_TIME).tolist()
    if len(named) > len(cost) / 2:
        return ()
    # Late steps alone would be the noisiest ones.
    every_step = tuple(range(blame.lost_ns.shape[1]))
    return tuple(
        replace(
            _persistent_verdict(blame, position, min(0.99, 1 - float(best[position]))),
            steps=every_step,
            part=parts[proof[position]],
        )
        for position in named
    )


def _persistent(blame: Blame, step_ns: float) -> tuple[Verdict, ...]:
    with_loss = blame.lost_ns[:, blame.lost_ns.sum(axis=0) > 0]
    shares = with_loss / with_loss.sum(axis=0)
    suspects: dict[int, float] = {}
    costly = blame.lost_ns.mean(axis=1) >= MIN_SHARE * step_ns
    for position in np.flatnonzero(costly).tolist():
        chance = chance_of_share(shares, position)
        if chance <= ALPHA:
            suspects[position] = min(0.99, 1 - chance)
        elif _is_steady(blame, position):
            suspects[position] = 0.9
    if not suspects or len(suspects) > len(shares) / 2:
        return ()
    if np.isin(np.argmax(with_loss, axis=0), list(suspects)).mean() < MOST_STEPS:
        return ()
    return tuple(_persistent_verdict(blame, *suspect) for suspect in suspects.items())


def _is_steady(blame: Blame, position: int) -> bool:
    """Whether a rank is late in each step, by about the same time or beyond chance."""
    lateness = blame.lateness_ns[position]
    chance = len(blame.ranks) * float(chance_of_mean(lateness[None])[0])
    return chance <= ALPHA or bool(lateness.mean() > STEADY * lateness.std(ddof=1))


def _persistent_verdict(blame: Blame, position: int, confidence: float) -> Verdict:
    lost = blame.lost_ns
    num_top = int((np.argmax(lost, axis=0) == position).sum())
    last = format_ratio(float(blame.late[position] / max(int(blame.judged[position]), 1)))
    return Verdict(
        position=position,
        pattern=StragglerPattern.PERSISTENT,
        confidence=confidence,
        steps=tuple(np.flatnonzero(lost[position] > 0).tolist()),
        why=(
            f"cost the others most in {num_top} of {lost.shape[1]} steps; "
            f"last at {last} of its collectives",
        ),
    )


def _by_events(blame: Blame, step_ns: float) -> tuple[Verdict, ...]:
    """Verdicts from late arrivals that stand out: of few ranks (transient) or many (rotating)."""
    events = _events(blame, step_ns)
    total, per_rank = events.sum(), events.sum(axis=1)
    if total < MIN_SHARE * step_ns * blame.lost_ns.shape[1]:
        return ()
    involved = np.flatnonzero(per_rank >= 0.02 * total).tolist()
    dominant = np.flatnonzero(per_rank >= DOMINANT * total).tolist()
    if dominant:
        return (_transient_verdict(events, dominant[0]),)
    if len(involved) >= MIN_STEPS:
        return tuple(
            Verdict(
                position=position,
                pattern=StragglerPattern.ROTATING,
                confidence=0.7,
                steps=tuple(steps),
                why=(
                    f"one of {int((per_rank > 0).sum())} ranks that alternately arrive far behind "
                    f"all others, this one in {len(steps)} of {events.shape[1]} steps",
                ),
            )
            for position in involved
            for steps in [np.flatnonzero(events[position] > 0).tolist()]
        )
    if 2 * len(involved) >= len(per_rank):
        return ()  # half of all ranks, each occasionally: no rank in particular
    return tuple(_transient_verdict(events, position) for position in involved)


def _events(blame: Blame, step_ns: float) -> Floats:
    """Cost of late arrivals that stand out, shape ``(P, S)``: at most the margin to the next."""
    # Propagated lateness must stand out at its origin. A rank that stalls in only one step must
    # stall for longer.
    arrivals, (num_ranks, num_steps) = blame.arrivals, blame.lost_ns.shape
    # Usual spread of the members other than the last; of two members, their usual distance.
    several = arrivals.size > 2
    distance = arrivals.rest_spread_ns[several] if several.any() else arrivals.margin_ns
    usual_ns = float(np.percentile(distance, 90))
    stands_out = arrivals.clear & (arrivals.margin_ns >= STAND_OUT * usual_ns)
    stands_out = np.where(arrivals.root >= 0, stands_out[arrivals.root], False)
    excess = np.minimum(arrivals.cost_ns, arrivals.margin_ns)
    stands_out &= excess >= MIN_STALL * step_ns
    cell = arrivals.blamed[stands_out] * num_steps + arrivals.step[stands_out]
    sums = np.bincount(cell, weights=excess[stands_out], minlength=num_ranks * num_steps)
    events = sums.astype(np.float64).reshape(num_ranks, num_steps)
    once = (events > 0).sum(axis=1, keepdims=True) == 1
    return np.where(once & (events < LONE_STALL * step_ns), 0.0, events)


def _transient_verdict(events: Floats, position: int) -> Verdict:
    steps = np.flatnonzero(events[position] > 0)
    num_steps = events.shape[1]
    where = f"{len(steps)} of {num_steps} steps" if num_steps > 1 else "the only window"
    why = [f"arrived far behind all others in {where}"]
    lasting = num_steps >= MIN_STEPS and len(steps) >= MOST_STEPS * num_steps
    if num_steps < MIN_STEPS:
        windows = "one window was" if num_steps == 1 else f"{num_steps} steps were"
        why.append(f"only {windows} analysed, too few to show whether it lasts")
    return Verdict(
        position=position,
        pattern=StragglerPattern.PERSISTENT if lasting else StragglerPattern.TRANSIENT,
        confidence=0.8 if num_steps >= MIN_STEPS else 0.6,
        steps=tuple(steps.tolist()),
        why=tuple(why),
    )


# Which rank causes the lateness of a whole pipeline -----------------------------------------------


def blame_of_pipelines(blame: Blame, own_time: OwnTime, run: Run) -> Blame | None:
    """The blame with all costs of a pipeline's ranks on one of them; None without pipelines.

    Costs are means over the ranks of other pipelines, because ranks of the same pipeline wait for
    messages instead.
    """
    position = {rank: number for number, rank in enumerate(blame.ranks)}
    groups = dict.fromkeys(g.ranks for g in run.topology.groups if g.axis is MeshAxis.PP)
    pipelines = [[position[rank] for rank in ranks if rank in position] for ranks in groups]
    pipelines = [members for members in pipelines if len(members) > 1]
    num_stages = len({tuple(peers) for peers in own_time.peers})
    num_others = len(blame.ranks) - num_stages
    if len(pipelines) < 2 or num_stages < 2 or num_others < 1:
        return None
    excess = own_time.total_excess.mean(axis=1)
    scale = (len(blame.ranks) - 1) / num_others
    lost = np.zeros_like(blame.lost_ns)
    for members in pipelines:
        culprit = members[int(np.argmax(excess[members]))]
        lost[culprit] = blame.lost_ns[members].sum(axis=0) * scale
    return replace(blame, lost_ns=lost)
