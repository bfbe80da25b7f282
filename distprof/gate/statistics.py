"""Rank tests, exact for the few repeats that a gate can afford, ties included."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["aligned_ranks", "least_pairs", "least_repeats", "mann_whitney"]

Floats = NDArray[np.float64]

_MOST_EXACT = 60
"""Values on both sides together up to which all orders are counted."""


def mann_whitney(first: ArrayLike, second: ArrayLike) -> float:
    """Chance that ``second`` ranks so high if both are drawn from the same; one-sided.

    Counted over all ways to choose which of the values (as they are, ties with their mean rank)
    belong to ``second``; beyond 60 values by the normal approximation with correction for ties.

    Args:
        first: One value per repeat.
        second: The same; 1.0 is returned where a side is empty.

    Source:
        Mann and Whitney, "On a test of whether one of two random variables is stochastically
        larger than the other" (1947).
    """
    a, b = np.asarray(first, np.float64), np.asarray(second, np.float64)
    if not len(a) or not len(b):
        return 1.0
    ranks = _doubled_ranks(np.concatenate([a, b]))
    seen = int(ranks[len(a) :].sum())
    if len(ranks) > _MOST_EXACT:
        return _normal_tail(seen, ranks, len(b))
    ways = _ways_to_choose(ranks, len(b))
    return float(ways[seen:].sum() / ways.sum())


def aligned_ranks(first: ArrayLike, second: ArrayLike) -> float:
    """Chance that ``second`` ranks so high if it makes no difference which of a pair is which.

    One-sided and exact: counted over all ways to exchange the two of each pair. What drifts is
    taken off first, as the median of the means of the five nearest pairs, which such an exchange
    leaves as it is. Then all values are ranked together, so that a pair of which one run was struck
    by something counts for less than others, where among signed ranks it would outvote them.

    Args:
        first: One value per pair, in order of time.
        second: As many; 1.0 is returned for none.

    Source:
        Hodges and Lehmann, "Rank methods for combination of independent experiments in analysis of
        variance" (1962).
    """
    pairs = np.stack([np.asarray(first, np.float64), np.asarray(second, np.float64)])
    if not pairs.shape[1]:
        return 1.0
    ranks = _doubled_ranks((pairs - _local(pairs.mean(axis=0))).ravel()).reshape(2, -1)
    lead = ranks[1] - ranks[0]
    scores, seen = np.abs(lead), int(lead[lead > 0].sum())
    if len(scores) > _MOST_EXACT:
        deviation = math.sqrt(float(np.sum(scores.astype(np.float64) ** 2))) / 2
        return _upper_tail((seen - 1 - scores.sum() / 2) / max(deviation, 1e-9))
    ways = np.ones(1)
    for score in scores.tolist():
        longer = np.zeros(len(ways) + score)
        longer[: len(ways)] += ways
        longer[score:] += ways
        ways = longer
    return float(ways[seen:].sum() / ways.sum())


def _local(means: Floats) -> Floats:
    """Median of each value and up to two neighbours on either side."""
    around = np.pad(means, 2, constant_values=np.nan)
    windows = np.lib.stride_tricks.sliding_window_view(around, 5)
    return np.asarray(np.nanmedian(windows, axis=1))


def least_repeats(alpha: float, fixed: int | None = None) -> int:
    """Repeats with which :func:`mann_whitney` can reach ``alpha`` at all.

    Args:
        alpha: Its level.
        fixed: Repeats of the side that gets no more; None where both get as many. A million is
            returned where even that does not do.
    """
    for count in range(1, 1_000):
        if 1 / math.comb(count + (fixed or count), count) <= alpha:
            return count
    return 1_000_000


def least_pairs(alpha: float) -> int:
    """Pairs with which :func:`aligned_ranks` can reach ``alpha`` at all."""
    return math.ceil(-math.log2(alpha))


def _doubled_ranks(values: Floats) -> NDArray[np.int64]:
    """Twice the rank from 1, so that the mean rank of ties is whole."""
    ordered = np.sort(values)
    below = np.searchsorted(ordered, values, side="left")
    return np.asarray(below + np.searchsorted(ordered, values, side="right") + 1, np.int64)


def _ways_to_choose(ranks: NDArray[np.int64], count: int) -> Floats:
    """In how many ways ``count`` of the ranks have each sum; float64, exact enough for shares."""
    ways = np.zeros((count + 1, int(np.sort(ranks)[-count:].sum()) + 1))
    ways[0, 0] = 1
    for rank in ranks.tolist():
        ways[1:, rank:] += ways[:-1, : ways.shape[1] - rank].copy()
    return np.asarray(ways[count])


def _normal_tail(seen: int, ranks: NDArray[np.int64], count: int) -> float:
    """By mean and variance of the sum of ``count`` of the doubled ranks, drawn without return."""
    total = len(ranks)
    deviation = math.sqrt(
        count * (total - count) / (total - 1) * float(ranks.astype(np.float64).var())
    )
    if deviation == 0:
        return 1.0
    return _upper_tail((seen - 1 - count * float(ranks.mean())) / deviation)


def _upper_tail(z: float) -> float:
    return math.erfc(z / math.sqrt(2)) / 2
