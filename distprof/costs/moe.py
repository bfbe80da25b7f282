"""Costs of uneven experts: load metrics, capacity, and placements of experts.

Source of every formula here: formula sheet, "Mixture of experts". ``tokens`` are assignments to
experts (or ranks), which are the last axis.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
from numpy.typing import ArrayLike

from distprof.schema import Floats, Int64Array

DEAD_RATIO = 0.01
"""An expert below this share of the mean load is dead."""


def load_imbalance(tokens: ArrayLike) -> Floats:
    """Maximum over mean load of shape ``(…, n)``, 1 if even; NaN without tokens."""
    load = _loads(tokens)
    return _over_mean(load.max(axis=-1), load)


def load_variation(tokens: ArrayLike) -> Floats:
    """Standard deviation over mean, 0 if even; NaN without tokens."""
    load = _loads(tokens)
    return _over_mean(load.std(axis=-1), load)


def normalised_entropy(tokens: ArrayLike) -> Floats:
    """Entropy of the token shares divided by ln n, 1 if even; NaN without tokens.

    A single expert counts as even.
    """
    load = _loads(tokens)
    total = load.sum(axis=-1, keepdims=True)
    share = np.divide(load, total, out=np.full(load.shape, np.nan), where=total > 0)
    if load.shape[-1] < 2:
        return np.where(total[..., 0] > 0, 1.0, np.nan)
    logarithm = np.log(share, out=np.zeros(load.shape), where=share > 0)
    entropy: Floats = -(share * logarithm).sum(axis=-1) / math.log(load.shape[-1])
    return entropy


def dead_ratio(tokens: ArrayLike) -> Floats:
    """Share of experts with less than :data:`DEAD_RATIO` of the mean load."""
    load = _loads(tokens)
    ratio: Floats = (load < DEAD_RATIO * load.mean(axis=-1, keepdims=True)).mean(axis=-1)
    return ratio


def aux_loss(fraction: ArrayLike, probability: ArrayLike) -> float:
    """Load-balancing loss of Switch and GShard: E · Σ f·P.

    ``fraction`` is the share of tokens of each expert; adds up to 1, or to k if it counts all k
    experts of a token. ``probability`` is its mean router probability.
    """
    f, p = np.asarray(fraction, np.float64), np.asarray(probability, np.float64)
    return float(len(f) * (f * p).sum())


def distribution_distance(first: ArrayLike, second: ArrayLike) -> float:
    """Total variation distance of two loads, from 0 (equal) to 1 (disjoint)."""
    a, b = _loads(first), _loads(second)
    if not a.sum() or not b.sum():
        return math.nan
    return float(np.abs(a / a.sum() - b / b.sum()).sum() / 2)


def lost_to_imbalance(expert_ns: ArrayLike) -> Floats:
    """Time lost to the slowest rank of a group, shape ``(…, ranks)``: its time minus the mean."""
    times = _loads(expert_ns)
    lost: Floats = times.max(axis=-1) - times.mean(axis=-1)
    return lost


class Placement(msgspec.Struct, frozen=True, kw_only=True):
    """The expert in each slot of each rank, layer by layer."""

    num_ranks: int  # Ranks that share the experts.
    # int64, shape ``(layers, experts)``: the expert in each slot. The first ``experts / num_ranks``
    # slots belong to rank 0, and so on.
    expert: Int64Array

    @property
    def rank_of_expert(self) -> Int64Array:
        """The rank that holds each expert, int64, shape ``(layers, experts)``."""
        slot = np.argsort(self.expert, axis=1)
        rank: Int64Array = slot // (self.expert.shape[1] // self.num_ranks)
        return rank

    def rank_loads(self, tokens: ArrayLike) -> Floats:
        """Tokens that each rank computes, float64, shape ``(…, layers, ranks)``."""
        load = _loads(tokens)
        slots = np.take_along_axis(load, np.broadcast_to(self.expert, load.shape), axis=-1)
        by_rank: Floats = slots.reshape(*load.shape[:-1], self.num_ranks, -1).sum(axis=-1)
        return by_rank


def contiguous_placement(num_layers: int, num_experts: int, num_ranks: int) -> Placement:
    """The usual placement: the first experts on the first rank; ValueError if uneven."""
    if num_ranks < 1 or num_experts < 1 or num_experts % num_ranks:
        raise ValueError(f"{num_experts} experts cannot be divided evenly among {num_ranks} ranks")
    expert = np.broadcast_to(np.arange(num_experts, dtype=np.int64), (num_layers, num_experts))
    return Placement(num_ranks=num_ranks, expert=expert)


def place_experts(load: ArrayLike, num_ranks: int) -> Placement:
    """A greedy placement of experts that reduces the load of the busiest rank.

    The busiest experts first, each on the least loaded rank with a free slot; a layer keeps
    contiguous blocks unless that is better. ``load`` holds tokens per expert, shape ``(layers,
    experts)``; ValueError for another shape, or if slots cannot be divided evenly.

    Source: DeepSeek-AI, EPLB (expert parallelism load balancer): balanced packing.
    """
    tokens = _loads(load)
    if tokens.ndim != 2:
        raise ValueError(f"load must have two axes, layers and experts, not {tokens.ndim}")
    num_layers, num_experts = tokens.shape
    usual = contiguous_placement(num_layers, num_experts, num_ranks)
    if not num_layers:
        return usual
    placed = Placement(num_ranks=num_ranks, expert=_pack(tokens, num_ranks))
    worse = placed.rank_loads(tokens).max(axis=1) >= usual.rank_loads(tokens).max(axis=1)
    kept = np.where(worse[:, np.newaxis], usual.expert, placed.expert)
    return Placement(num_ranks=num_ranks, expert=kept)


def _pack(load: Floats, num_ranks: int) -> Int64Array:
    """Experts by slot, all layers at once: heaviest first, to the least loaded free rank."""
    num_layers, num_slots = load.shape
    layers, room = np.arange(num_layers), num_slots // num_ranks
    order = np.argsort(-load, axis=1, kind="stable")
    rank_load = np.zeros((num_layers, num_ranks))
    used = np.zeros((num_layers, num_ranks), dtype=np.int64)
    packed = np.zeros((num_layers, num_slots), dtype=np.int64)
    for chosen in order.T:
        rank = np.where(used < room, rank_load, np.inf).argmin(axis=1)
        packed[layers, rank * room + used[layers, rank]] = chosen
        rank_load[layers, rank] += load[layers, chosen]
        used[layers, rank] += 1
    return packed


def _loads(values: Any) -> Floats:
    load = np.asarray(values, dtype=np.float64)
    if not load.ndim or not load.shape[-1]:
        raise ValueError("there must be at least one expert")
    return load


def _over_mean(values: Floats, load: Floats) -> Floats:
    mean = load.mean(axis=-1)
    ratio: Floats = np.divide(values, mean, out=np.full(mean.shape, np.nan), where=mean > 0)
    return ratio
