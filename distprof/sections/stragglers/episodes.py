"""Ranks that are slow by their own time: one or a set, in all steps, from a step on, or in some.

Each part of own time of ranks that can be compared is a matrix of ranks and steps. A rank's level
is the median over the steps of its time less the median of each step.

- *Set.* With ranks in order of their levels, a gap divides a slow set from the others if it is at
  least :data:`GAP` of the set's distance from the others' median, and far wider than chance. At
  most half of the ranks are slow, so no rank is called slow because another one is fast.
- *From a step on.* Both the earlier and the later steps of a rank or set are even, and the later
  ones are higher by more than chance.
- *Noisy node.* All ranks of one node lose time, each in other steps, so that no rank alone differs
  by more than chance, but the node does.
- *Some steps.* Single cells are far above the usual, or several cells of one rank are, and together
  cost as much as slowness in all steps would. On three or more ranks the slowness rotates.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from distprof.sections.own_time import chance_of_mean
from distprof.sections.shares import chance_of_hits
from distprof.terms import StragglerPattern

_Floats = NDArray[np.float64]

GAP = 0.5
"""Gap between slow and other ranks, relative to the distance of the slow ranks from the others'
median."""

CHANCE = 0.002
"""Accepted probability that identical ranks show a set."""

CHANCE_OF_ONE = 0.02
"""The same for a single rank of a set, which the gap to all others confirms."""

LEAST_FREEDOM = 12
"""Degrees of freedom from which the noise of all ranks together is known well enough."""

BEYOND_NOISE = 6.0
"""Robust standard deviations from which a difference is not due to chance."""

EVEN = 0.5
"""Steps before a change stay below this share of the change, steps after it above."""

LONG = 0.6
"""Share of the steps from which slowness counts as lasting."""

SIGMA = 1.4826
"""Standard deviation of normal values over their median absolute deviation."""

USUAL = 0.35
"""Quantile of a rank's steps that shows its usual time, even if it is slow in half of them."""

MIN_AGAIN = 2
"""Steps in which a rank must be slow if none of them is worth reporting alone."""

LEAST_OF_NODE = 0.15
"""Mean excess of each rank of a noisy node, relative to the mean of all of its ranks."""

OVER_OTHERS = 2.0
"""The same, relative to the highest of all other ranks."""

MIN_STEPS = 3

MIN_ROTATING = 3
"""Fewer slow ranks do not count as rotating."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The smallest excess worth reporting."""

    lasting_ns: float  # Mean excess of a set over all steps.
    cell_ns: float  # Excess of a rank in a single step; infinite if single steps are not judged.
    # The same in each of several steps that together cost ``lasting_ns``, and in further steps of a
    # rank that is named anyway.
    again_ns: float
    tests: int = 1  # Number of matrices that are searched.


class Episode(msgspec.Struct, frozen=True, kw_only=True):
    """Slow ranks, and the steps in which they are slow."""

    pattern: StragglerPattern  # Never ``none``.
    # float64, shape ``(P, S)``: time above the other ranks; 0 outside the episode.
    excess_ns: _Floats
    # Index of the step from which it lasts; None if it does not begin at a later step.
    since: int | None = None
    chance: float = 0.0  # Probability that identical ranks show it.

    @property
    def positions(self) -> tuple[int, ...]:
        """Positions of its ranks, ascending."""
        return tuple(np.flatnonzero((self.excess_ns > 0).any(axis=1)).tolist())

    @property
    def steps(self) -> tuple[int, ...]:
        """Indices of its steps."""
        return tuple(np.flatnonzero((self.excess_ns > 0).any(axis=0)).tolist())

    @property
    def per_step_ns(self) -> float:
        """Excess of the slowest rank of each step, mean over all steps."""
        return float(self.excess_ns.max(axis=0).mean())


def find_episodes(values: _Floats, group: Sequence[int], limits: Limits) -> Iterator[Episode]:
    """Episodes among the ranks of a group, from own time in ns, shape ``(P, S)``."""
    chosen, rows = values[list(group)], np.asarray(group)
    if chosen.shape[0] < 2 or chosen.shape[1] < MIN_STEPS:
        return
    slow = _slow_set(chosen, limits)
    beyond = chosen - np.median(chosen[~slow], axis=0)
    rest = ~slow

    def lasting(mine: NDArray[Any], since: int | None, chance: float) -> Episode:
        excess = np.zeros(values.shape)
        excess[rows[mine], since:] = np.maximum(beyond[mine, since:], 0)
        pattern = StragglerPattern.PERSISTENT
        return Episode(pattern=pattern, excess_ns=excess, since=since, chance=chance)

    if slow.any():
        since = _begins(beyond[slow].mean(axis=0), limits)
        shift = beyond + np.median(beyond[rest])
        yield lasting(slow, since, _chance(shift, slow, limits) if since is None else 0.0)
    for row in np.flatnonzero(rest).tolist():
        since = _begins(beyond[row], limits)
        if since is not None:
            rest[row] = False
            yield lasting(np.array([row]), since, 0.0)
    yield from _in_some_steps(values.shape, rows, beyond, rest, limits)


def find_noisy_node(
    values: _Floats, nodes: Sequence[tuple[int, ...]], least_ns: float
) -> Episode | None:
    """The one node whose ranks all lose time, each in other steps, from their own time in ns."""
    found = []
    for node in map(list, nodes):
        rest = np.setdiff1d(np.arange(len(values)), node)
        if len(node) < 2 or len(rest) < 2 or values.shape[1] < MIN_STEPS:
            continue
        beyond = values - np.median(values[rest], axis=0)
        mine, others = beyond[node], beyond[rest].mean(axis=1)
        each = mine.mean(axis=1)
        # Stalls of chance length have heavy tails, so that their mean may be chance where it is not
        # chance in how many steps one of the ranks is the latest of all.
        latest = int((values[node].max(axis=0) > values[rest].max(axis=0)).sum())
        chance = len(nodes) * min(
            float(chance_of_mean(mine.reshape(1, -1))[0]),
            chance_of_hits(latest, values.shape[1], len(node) / len(values)),
        )
        is_all = each.min() >= max(LEAST_OF_NODE * each.mean(), OVER_OTHERS * others.max())
        if is_all and each.mean() >= least_ns and chance <= CHANCE:
            excess = np.zeros(values.shape)
            excess[node] = np.maximum(mine, 0)
            pattern = StragglerPattern.PERSISTENT
            found.append(Episode(pattern=pattern, excess_ns=excess, chance=chance))
    return found[0] if len(found) == 1 else None


def _slow_set(values: _Floats, limits: Limits) -> NDArray[np.bool_]:
    """Mask of the ranks above a gap that is wider than chance; at most half of all."""
    number = len(values)
    apart = values - np.median(values, axis=0)
    level = np.median(apart, axis=1)
    order = np.argsort(level, kind="stable")
    ordered = level[order]
    error = SIGMA * float(np.median(abs(apart - level[:, None]))) / np.sqrt(values.shape[1])
    fast = np.arange(number - number // 2, number)  # number of ranks that are not slow, in order
    gap = ordered[fast] - ordered[fast - 1]
    above = ordered[fast] - (ordered[(fast - 1) // 2] + ordered[fast // 2]) / 2
    wide = gap >= np.maximum(GAP * above, BEYOND_NOISE * error)
    slow = np.zeros(number, dtype=np.bool_)
    for first in fast[wide & (above >= limits.lasting_ns)].tolist():
        slow[:] = False
        slow[order[first:]] = True
        if _chance(values, slow, limits) <= CHANCE:
            return slow
    return np.zeros(number, dtype=np.bool_)


def _chance(values: _Floats, slow: NDArray[np.bool_], limits: Limits) -> float:
    """Probability that equal ranks show the set."""
    # It is the smaller result of two tests: the t test of the set, which allows for different noise
    # of ranks and does not count if the steps of one of its ranks may be chance, and a test with
    # the noise of all ranks together, which is known well even after few steps.
    more = values[slow] - np.median(values[~slow], axis=0)
    number = limits.tests * len(values)
    pooled = _by_pooled_noise(values, float(more.mean(axis=1).min()))
    together = float(chance_of_mean(more.mean(axis=0)[None])[0])
    if float(chance_of_mean(more).max()) > CHANCE_OF_ONE:
        together = 1.0
    return min(1.0, number * min(pooled, together))


def _by_pooled_noise(values: _Floats, level: float) -> float:
    """Probability of a rank's mean at this level, under normal noise estimated from all ranks."""
    # 1 if there are too few values to estimate the noise.
    apart = values - np.median(values, axis=0)
    rest = apart - apart.mean(axis=1, keepdims=True)
    ranks, steps = values.shape
    freedom = (ranks - 1) * (steps - 1)
    if freedom < LEAST_FREEDOM:
        return 1.0
    error = math.sqrt(float((rest**2).sum()) / freedom / steps)
    return math.erfc(level / max(error, 1e-9) / math.sqrt(2))


def _begins(series: _Floats, limits: Limits) -> int | None:
    """Index of the step from which a series is higher until its end; None if there is none."""
    number = len(series)
    highest = np.maximum.accumulate(series[:-2])
    lowest = np.minimum.accumulate(series[::-1])[-2:0:-1]
    for at in (np.flatnonzero(highest < lowest) + 1).tolist():  # no other step separates them
        before, after = series[:at], series[at:]
        low, high = float(np.median(before)), float(np.median(after))
        step = high - low
        if step < EVEN * high or (number - at) * step < number * limits.lasting_ns:
            continue
        even = before.max() < low + EVEN * step and after.min() > low + EVEN * step
        spread = SIGMA * float(np.median(abs(np.concatenate((before - low, after - high)))))
        if even and step >= BEYOND_NOISE * spread:
            return at
    return None


def _in_some_steps(
    shape: tuple[int, ...],
    group: NDArray[Any],
    beyond: _Floats,
    rest: NDArray[np.bool_],
    limits: Limits,
) -> Iterator[Episode]:
    apart = beyond - np.quantile(beyond, USUAL, axis=1, keepdims=True)
    about = beyond - np.median(beyond, axis=1, keepdims=True)
    noise = SIGMA * float(np.median(abs(about[rest]))) if rest.any() else 0.0
    high = (apart >= max(limits.again_ns, BEYOND_NOISE * noise)) & rest[:, None]
    high &= 2 * high.sum(axis=0) <= len(group)
    num_high = high.sum(axis=1)
    named = (high & (apart >= limits.cell_ns)).any(axis=1)
    often = np.where(high, apart, 0).sum(axis=1) >= limits.lasting_ns * beyond.shape[1]
    named |= often & (num_high >= MIN_AGAIN)
    involved = np.flatnonzero(named & (num_high < LONG * beyond.shape[1]))
    total = np.zeros(shape)
    total[group[involved]] = np.where(high, beyond, 0)[involved]
    most = total.sum(axis=1).max(initial=0.0)
    if len(involved) >= MIN_ROTATING and most < EVEN * total.sum():
        yield Episode(pattern=StragglerPattern.ROTATING, excess_ns=total)
        return
    for row in group[involved]:
        excess = np.zeros(shape)
        excess[row] = total[row]
        yield Episode(pattern=StragglerPattern.TRANSIENT, excess_ns=excess)
