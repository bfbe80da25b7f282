"""Whether one run's steps are longer than the other's, or chance explains it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import comb

import numpy as np

from distprof.analyzers.comparison.result import StepChange, Trend
from distprof.artefacts.summary_file import StepParts

__all__ = ["compare_steps", "median_interval", "part_changes"]

_CONFIDENCE = 0.95


def compare_steps(first: Sequence[int], second: Sequence[int]) -> StepChange:
    """Medians, their intervals, and whether these are apart.

    Two 95 % intervals that do not overlap are apart by more than chance at well below one percent.
    Steps of one run are taken as independent; what differs from run to run is not in them:
    ``distprof check`` repeats runs for that.

    Args:
        first: Durations of steps, ns.
        second: The same of the other run.
    """
    mine, theirs = _median(first), _median(second)
    low, high = median_interval(first) or (None, None)
    other_low, other_high = median_interval(second) or (None, None)
    change = theirs - mine if mine is not None and theirs is not None else None
    return StepChange(
        first_ns=mine,
        first_low_ns=low,
        first_high_ns=high,
        second_ns=theirs,
        second_low_ns=other_low,
        second_high_ns=other_high,
        change_ns=change,
        change_ratio=change / mine if change is not None and mine else None,
        trend=_trend(low, high, other_low, other_high),
    )


def median_interval(values: Sequence[int]) -> tuple[int, int] | None:
    """The 95 % interval of the median by order statistics; None where six values are not there.

    Args:
        values: Independent measurements of any distribution.

    Source:
        The number of values below the median is binomial (Conover, "Practical Nonparametric
        Statistics", 3.2).
    """
    place = _place(len(values))
    if place is None:
        return None
    ordered = sorted(values)
    return ordered[place], ordered[-1 - place]


def part_changes(first: StepParts, second: StepParts) -> tuple[tuple[str, int, int, int], ...]:
    """Part, time in the first step, in the second, and the change; changes add up exactly."""
    names = [name for name in StepParts.__struct_fields__ if name != "span_ns"]
    return tuple(
        (
            name.removesuffix("_ns"),
            getattr(first, name),
            getattr(second, name),
            getattr(second, name) - getattr(first, name),
        )
        for name in names
    )


@lru_cache(maxsize=1024)
def _place(count: int) -> int | None:
    """How many values may lie outside on each side, so that the interval still holds 95 %."""
    if count > _LARGE:
        spread = _NORMAL * np.sqrt(count) / 2
        return int(np.floor(count / 2 - spread))
    tail, place = 0.0, -1
    for below in range(count // 2):
        tail += comb(count, below) / 2**count
        if tail > (1 - _CONFIDENCE) / 2:
            break
        place = below
    return place if place >= 0 else None


_LARGE = 400
_NORMAL = 1.96


def _median(values: Sequence[int]) -> int | None:
    return int(np.median(values)) if len(values) else None


def _trend(
    low: int | None, high: int | None, other_low: int | None, other_high: int | None
) -> Trend:
    if low is None or high is None or other_low is None or other_high is None:
        return "unknown"
    if other_low > high:
        return "slower"
    return "faster" if other_high < low else "alike"
