"""Find periodic work: checkpoints, evaluation, and anything else that a loop does every k steps.

The search looks at steps that are much longer than the median. It accepts a period if nearly all of
its steps are long and long steps at random positions would be unlikely to fit it.

Steps are measured on the CPU, which runs ahead of its GPU until it has to wait, for example every
ten steps to read the loss. Steps in which it gets ahead are short, and the one in which it waits is
long by the same time. Nothing stalls there, so a long step counts without the lead that it uses up.
"""

from __future__ import annotations

from math import exp, lgamma

import msgspec
import numpy as np
from numpy.typing import NDArray

from distprof.schema import Int64Array
from distprof.sections.step_log.result import PeriodicStall

__all__ = ["find_periodic_stalls"]

_LONGER_RATIO = 0.25
"""Excess over the median from which a step is long, as a share of the median,"""
_SPREADS = 6.0
"""and in median absolute deviations. A long step exceeds both."""
_SHORT_RATIO = 0.25
"""Time below the median from which the CPU got ahead in a step, as a share of the median."""
_MOST_RATIO = 0.5
"""Share of all time from which long steps may be waits for GPUs whose CPUs are always ahead."""
_SHORTEST_PERIOD = 3
_FEWEST = 4
_HELD_RATIO = 0.8
_MAX_CHANCE = 0.01
_MOST_KINDS = 3
_MOST_PERIODS_TRIED = 64


def find_periodic_stalls(
    step: Int64Array, duration_ns: Int64Array, *, has_gpus: bool = False
) -> tuple[PeriodicStall, ...]:
    """Periods of long steps, most expensive first.

    Args:
        step: int64 step numbers, ascending; gaps (traced steps) are allowed.
        duration_ns: int64, of the fastest rank, so a delay of a single rank does not count.
        has_gpus: Whether the CPU may run ahead.

    Returns:
        At most three periods; none if the log is too short to show four stalls.
    """
    if len(step) < _FEWEST * _SHORTEST_PERIOD:
        return ()
    median = float(np.median(duration_ns))
    spread = float(np.median(np.abs(duration_ns - median)))
    longer = np.asarray(duration_ns - median, dtype=np.float64)
    least = max(_LONGER_RATIO * median, _SPREADS * spread)
    if has_gpus:
        longer = _without_lead(longer, longer > least, _SHORT_RATIO * median)
    is_long = longer > least
    found: list[PeriodicStall] = []
    unexplained = np.ones(len(step), dtype=np.bool_)  # steps that no earlier period explains
    while len(found) < _MOST_KINDS:
        due = _best_period(step[unexplained], is_long[unexplained])
        if due is None:
            break
        period, residue = due
        members = (
            unexplained & (step % period == residue) & (step >= step[unexplained & is_long][0])
        )
        stalled = members & is_long
        found.append(_stall(period, step, longer, members, stalled))
        unexplained &= ~stalled
    if (
        has_gpus
        and sum(stall.cost_ns_per_step for stall in found) > _MOST_RATIO * duration_ns.mean()
    ):
        found = [msgspec.structs.replace(stall, may_wait_for_gpu=True) for stall in found]
    return tuple(sorted(found, key=lambda stall: -stall.cost_ns_per_step))


def _without_lead(
    longer: NDArray[np.float64], is_long: NDArray[np.bool_], short_ns: float
) -> NDArray[np.float64]:
    """The excess of each step. A long one loses the lead gathered since the long step before it."""
    lead = np.cumsum(np.where(longer < -short_ns, -longer, 0.0))
    at = np.flatnonzero(is_long)
    net = longer.copy()
    net[at] = np.maximum(longer[at] - np.diff(lead[at], prepend=0.0), 0.0)
    return net


def _best_period(step: Int64Array, is_long: NDArray[np.bool_]) -> tuple[int, int] | None:
    """The period that explains most long steps, and its residue; None if there is none.

    Of two periods that explain equally many long steps, the longer one wins.
    """
    long = step[is_long]
    if len(long) < _FEWEST:
        return None
    best: tuple[int, int, int, int] | None = None
    for period in _candidates(long):
        residue, held = _fullest(long, period)
        num_due = int(((step % period == residue) & (step >= long[0])).sum())
        if held < _FEWEST or held < _HELD_RATIO * num_due:
            continue
        if best is None or (held, period) > best[:2]:
            best = (held, period, residue, num_due)
    if best is None:
        return None
    held, period, residue, num_due = best
    if _chance(len(step), len(long), num_due, held) > _MAX_CHANCE:
        return None
    return period, residue


def _chance(num_steps: int, num_long: int, num_due: int, held: int) -> float:
    """Probability that any period holds this many long steps if they fall at random.

    This is the upper tail of the hypergeometric distribution times the number of periods and
    offsets.
    """
    ways = _log_choose(num_steps, num_long)
    tail = sum(
        exp(_log_choose(num_due, n) + _log_choose(num_steps - num_due, num_long - n) - ways)
        for n in range(held, min(num_due, num_long) + 1)
        if num_long - n <= num_steps - num_due
    )
    return tail * (num_steps / _FEWEST) ** 2 / 2


def _log_choose(whole: int, part: int) -> float:
    return lgamma(whole + 1) - lgamma(part + 1) - lgamma(whole - part + 1)


def _candidates(long: Int64Array) -> list[int]:
    """Distances between each long step and the next three, most frequent first."""
    apart = [long[n:] - long[:-n] for n in range(1, min(4, len(long)))]
    distance, count = np.unique(np.concatenate(apart), return_counts=True)
    order = np.argsort(-count, kind="stable")[:_MOST_PERIODS_TRIED]
    return [int(distance[i]) for i in order if distance[i] >= _SHORTEST_PERIOD]


def _fullest(long: Int64Array, period: int) -> tuple[int, int]:
    """The most frequent residue of long steps, and its count."""
    residues, counts = np.unique(long % period, return_counts=True)
    most = int(np.argmax(counts))
    return int(residues[most]), int(counts[most])


def _stall(
    period: int,
    step: Int64Array,
    longer: NDArray[np.float64],
    members: NDArray[np.bool_],
    stalled: NDArray[np.bool_],
) -> PeriodicStall:
    return PeriodicStall(
        period=period,
        first_step=int(step[stalled][0]),
        num_stalls=int(stalled.sum()),
        num_due=int(members.sum()),
        longer_ns=round(float(np.median(longer[stalled]))),
        cost_ns_per_step=round(float(longer[stalled].sum()) / len(step)),
    )
