"""How much likelier one shift between two ranks' operations is than another, given their ends.

Two shifts are compared over the same operations by the test of Pitman and Morgan for the variances
of paired samples. A ratio of two variances alone would not do: where steps are so regular that
nothing can be told from them, it favours some shift by chance, and the more operations there are,
the more strongly.

Source: E. J. G. Pitman, "A Note on Normal Correlation", Biometrika 31, 1939; W. A. Morgan, "A Test
for the Significance of the Difference between the Two Variances in a Sample from a Normal Bivariate
Population", Biometrika 31, 1939.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from distprof.ingest.operations import Operations, compatible, middle_of_overlap
from distprof.schema import Int64Array
from distprof.units import NS_PER_US

__all__ = ["MIN_PAIRS", "RESOLUTION_NS", "steadier"]

RESOLUTION_NS = NS_PER_US  # of the times in most traces: nothing is told from less
NOISE_NS2 = 2.0 * RESOLUTION_NS**2  # what changes of differences vary by in any case
LAGS = (1, 2, 3, 4)  # a difference of ends is compared with those of the pairs just before
MIN_PAIRS = 5  # nothing is told from fewer

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


def steadier(a: Operations, b: Operations, shifts: Sequence[int], lead: int) -> Floats:
    """Logarithm of the likelihood of one shift over that of each, given their ends.

    Two tests, of which the one that tells more counts: paired on the operations that both shifts
    cover, and on all that each covers, which are more where the two lie far apart.

    Args:
        a: What one rank did.
        b: What the other did.
        shifts: Positions in ``b`` minus positions in ``a``; each has some overlap.
        lead: Which of them is compared with all.

    Returns:
        One per shift; 0 where too few pairs tell anything.
    """
    samples = [middle_of_overlap(a, b, shift) for shift in shifts]
    column = np.array(shifts)[:, np.newaxis]
    i = np.broadcast_to(samples[lead], (len(shifts), len(samples[lead])))
    common, known_common = _differences(a, b, i, column)
    known_common &= known_common[lead].copy()
    first = np.array([[sample[0]] for sample in samples])
    longest = max(len(sample) for sample in samples)
    each, known_each = _differences(a, b, first + np.arange(longest), column)
    paired = [_steadier_paired(*_changes(common, known_common, lag), lead) for lag in LAGS]
    apart = [_steadier_apart(*_changes(each, known_each, lag), lead) for lag in LAGS]
    evidence: Floats = np.maximum(_mean_of_known(paired), _mean_of_known(apart))
    return evidence


def _mean_of_known(parts: Sequence[Floats]) -> Floats:
    """Mean over those that are not NaN; 0 where all are."""
    stacked = np.stack(parts)
    known = ~np.isnan(stacked)
    mean: Floats = np.where(known, stacked, 0.0).sum(axis=0) / np.maximum(known.sum(axis=0), 1)
    return mean


def _differences(
    a: Operations, b: Operations, i: Int64Array, shift: Int64Array
) -> tuple[Int64Array, Bools]:
    """Differences of ends, a row per shift, and where there is a compatible pair."""
    j = i + shift
    inside = (i < len(a)) & (j >= 0) & (j < len(b))
    i, j = np.minimum(i, len(a) - 1), np.clip(j, 0, len(b) - 1)
    return b.end_ns[j] - a.end_ns[i], inside & compatible(a, b, i, j)


def _changes(difference: Int64Array, known: Bools, lag: int) -> tuple[Floats, Bools]:
    """How much differences changed since some pairs before, and where both are known."""
    change = (difference[:, lag:] - difference[:, :-lag]).astype(np.float64)
    return change, known[:, lag:] & known[:, :-lag]


def _steadier_paired(values: Floats, known: Bools, lead: int) -> Floats:
    """How much smaller one row u varies around 0 than each row v; log likelihood, NaN for few.

    The correlation r of v + u and v - u is zero where both vary alike, however they depend on each
    other (Pitman, Morgan); r against none has the likelihood ratio ``(1 - r**2) ** (-n / 2)``.
    """
    v = _clipped(values, known)
    u = _clipped(np.broadcast_to(values[lead], values.shape), known)
    count = known.sum(axis=1)
    var_u, var_v = _mean_square(u, count), _mean_square(v, count)
    both = (u * v).sum(axis=1) / np.maximum(count, 1)
    product = np.maximum((var_v + var_u) ** 2 - 4 * both**2, NOISE_NS2**2)
    r = np.clip((var_v - var_u) / np.sqrt(product), -1 + 1e-9, 1 - 1e-9)
    return np.where(count >= MIN_PAIRS, np.sign(r) * -0.5 * count * np.log1p(-r * r), np.nan)


def _steadier_apart(values: Floats, known: Bools, lead: int) -> Floats:
    """How much smaller one row varies around 0 than each; log likelihood, NaN for few.

    The likelihood ratio of two variances, of samples apart, against one.
    """
    count = known.sum(axis=1)
    var = _mean_square(_clipped(values, known), count)
    pooled = (count * var + count[lead] * var[lead]) / np.maximum(count + count[lead], 1)
    pooled = np.maximum(pooled, NOISE_NS2)
    ratio = 0.5 * (count * np.log(pooled / var) + count[lead] * np.log(pooled / var[lead]))
    enough = np.minimum(count, count[lead]) >= MIN_PAIRS
    return np.where(enough, np.sign(var - var[lead]) * ratio, np.nan)


def _mean_square(values: Floats, count: Int64Array) -> Floats:
    mean: Floats = (values * values).sum(axis=1) / np.maximum(count, 1) + NOISE_NS2
    return mean


def _clipped(values: Floats, known: Bools) -> Floats:
    """Values cut to three times their typical size row by row; 0 where unknown."""
    if values.shape[1] == 0:
        return values
    sizes = np.sort(np.where(known, np.abs(values), np.inf), axis=1)
    middle = np.maximum(known.sum(axis=1) - 1, 0) // 2
    limit = 3 * sizes[np.arange(len(sizes)), middle]
    limit = np.where(np.isfinite(limit), limit, 0.0)[:, np.newaxis]
    cut: Floats = np.where(known, np.clip(values, -limit, limit), 0.0)
    return cut
