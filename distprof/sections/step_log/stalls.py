"""Periodic work: checkpoints, evaluation, anything a loop does every k steps.

Steps that are much longer than the median are looked at. A period is believed if nearly all its
steps are long, and if long steps that fall anywhere would hardly do that.
"""

from __future__ import annotations

from math import exp, lgamma

import numpy as np
from numpy.typing import NDArray

from distprof.schema import Int64Array
from distprof.sections.step_log.result import PeriodicStall

__all__ = ["find_periodic_stalls"]

_LONGER_RATIO = 0.25
"""A long step takes so much more than the median,"""
_SPREADS = 6.0
"""and this many of the usual deviations from it."""
_SHORTEST_PERIOD = 3
_FEWEST = 4
_HELD_RATIO = 0.8
_MOST_LIKELY_CHANCE = 0.01
_MOST_KINDS = 3
_MOST_PERIODS_TRIED = 64


def find_periodic_stalls(step: Int64Array, duration_ns: Int64Array) -> tuple[PeriodicStall, ...]:
    """Periods at which steps are long, most expensive first.

    Args:
        step: int64 step numbers, ascending; gaps (traced steps) are allowed.
        duration_ns: int64, of the rank that took least: what delays one rank alone is not here.

    Returns:
        At most three; none where the log is too short to show four stalls.
    """
    if len(step) < _FEWEST * _SHORTEST_PERIOD:
        return ()
    median = float(np.median(duration_ns))
    spread = float(np.median(np.abs(duration_ns - median)))
    longer = np.asarray(duration_ns - median, dtype=np.float64)
    is_long = longer > max(_LONGER_RATIO * median, _SPREADS * spread)
    found: list[PeriodicStall] = []
    unexplained = np.ones(len(step), dtype=np.bool_)  # steps that no period found before explains
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
    return tuple(sorted(found, key=lambda stall: -stall.cost_ns_per_step))


def _best_period(step: Int64Array, is_long: NDArray[np.bool_]) -> tuple[int, int] | None:
    """The period that explains most long steps, and at which residue; None without one.

    Of two that explain as many the longer is taken: every multiple of a step's distance is none.
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
    if _chance(len(step), len(long), num_due, held) > _MOST_LIKELY_CHANCE:
        return None
    return period, residue


def _chance(num_steps: int, num_long: int, num_due: int, held: int) -> float:
    """Chance that any period holds this many of the long steps, if they fell anywhere.

    The upper tail of the hypergeometric distribution, times the periods and offsets that there are.
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
    """Distances between long steps, one or a few apart, most frequent first."""
    apart = [long[n:] - long[:-n] for n in range(1, min(4, len(long)))]
    distance, count = np.unique(np.concatenate(apart), return_counts=True)
    order = np.argsort(-count, kind="stable")[:_MOST_PERIODS_TRIED]
    return [int(distance[i]) for i in order if distance[i] >= _SHORTEST_PERIOD]


def _fullest(long: Int64Array, period: int) -> tuple[int, int]:
    """The residue that most long steps have, and how many have it."""
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
