"""# dropped-tokens

## What it detects
Assignments of tokens to experts were dropped because the experts were over capacity.

## Why it costs time
A dropped token skips its expert in the layer, so the model learns less from the same step. The
capacity bounds the cost of uneven routing: a higher capacity costs time and memory.

## Evidence needed
The routing that each rank logged (`moe.jsonl`), with the drops that the layer counted.

## How the cost is computed
No cost: dropping saves time and loses quality.

## How to fix
Balance the routing first (`overloaded-expert`): raise the weight of the load-balancing loss, or
bias the router against busy experts. Then raise the capacity factor, or use a layer without a
capacity limit (dropless).

## When it is wrong
Some drops are expected: a capacity factor of 1 with good balance drops a few per cent by chance.

## Sources
Formula sheet, "Mixture of experts". Fedus et al. 2021 (Switch Transformer), capacity factor.
"""

from __future__ import annotations

from collections.abc import Iterator

from distprof.rules.base import Draft, Limit, Limits, rule
from distprof.sections.moe.result import MoeResult
from distprof.sections.moe.rules._shared import check_experts_known, name_layer
from distprof.terms import Severity
from distprof.units import format_ratio


@rule(
    code="MOE103",
    severity=Severity.WARNING,
    since="0.1.0",
    limits={"dropped_ratio": Limit(0.02, "smallest share of dropped assignments in a layer")},
    costs_time=False,
)
def check(moe: MoeResult, limits: Limits) -> Iterator[Draft]:
    """Yield one finding for all layers that drop tokens."""
    check_experts_known(moe)
    dropping = [
        layer
        for layer in moe.layers
        if layer.dropped_ratio >= limits["dropped_ratio"] and layer.dropped_ratio > 0
    ]
    if not dropping:
        return
    worst = max(dropping, key=lambda layer: layer.dropped_ratio)
    mean = sum(layer.dropped_ratio for layer in moe.layers) / len(moe.layers)
    rest = f" (mean of {len(moe.layers)} layers: {format_ratio(mean)})"
    yield Draft(
        message=(
            f"{format_ratio(worst.dropped_ratio)} of the assignments of {name_layer(worst)} are "
            f"dropped{rest if len(moe.layers) > 1 else ''}. Its busiest expert gets "
            f"{worst.max_over_mean:.1f} times the mean."
        ),
        fix="Balance the routing. Then raise the capacity factor, or use a dropless layer.",
        evidence=("moe.layers",),
    )
