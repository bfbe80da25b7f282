"""Is the load of experts even, by the routing that each rank logged.

Source of the formulas: formula sheet, "Mixture of experts". Tokens per expert are those of all
ranks and micro-batches of a step together; imbalance, variation and entropy are means over steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from distprof.analyzers.result import Record, Result
from distprof.run.records import RankRecords
from distprof.schema import Int64Array, Table
from distprof.terms import MeshAxis

__all__ = [
    "LayerRouting",
    "MoeLayer",
    "MoeResult",
    "Routing",
    "combine_routing",
    "measure_routing",
]

MAX_STEPS = 256
"""Of each rank and layer, the last steps whose counts are joined across ranks."""

DEAD_RATIO = 0.01
"""An expert with less than this share of the mean is dead."""


class MoeLayer(Record, frozen=True, kw_only=True):
    """One mixture-of-experts layer.

    Args:
        layer: Index or name of it.
        num_experts: Experts of the layer, on all ranks.
        top_k: Experts per token.
        num_steps: Steps that the figures are means over.
        tokens_per_step: Tokens routed per step, all ranks together.
        max_over_mean: Load imbalance: the busiest expert's tokens over the mean; 1 is even.
        cv: Standard deviation over mean of the experts' tokens; 0 is even.
        entropy: Entropy of the share of tokens over its largest value, ln E; 1 is even.
        dead_ratio: Share of experts with less than 1 % of the mean, over all steps.
        dropped_ratio: Share of assignments over capacity.
        busiest_expert: The expert with most tokens over all steps.
        busiest_share_ratio: Its share of them.
        lost_ns_per_step: Time that the imbalance costs; None: not measured.
    """

    layer: str
    num_experts: int
    top_k: int
    num_steps: int
    tokens_per_step: float
    max_over_mean: float
    cv: float
    entropy: float
    dead_ratio: float
    dropped_ratio: float
    busiest_expert: int
    busiest_share_ratio: float
    lost_ns_per_step: int | None = None


class MoeResult(Result, frozen=True, kw_only=True):
    """Routing by layer."""

    layers: tuple[MoeLayer, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerRouting:
    """One layer on one rank.

    Args:
        steps: int64, step numbers, ascending.
        tokens: int64, shape ``(steps, experts)``: assignments kept and dropped, of this rank.
        num_tokens: int64 per step: tokens routed.
        dropped: int64 per step.
        top_k: Experts per token.
    """

    steps: Int64Array
    tokens: NDArray[np.int64]
    num_tokens: Int64Array
    dropped: Int64Array
    top_k: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """Layers of one rank by name, and what could not be used."""

    rank: int
    layers: Mapping[str, LayerRouting] = field(default_factory=dict)
    problems: tuple[str, ...] = ()


def measure_routing(records: RankRecords) -> Routing | None:
    """Counts of one rank by layer and step; None where no routing was logged."""
    table = records.routing
    if len(table) == 0:
        return None
    names = table.coded("layer")
    layers: dict[str, LayerRouting] = {}
    problems = []
    for code, name in enumerate(names.values):
        rows = table.take(names.codes == code)
        if len(rows) == 0:
            continue
        if len(np.unique(rows["num_experts"])) > 1:
            problems.append(f"layer {name} changes its number of experts: left out")
            continue
        layers[name] = _layer(rows, records.expert_tokens)
    return Routing(rank=records.rank, layers=layers, problems=tuple(problems))


def combine_routing(
    ranks: Sequence[Routing],
    places: Mapping[int, Mapping[str, int]],
    unavailable: Sequence[str] = (),
) -> MoeResult:
    """Every layer over all ranks that logged it; layers in order of first appearance.

    Args:
        ranks: Of ranks that have any, ascending.
        places: Rank to its index along each mesh axis, as far as known. Pipeline stages may call
            different layers alike; tensor-parallel ranks route the same tokens, of which those of
            the first count.
        unavailable: Why some are missing.
    """
    problems = list(dict.fromkeys(text for rank in ranks for text in rank.problems))
    layers = []
    for name, parts in _by_layer(ranks, places).items():
        if len({part.tokens.shape[1] for part in parts}) > 1:
            problems.append(f"ranks name different numbers of experts for layer {name}: left out")
            continue
        found = _over_ranks(name, parts)
        if found is not None:
            layers.append(found)
    return MoeResult(layers=tuple(layers), unavailable=(*unavailable, *problems))


def _by_layer(
    ranks: Sequence[Routing], places: Mapping[int, Mapping[str, int]]
) -> dict[str, list[LayerRouting]]:
    by_stage: dict[str, dict[int, list[LayerRouting]]] = {}
    for rank in ranks:
        place = places.get(rank.rank, {})
        if place.get(MeshAxis.TP, 0) == 0:
            for name, layer in rank.layers.items():
                stages = by_stage.setdefault(name, {})
                stages.setdefault(place.get(MeshAxis.PP, 0), []).append(layer)
    return {
        name if len(stages) == 1 else f"{name} (stage {stage})": parts
        for name, stages in by_stage.items()
        for stage, parts in sorted(stages.items())
    }


def _layer(rows: Table, counts: Int64Array) -> LayerRouting:
    steps, index = np.unique(rows["step"], return_inverse=True)
    experts = int(rows["num_experts"][0])
    kept = np.maximum(index - max(0, len(steps) - MAX_STEPS), -1)
    steps = steps[-MAX_STEPS:]
    recent = kept >= 0
    tokens = np.zeros((len(steps), experts), dtype=np.int64)
    places = rows["first"][recent][:, np.newaxis] + np.arange(experts)
    np.add.at(tokens, kept[recent], counts[places])
    return LayerRouting(
        steps=steps,
        tokens=tokens,
        num_tokens=_sum(kept[recent], rows["num_tokens"][recent], len(steps)),
        dropped=_sum(kept[recent], rows["dropped"][recent], len(steps)),
        top_k=int(rows["top_k"][-1]),
    )


def _sum(index: Int64Array, values: Int64Array, length: int) -> Int64Array:
    total = np.zeros(length, dtype=np.int64)
    np.add.at(total, index, values)
    return total


def _over_ranks(name: str, parts: Sequence[LayerRouting]) -> MoeLayer | None:
    """Figures of one layer over the steps that all these ranks logged."""
    common = parts[0].steps
    for part in parts[1:]:
        common = np.intersect1d(common, part.steps)
    chosen = [np.searchsorted(part.steps, common) for part in parts]
    tokens = np.sum([p.tokens[i] for p, i in zip(parts, chosen, strict=True)], axis=0)
    routed = tokens.sum(axis=1) > 0
    tokens = tokens[routed]
    if len(tokens) == 0:
        return None
    num_tokens = sum(int(p.num_tokens[i][routed].sum()) for p, i in zip(parts, chosen, strict=True))
    dropped = sum(int(p.dropped[i][routed].sum()) for p, i in zip(parts, chosen, strict=True))
    total = tokens.sum(axis=0)
    assigned = max(int(total.sum()), parts[0].top_k * num_tokens)
    return MoeLayer(
        layer=name,
        num_experts=tokens.shape[1],
        top_k=parts[0].top_k,
        num_steps=len(tokens),
        tokens_per_step=num_tokens / len(tokens),
        max_over_mean=float((tokens.max(axis=1) / tokens.mean(axis=1)).mean()),
        cv=float((tokens.std(axis=1) / tokens.mean(axis=1)).mean()),
        entropy=float(np.mean([_entropy(row) for row in tokens])),
        dead_ratio=float((total < DEAD_RATIO * total.mean()).mean()),
        dropped_ratio=dropped / assigned,
        busiest_expert=int(total.argmax()),
        busiest_share_ratio=float(total.max() / total.sum()),
    )


def _entropy(tokens: Int64Array) -> float:
    """Normalised entropy; one expert alone is as even as it can be."""
    if len(tokens) < 2:
        return 1.0
    share = tokens[tokens > 0] / tokens.sum()
    return float(-(share * np.log(share)).sum() / np.log(len(tokens)))
