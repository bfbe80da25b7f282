"""Centre and uncertainty of a few repeats that differ from run to run, outliers among them.

The unit is the repeat: one run of a program, of which one figure is kept, for example its median
step. Steps of a run share what that run was given (clocks, placement, neighbours), so that a
thousand steps of one run say nothing about the next one; resampling steps would pretend they do.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = [
    "RESAMPLES",
    "Interval",
    "compare_pairs",
    "compare_repeats",
    "pseudo_median",
    "step_interval",
    "student_quantile",
]

RESAMPLES = 2_000
"""Of a bootstrap; its ends then vary by about 2 % of the interval from seed to seed."""

_NORMAL = 1.96
_QUANTILES = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
_ENDS = (0.025, 0.975)
_MANY = 60  # from here on means of pairs cost more than they add, and the median is taken

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate and the interval that holds the truth in 95 of 100 cases.

    Args:
        value: The estimate.
        low: Lower end; minus infinity where nothing tells the spread.
        high: Upper end.
    """

    value: float
    low: float
    high: float


def student_quantile(freedom: float) -> float:
    """Student's t, 97.5 %, within 1 % above 10 degrees of freedom; infinite below 1."""
    whole = int(freedom)
    if whole < 1:
        return math.inf
    if whole <= len(_QUANTILES):
        return _QUANTILES[whole - 1]
    return _NORMAL + 2.6 / whole


def pseudo_median(values: ArrayLike) -> Floats:
    """Median of the means of all pairs, a value with itself included, along the last axis.

    As good as the mean where errors are normal (95 %), and unmoved by outliers up to 29 % of the
    values.

    Source:
        Hodges and Lehmann, "Estimates of location based on rank tests" (1963).
    """
    data = np.asarray(values, np.float64)
    if data.shape[-1] > _MANY:
        return np.asarray(np.median(data, axis=-1))
    first, second = np.triu_indices(data.shape[-1])
    return np.asarray(np.median((data[..., first] + data[..., second]) / 2, axis=-1))


def compare_repeats(first: ArrayLike, second: ArrayLike, *, seed: int = 0) -> Interval:
    """``second`` less ``first``: difference of their centres, repeats drawn anew on each side.

    Pass logarithms to compare by ratio. A percentile bootstrap is too narrow for few repeats; it
    is widened by √(n/(n − 1)) on each side and by Student's t with Welch's degrees of freedom.

    Args:
        first: One value per repeat, at least one.
        second: The same, of the other side; the number may differ.
        seed: Of the bootstrap.

    Returns:
        Infinitely wide where a side has a single repeat.

    Source:
        Hesterberg, "What Teachers Should Know About the Bootstrap" (2015), section 5.
    """
    a, b = np.asarray(first, np.float64), np.asarray(second, np.float64)
    value = float(pseudo_median(b) - pseudo_median(a))
    if min(len(a), len(b)) < 2:
        return Interval(value, -math.inf, math.inf)
    random = np.random.default_rng(seed)
    spread = _deviations(b, random) - _deviations(a, random)
    wide = student_quantile(_welch_freedom(a, b)) / _NORMAL
    return _around(value, spread * wide)


def compare_pairs(first: ArrayLike, second: ArrayLike, *, seed: int = 0) -> Interval:
    """``second`` less ``first`` where value i of both was measured side by side.

    What both of a pair share, drift above all, cancels.

    Args:
        first: One value per repeat, at least one.
        second: As many.
        seed: Of the bootstrap.
    """
    change = np.asarray(second, np.float64) - np.asarray(first, np.float64)
    value = float(pseudo_median(change))
    if len(change) < 2:
        return Interval(value, -math.inf, math.inf)
    spread = _deviations(change, np.random.default_rng(seed))
    return _around(value, spread * (student_quantile(len(change) - 1) / _NORMAL))


def step_interval(steps: ArrayLike, *, seed: int = 0) -> Interval:
    """Median of the steps of one run, in blocks drawn anew, since neighbours are alike.

    It tells how well the run's own median is known, and nothing of other runs.

    Source:
        Künsch, "The jackknife and the bootstrap for general stationary observations" (1989).
    """
    data = np.asarray(steps, np.float64)
    value, count = float(np.median(data)), len(data)
    length = max(round(count ** (1 / 3)), 1)
    if count < 2 * length or count < 3:
        return Interval(value, -math.inf, math.inf)
    random = np.random.default_rng(seed)
    starts = random.integers(0, count - length + 1, (RESAMPLES, -(-count // length)))
    rows = (starts[..., None] + np.arange(length)).reshape(RESAMPLES, -1)[:, :count]
    return _around(value, np.median(data[rows], axis=1) - value)


def _deviations(values: Floats, random: np.random.Generator) -> Floats:
    """How far the centre of repeats drawn anew is from the centre, widened for few repeats."""
    count = len(values)
    drawn = values[random.integers(0, count, (RESAMPLES, count))]
    return (pseudo_median(drawn) - pseudo_median(values)) * math.sqrt(count / (count - 1))


def _around(value: float, spread: Floats) -> Interval:
    low, high = np.quantile(spread, _ENDS).tolist()
    return Interval(value, value + min(low, 0.0), value + max(high, 0.0))


def _welch_freedom(first: Floats, second: Floats) -> float:
    parts = [float(side.var(ddof=1)) / len(side) for side in (first, second)]
    below = sum(
        part**2 / (len(side) - 1) for part, side in zip(parts, (first, second), strict=True)
    )
    if below <= 0:
        return len(first) + len(second) - 2
    return sum(parts) ** 2 / below
