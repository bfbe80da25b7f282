"""# dropped-tokens

## What it detects
Assignments of tokens to experts that were dropped, because the expert was over its capacity.

## Why it costs time
A dropped token passes the layer without its expert: the model learns less from the same step. The
capacity bounds what uneven routing costs, so raising it has a price in time and memory.

## Evidence needed
The routing that each rank logged (`moe.jsonl`), with the drops that the layer counted.

## How the cost is computed
Not at all: dropping saves time, and what is lost is quality.

## How to fix
Even out the routing first (`overloaded-expert`): weight of the load-balancing loss, a bias
against busy experts. Then raise the capacity factor, or use a layer without capacity (dropless).

## When it is wrong
Some drops are planned: a capacity factor of 1 with a good balance drops a few per cent by chance.

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
    needs=(MoeResult,),
    limits={"dropped_ratio": Limit(0.02, "share of a layer's assignments that is dropped")},
    costs_time=False,
)
def check(moe: MoeResult, limits: Limits) -> Iterator[Draft]:
    """Yield one finding for all layers that drop."""
    check_experts_known(moe)
    found = [
        layer
        for layer in moe.layers
        if layer.dropped_ratio >= limits["dropped_ratio"] and layer.dropped_ratio > 0
    ]
    if not found:
        return
    worst = max(found, key=lambda layer: layer.dropped_ratio)
    mean = sum(layer.dropped_ratio for layer in moe.layers) / len(moe.layers)
    rest = f", {format_ratio(mean)} in the mean of {len(moe.layers)} layers"
    yield Draft(
        message=(
            f"{format_ratio(worst.dropped_ratio)} of the assignments of {name_layer(worst)} are "
            f"dropped{rest if len(moe.layers) > 1 else ''}; its busiest expert gets "
            f"{worst.max_over_mean:.1f} times the mean."
        ),
        fix="Even out the routing; then raise the capacity factor, or drop no tokens.",
        evidence=("moe.layers",),
    )
