"""Split the layers of a model into pipeline stages as evenly as possible."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


def split_layers(
    work_ns: NDArray[Any], num_stages: int, *, rank_of_stage: Sequence[int] | None = None
) -> tuple[int, ...]:
    """The number of consecutive layers per stage that minimises the work of the busiest stage.

    With one stage per rank (``rank_of_stage`` None), the split is optimal (dynamic programming).
    Among equally good splits, it has the smallest sum of squares, so that the other stages are also
    even. With several stages per rank, layers then move between stages while that relieves the
    busiest rank, which is good but not proven optimal. Every stage gets at least one layer.

    Raises:
        ValueError: If there are fewer layers than stages.
    """
    work = np.asarray(work_ns, np.float64)
    if not 1 <= num_stages <= len(work):
        raise ValueError(f"{len(work)} layers do not fill {num_stages} stages")
    before = np.concatenate((np.zeros(1), np.cumsum(work)))
    cuts = _even_stages(before, num_stages)
    if rank_of_stage is not None and len(set(rank_of_stage)) < num_stages:
        cuts = _even_ranks(before, cuts, np.asarray(rank_of_stage, np.int64))
    return tuple(np.diff(cuts).tolist())


def _even_stages(before: NDArray[np.float64], num_stages: int) -> NDArray[np.int64]:
    """The optimal cuts; ``before`` is the cumulative work before each layer, and in total."""
    # work of a stage from the layer of the row to the layer of the column
    part = np.where(np.tri(len(before), k=-1, dtype=np.bool_).T, before - before[:, None], np.inf)
    busiest, _ = _best_cuts(part, num_stages, np.maximum)
    # sums that differ only by rounding are equal
    allowed = np.where(part <= busiest * (1 + 1e-12), part, np.inf)
    return _best_cuts(allowed**2, num_stages, np.add)[1]


def _best_cuts(
    cost: NDArray[np.float64], num_stages: int, combine: np.ufunc
) -> tuple[float, NDArray[np.int64]]:
    """The cheapest path from the start to the end of the layers in ``num_stages`` parts."""
    best, came_from = cost[0], []
    for _ in range(num_stages - 1):
        total = combine(best[:, None], cost)
        came_from.append(total.argmin(axis=0))
        best = total.min(axis=0)
    cuts = [cost.shape[0] - 1]
    for chosen in reversed(came_from):
        cuts.append(int(chosen[cuts[-1]]))
    return float(best[-1]), np.array([0, *reversed(cuts)])


def _even_ranks(
    before: NDArray[np.float64], cuts: NDArray[np.int64], ranks: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Move one layer at a time from one stage to another, shifting the stages between them."""
    moves = _moves(len(ranks))
    score = _scores(before, cuts[None], ranks)[0]
    while True:
        tried = cuts + moves
        tried = tried[(np.diff(tried, axis=1) >= 1).all(axis=1)]
        if not len(tried):
            return cuts
        scores = _scores(before, tried, ranks)
        best = np.lexsort(scores.T[::-1])[0]
        if tuple(scores[best]) >= tuple(score):
            return cuts
        cuts, score = tried[best], scores[best]


def _moves(num_stages: int) -> NDArray[np.int64]:
    """Changes of the cuts, shape (moves, stages + 1)."""
    moves = np.zeros((0, num_stages + 1), np.int64)
    low, high = np.triu_indices(num_stages - 1)
    place = np.arange(num_stages + 1)
    shifts = ((place > low[:, None]) & (place <= high[:, None] + 1)).astype(np.int64)
    return np.concatenate((moves, shifts, -shifts))


def _scores(
    before: NDArray[np.float64], cuts: NDArray[np.int64], ranks: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Busiest rank, busiest stage, unevenness of both; shape (splits, 4), lower is better."""
    stage = np.diff(before[cuts], axis=1)
    rank = stage @ (ranks[:, None] == np.arange(ranks.max() + 1)).astype(np.float64)
    scores = (rank.max(axis=1), stage.max(axis=1), (rank**2).sum(axis=1), (stage**2).sum(axis=1))
    # a difference by rounding is not an improvement
    scale = max(float(before[-1]), 1.0)
    return np.round(np.stack(scores, axis=1) / [scale, scale, scale**2, scale**2], 12)
