"""Centre and uncertainty of a few repeats that vary from run to run, with outliers.

The unit is the repeat: one run of a program, summarised by one figure. Steps of a run share its
conditions (clocks, placement, neighbours), so they say nothing about the next run.
"""

from __future__ import annotations

import math
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import ArrayLike

from distprof.schema import Floats

RESAMPLES = 2_000
"""Resamples of a bootstrap. The ends vary by about 2 % of the interval between seeds."""

FEWEST_TO_TAME = 7
Level = Literal[90, 95, 98]
"""Coverage of an interval, in percent."""

_NORMAL: dict[int, float] = {90: 1.645, 95: 1.96, 98: 2.326}
_SLOPE: dict[int, float] = {90: 1.7, 95: 2.6, 98: 4.4}  # over many degrees of freedom
_QUANTILES: dict[int, tuple[float, ...]] = {
    90: (6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812),
    95: (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    98: (31.82, 6.965, 4.541, 3.747, 3.365, 3.143, 2.998, 2.896, 2.821, 2.764),
}
_MANY = 60  # above this, means of pairs cost more than they gain, and the median is used


class Interval(msgspec.Struct, frozen=True):
    """An estimate and its 95 % confidence interval, unless another level was requested."""

    value: float  # The estimate.
    low: float  # Lower end; minus infinity if the spread is unknown.
    high: float  # Upper end.


def student_quantile(freedom: float, level: Level = 95) -> float:
    """Half width of Student's two-sided interval; infinite below one degree of freedom.

    Within 1 % above 10 degrees of freedom.
    """
    whole, table = int(freedom), _QUANTILES[level]
    if whole < 1:
        return math.inf
    if whole <= len(table):
        return table[whole - 1]
    return _NORMAL[level] + _SLOPE[level] / whole


def pseudo_median(values: ArrayLike) -> Floats:
    """Median of the means of all pairs, including each value with itself, along the last axis.

    It is 95 % as efficient as the mean for normal errors, and robust to outliers in up to 29 % of
    the values.

    Source:
        Hodges and Lehmann, "Estimates of location based on rank tests" (1963).
    """
    data = np.asarray(values, np.float64)
    if data.shape[-1] > _MANY:
        return np.asarray(np.median(data, axis=-1))
    first, second = np.triu_indices(data.shape[-1])
    return np.asarray(np.median((data[..., first] + data[..., second]) / 2, axis=-1))


def compare_repeats(
    first: ArrayLike, second: ArrayLike, *, level: Level = 95, seed: int = 0
) -> Interval:
    """``second`` minus ``first``: difference of their centres, with repeats resampled on each side.

    Pass logarithms to compare by ratio. A percentile bootstrap is too narrow for few repeats; it is
    widened by √(n/(n − 1)) on each side and by Student's t with Welch's degrees of freedom. Each
    side has one value per repeat; with a single one, the interval is infinite.

    Source:
        Hesterberg, "What Teachers Should Know About the Bootstrap" (2015), section 5.
    """
    a, b = winsorized(first), winsorized(second)
    value = float(pseudo_median(b) - pseudo_median(a))
    if min(len(a), len(b)) < 2:
        return Interval(value, -math.inf, math.inf)
    random = np.random.default_rng(seed)
    spread = _deviations(b, random) - _deviations(a, random)
    parts = [float(side.var(ddof=1)) / len(side) for side in (a, b)]
    below = parts[0] ** 2 / (len(a) - 1) + parts[1] ** 2 / (len(b) - 1)
    welch = sum(parts) ** 2 / below if below > 0 else len(a) + len(b) - 2
    wide = student_quantile(welch, level) / _NORMAL[level]
    return _around(value, spread * wide, level)


def compare_pairs(
    first: ArrayLike, second: ArrayLike, *, level: Level = 95, seed: int = 0
) -> Interval:
    """``second`` minus ``first`` if value i of both was measured side by side.

    Effects common to both values of a pair, above all drift, cancel out.
    """
    change = winsorized(np.asarray(second, np.float64) - np.asarray(first, np.float64))
    value = float(pseudo_median(change))
    if len(change) < 2:
        return Interval(value, -math.inf, math.inf)
    spread = _deviations(change, np.random.default_rng(seed))
    wide = student_quantile(len(change) - 1, level) / _NORMAL[level]
    return _around(value, spread * wide, level)


def winsorized(values: ArrayLike) -> Floats:
    """Values with outliers clipped to 3.5 standard deviations, estimated from the median.

    In a resample, an outlier may occur two or three times. Fewer than :data:`FEWEST_TO_TAME` values
    stay unchanged, and so do those of which half are equal.
    """
    data = np.asarray(values, np.float64)
    centre = float(np.median(data))
    reach = 3.5 * 1.4826 * float(np.median(np.abs(data - centre)))
    if len(data) < FEWEST_TO_TAME or reach == 0:
        return data
    return np.clip(data, centre - reach, centre + reach)


def step_interval(steps: ArrayLike) -> Interval:
    """Median of the steps of one run, resampled in blocks, because neighbours are correlated.

    The interval covers only the median of this run and says nothing about other runs.

    Source:
        Künsch, "The jackknife and the bootstrap for general stationary observations" (1989).
    """
    data = np.asarray(steps, np.float64)
    value, count = float(np.median(data)), len(data)
    length = max(round(count ** (1 / 3)), 1)
    if count < 2 * length or count < 3:
        return Interval(value, -math.inf, math.inf)
    random = np.random.default_rng(0)
    starts = random.integers(0, count - length + 1, (RESAMPLES, -(-count // length)))
    rows = (starts[..., None] + np.arange(length)).reshape(RESAMPLES, -1)[:, :count]
    return _around(value, np.median(data[rows], axis=1) - value, 95)


def _deviations(values: Floats, random: np.random.Generator) -> Floats:
    """Deviations of the centre of resampled repeats from the centre, widened for few repeats."""
    count = len(values)
    drawn = values[random.integers(0, count, (RESAMPLES, count))]
    return (pseudo_median(drawn) - pseudo_median(values)) * math.sqrt(count / (count - 1))


def _around(value: float, spread: Floats, level: Level) -> Interval:
    low, high = np.quantile(spread, (0.5 - level / 200, 0.5 + level / 200)).tolist()
    return Interval(value, value + min(low, 0.0), value + max(high, 0.0))
