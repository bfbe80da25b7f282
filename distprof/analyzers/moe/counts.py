"""Experts by counts that somebody made: no time, no ranks, but how even they would be."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np

from distprof.analyzers.moe.placement import row_of_experts
from distprof.analyzers.moe.result import MoeLayer, MoePlacement, MoeResult
from distprof.analyzers.moe.routing import layer_of_counts
from distprof.run.expert_counts import ExpertCounts

__all__ = ["analyze_counts"]

EXPERT_COUNTS = "expert counts"
MAX_PLACED_EXPERTS = 100_000
"""Counts of all parts and layers beyond which placements are sought for one size only."""


def analyze_counts(counts: ExpertCounts) -> MoeResult:
    """Load of every layer in every part of the data, and of ranks that would share its experts.

    Args:
        counts: Assignments per expert.
    """
    layers: list[MoeLayer] = []
    placement: list[MoePlacement] = []
    problems: list[str] = []
    for part, name, tokens in _rows(counts):
        if not tokens.sum():
            problems.append(f"Nothing was counted for layer {name}{_of(part)}: left out.")
            continue
        layers.append(_layer(part, name, tokens, counts.top_k))
        placement += _placements(part, name, tokens, _sizes(counts))
    return MoeResult(
        layers=tuple(layers),
        origin=EXPERT_COUNTS if layers else None,
        placement=tuple(placement),
        unavailable=(*problems, "Counts hold no times: what the imbalance costs is not known."),
    )


def _rows(counts: ExpertCounts) -> Iterator[tuple[str, str, np.ndarray]]:
    for part, table in counts.tokens.items():
        for name, tokens in zip(counts.layers, table, strict=True):
            yield part, name, tokens


def _layer(part: str, name: str, tokens: np.ndarray, top_k: int | None) -> MoeLayer:
    layer = layer_of_counts(
        name,
        tokens[np.newaxis],
        num_tokens=float(tokens.sum()) / (top_k or 1),
        dropped=0,
        top_k=top_k or 0,
    )
    return msgspec.structs.replace(layer, part=part)


def _placements(
    part: str, name: str, tokens: np.ndarray, sizes: tuple[int, ...]
) -> Iterator[MoePlacement]:
    for size in sizes:
        yield row_of_experts(name, tokens[np.newaxis], size, EXPERT_COUNTS, part)


def _sizes(counts: ExpertCounts) -> tuple[int, ...]:
    """Numbers of ranks that can share the experts evenly, from 2 on; not one expert on each."""
    table = next(iter(counts.tokens.values()))
    experts = int(table.shape[1])
    sizes = tuple(size for size in range(2, experts) if experts % size == 0)
    if len(counts.tokens) * table.size <= MAX_PLACED_EXPERTS:
        return sizes
    return tuple(sorted(sizes, key=lambda size: (abs(size - 8), size))[:1])


def _of(part: str) -> str:
    return f" of {part}" if part else ""
