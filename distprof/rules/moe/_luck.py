"""Whether loads are uneven beyond what even routing of as few tokens shows, and how to name them.

Private to this family: no rule.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from distprof.analyzers.moe import MoeLayer, MoePlacement

__all__ = ["is_beyond_luck", "name_layer", "name_layers", "ranks_beyond_luck"]

DEVIATIONS = 6.0
"""Standard deviations beyond even routing: with thousands of experts nobody gets there by luck."""

MAX_NAMED = 3


def is_beyond_luck(layer: MoeLayer) -> bool:
    """Whether even routing would hardly give any expert such a share."""
    even = 1 / layer.num_experts
    number = max(layer.tokens_per_step * max(layer.top_k, 1) * layer.num_steps, 1)
    deviation = math.sqrt(even * (1 - even) / number)
    return layer.busiest_share_ratio - even >= DEVIATIONS * deviation > 0


def ranks_beyond_luck(row: MoePlacement) -> bool:
    """Whether even routing would hardly make ranks so uneven in a single call."""
    if row.tokens_per_call <= 0 or row.num_ranks < 2:
        return False
    deviation = math.sqrt((row.num_ranks - 1) / row.tokens_per_call)
    return row.max_over_mean - 1 >= DEVIATIONS * deviation


def name_layer(layer: MoeLayer | MoePlacement) -> str:
    """A layer in a sentence: ``layer 7``, ``layer 7 (github)``, or its name in the model."""
    name = f"layer {layer.layer}" if layer.layer.isdigit() else layer.layer
    return f"{name} ({layer.part})" if layer.part else name


def name_layers(layers: Sequence[MoeLayer] | Sequence[MoePlacement]) -> str:
    """Up to three layers in a sentence, and how many more."""
    named = ", ".join(name_layer(layer) for layer in layers[:MAX_NAMED])
    more = len(layers) - MAX_NAMED
    return f"{named} and {more} more" if more > 0 else named
