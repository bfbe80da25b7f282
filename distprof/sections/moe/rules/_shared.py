"""Tests for imbalance beyond chance, names of layers, and the layers' share of a step."""

from __future__ import annotations

import math

from distprof.rules.base import InsufficientEvidenceError
from distprof.sections.moe.result import MoeLayer, MoePlacement, MoeResult

DEVIATIONS = 6.0
"""Standard deviations above even routing that no expert reaches by chance, even of thousands."""


def check_experts_known(moe: MoeResult) -> None:
    """Raise an error if ranks share experts but no routing was logged."""
    if not moe.layers and moe.exchanges:
        raise InsufficientEvidenceError("experts cannot be distinguished: no routing was logged")


def is_beyond_chance(layer: MoeLayer) -> bool:
    """Whether even routing would hardly ever give an expert this share."""
    even = 1 / layer.num_experts
    number = max(layer.tokens_per_step * max(layer.top_k, 1) * layer.num_steps, 1)
    deviation = math.sqrt(even * (1 - even) / number)
    return layer.busiest_share_ratio - even >= DEVIATIONS * deviation > 0


def ranks_beyond_chance(row: MoePlacement) -> bool:
    """Whether even routing would hardly ever make ranks this uneven in a single call."""
    if row.tokens_per_call <= 0 or row.num_ranks < 2:
        return False
    deviation = math.sqrt((row.num_ranks - 1) / row.tokens_per_call)
    return row.max_over_mean - 1 >= DEVIATIONS * deviation


def name_layer(layer: MoeLayer | MoePlacement) -> str:
    """A layer in a sentence: ``layer 7``, ``layer 7 (github)``, or its name in the model."""
    name = f"layer {layer.layer}" if layer.layer.isdigit() else layer.layer
    return f"{name} ({layer.part})" if layer.part else name


def share_of_layers(moe: MoeResult) -> float:
    """Factor from the sum of layer times to the time of a mean rank.

    Less than 1 if ranks hold only some of the layers, as pipeline stages do.
    """
    lost = [row.lost_ns_per_step for row in moe.placement if row.lost_ns_per_step is not None]
    if moe.lost_ns_per_step is None or not sum(lost):
        return 1.0
    return min(moe.lost_ns_per_step / sum(lost), 1.0)
