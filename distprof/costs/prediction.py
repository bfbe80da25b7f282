"""Predict the step time with other schedules, micro-batches and layer splits.

The work is measured on the current stages. The batch size per step stays the same: with another
number of micro-batches, each is smaller or larger, and its time changes in proportion.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from distprof.costs.known_schedules import SCHEDULES, orders
from distprof.costs.pipeline import replay
from distprof.schema import Floats, Int64Array
from distprof.terms import SlotKind


class StageWork(msgspec.Struct, frozen=True, kw_only=True):
    """Work of the current stages on one of the current micro-batches."""

    forward_ns: Int64Array  # Per stage, from the first to the last.
    # Per stage, the part of the backward for gradients of inputs. If only the whole backward is
    # known, half of it is a fair estimate.
    backward_input_ns: Int64Array
    backward_weight_ns: Int64Array  # Per stage, the part for gradients of weights.
    num_micro_batches: int  # Current number per step.
    # Layers of each stage, assumed to share its work evenly; empty if unknown, so that a stage can
    # be divided anywhere.
    layers: tuple[int, ...] = ()
    # Fixed overhead of an action, independent of the size of its micro-batch (launches, Python); 0
    # for none.
    fixed_ns: int = 0


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A configuration to predict."""

    schedule: str  # One of :data:`~distprof.costs.known_schedules.SCHEDULES`.
    num_micro_batches: int  # Per step.
    virtual_stages: int | None = None  # Stages per rank; None for the schedule's minimum.
    # Layers of each stage; None for the most even split.
    layer_split: tuple[int, ...] | None = None
    # Whether to keep the work of the stages instead of using ``layer_split``. If the number of
    # stages changes, each current stage counts as the same number of layers, and the new stages get
    # equal numbers of them, so no stage is relieved.
    keeps_stages: bool = False


class Prediction(msgspec.Struct, frozen=True, kw_only=True):
    """Predicted time and memory of a configuration; modelled, never measured."""

    schedule: str  # Name of the schedule.
    num_micro_batches: int  # Per step.
    virtual_stages: int  # Stages per rank.
    # Layers of each stage, first to last; empty if layers are unknown.
    layer_split: tuple[int, ...]
    makespan_ns: int  # Time from the start of the first action to the end of the last.
    bubble_fraction: float  # Idle over total time of the ranks within the makespan, 0 to 1.
    in_flight: float  # Micro-batches whose activations the fullest rank holds, over all its layers.


def predict(
    work: StageWork, num_ranks: int, candidates: Iterable[Candidate], *, transfer_ns: int = 0
) -> tuple[Prediction, ...]:
    """Step time and bubble of each configuration that can run, in the order given.

    ``transfer_ns`` is the time of one of the current messages between stages: smaller ones are
    assumed to be no faster, larger ones proportionally slower.
    """
    made = (_predict(work, num_ranks, candidate, transfer_ns) for candidate in candidates)
    return tuple(prediction for prediction in made if prediction is not None)


def _predict(
    work: StageWork, num_ranks: int, candidate: Candidate, transfer_ns: int
) -> Prediction | None:
    name, num_micro_batches = candidate.schedule, candidate.num_micro_batches
    try:
        order = orders(name, num_ranks, num_micro_batches, candidate.virtual_stages)
        schedule = SCHEDULES[name]
        per_rank = candidate.virtual_stages or schedule.fewest
        places = [schedule.rank_of(stage, num_ranks) for stage in range(num_ranks * per_rank)]
        parts, split = _stages(work, candidate, places)
    except ValueError:
        return None
    size = work.num_micro_batches / num_micro_batches
    forward, inputs, weights = (part * size for part in parts)
    replayed = replay(
        order,
        {
            SlotKind.FORWARD: forward + work.fixed_ns,
            SlotKind.BACKWARD: inputs + weights + work.fixed_ns,
            SlotKind.BACKWARD_INPUT: inputs + work.fixed_ns,
            SlotKind.BACKWARD_WEIGHT: weights + work.fixed_ns,
        },
        transfer_ns=int(transfer_ns * max(1.0, size)),
    )
    return Prediction(
        schedule=name,
        num_micro_batches=num_micro_batches,
        virtual_stages=per_rank,
        layer_split=split,
        makespan_ns=int(replayed.makespan_ns),
        bubble_fraction=float(replayed.bubble_fraction),
        in_flight=float(replayed.in_flight.max()) / per_rank,
    )


def _stages(
    work: StageWork, candidate: Candidate, places: list[int]
) -> tuple[Floats, tuple[int, ...]]:
    """Forward, input part and weight part per stage, shape (3, stages), and the layers of each."""
    num_stages = len(places)
    present = np.stack((work.forward_ns, work.backward_input_ns, work.backward_weight_ns)).astype(
        np.float64
    )
    if candidate.keeps_stages:
        if present.shape[1] == num_stages:
            return present, work.layers
        return _divided(present, np.arange(present.shape[1] + 1.0), num_stages), ()
    if not work.layers:
        along = np.concatenate((np.zeros(1), np.cumsum(present.sum(axis=0))))
        return _divided(present, along, num_stages), ()
    layers = np.repeat(present / np.array(work.layers), work.layers, axis=1)
    split = candidate.layer_split or split_layers(
        layers.sum(axis=0), num_stages, rank_of_stage=places
    )
    if len(split) != num_stages or sum(split) != layers.shape[1] or min(split) < 1:
        raise ValueError(
            f"a split {split} does not fit {layers.shape[1]} layers and {num_stages} stages"
        )
    cuts = np.concatenate((np.zeros(1, np.int64), np.cumsum(split)))[:-1]
    return np.add.reduceat(layers, cuts, axis=1), tuple(split)


def _divided(present: Floats, along: Floats, num_stages: int) -> Floats:
    """Stages of equal length along the model; ``along`` holds positions of the current stages."""
    cuts = np.linspace(0, along[-1], num_stages + 1)
    before = [
        np.interp(cuts, along, np.concatenate((np.zeros(1), np.cumsum(kind)))) for kind in present
    ]
    return np.diff(np.stack(before), axis=1)


def split_layers(
    work_ns: NDArray[Any], num_stages: int, *, rank_of_stage: Sequence[int] | None = None
) -> tuple[int, ...]:
    """The number of consecutive layers per stage that minimises the work of the busiest stage.

    Optimal for one stage per rank (``rank_of_stage`` None), with the smallest sum of squares among
    equals (dynamic programming). With several, layers then move between stages while that relieves
    the busiest rank. Every stage gets at least one layer; ValueError if there are fewer.
    """
    work = np.asarray(work_ns, np.float64)
    if not 1 <= num_stages <= len(work):
        raise ValueError(f"{len(work)} layers do not fill {num_stages} stages")
    before = np.concatenate((np.zeros(1), np.cumsum(work)))
    # work of a stage from the layer of the row to the layer of the column
    part = np.where(np.tri(len(before), k=-1, dtype=np.bool_).T, before - before[:, None], np.inf)
    busiest, _ = _best_cuts(part, num_stages, np.maximum)
    # sums that differ only by rounding are equal
    allowed = np.where(part <= busiest * (1 + 1e-12), part, np.inf)
    _, cuts = _best_cuts(allowed**2, num_stages, np.add)
    if rank_of_stage is not None and len(set(rank_of_stage)) < num_stages:
        cuts = _even_ranks(before, cuts, np.asarray(rank_of_stage, np.int64))
    return tuple(np.diff(cuts).tolist())


def _best_cuts(cost: Floats, num_stages: int, combine: np.ufunc) -> tuple[float, Int64Array]:
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


def _even_ranks(before: Floats, cuts: Int64Array, ranks: Int64Array) -> Int64Array:
    """Move one layer at a time from one stage to another, shifting the stages between them."""
    low, high = np.triu_indices(len(ranks) - 1)
    place = np.arange(len(ranks) + 1)
    shifts = ((place > low[:, None]) & (place <= high[:, None] + 1)).astype(np.int64)
    moves = np.concatenate((shifts, -shifts))
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


def _scores(before: Floats, cuts: Int64Array, ranks: Int64Array) -> Floats:
    """Busiest rank, busiest stage, unevenness of both; shape (splits, 4), lower is better."""
    stage = np.diff(before[cuts], axis=1)
    rank = stage @ (ranks[:, None] == np.arange(ranks.max() + 1)).astype(np.float64)
    scores = (rank.max(axis=1), stage.max(axis=1), (rank**2).sum(axis=1), (stage**2).sum(axis=1))
    # a difference by rounding is not an improvement
    scale = max(float(before[-1]), 1.0)
    return np.round(np.stack(scores, axis=1) / [scale, scale, scale**2, scale**2], 12)
