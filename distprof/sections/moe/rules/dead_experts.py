"""# dead-experts

## What it detects
Experts get almost no tokens: less than 1 % of the mean over the whole recording.

## Why it costs time
Their weights take memory, optimizer state and gradient traffic but learn nothing, and other experts
process their tokens. No recording shows the time that this costs.

## Evidence needed
The routing that each rank logged (`moe.jsonl`), or counts of tokens per expert, with enough tokens
that even routing would give every expert at least 100.

## How the cost is computed
No cost: a dead expert costs model quality and memory, not time.

## How to fix
Raise the weight of the load-balancing loss, or bias the router towards experts with few tokens
(loss-free balancing). Add noise to its logits early in training. Reinitialise an expert that stays
dead from a busy one.

## When it is wrong
Counts from one kind of text say little about an expert for another kind: count all kinds.

## Sources
Formula sheet, "Mixture of experts". Shazeer et al. 2017, "Outrageously large neural networks".
"""

from __future__ import annotations

from collections.abc import Iterator

from distprof.rules.base import Draft, Limit, Limits, rule
from distprof.sections.moe.result import MoeLayer, MoeResult
from distprof.sections.moe.rules._shared import check_experts_known, name_layer
from distprof.terms import Severity

_MIN_TOKENS = 100
_MAX_NAMED = 8


@rule(
    code="MOE102",
    severity=Severity.WARNING,
    since="0.1.0",
    limits={"dead_ratio": Limit(0.05, "smallest share of dead experts in a layer")},
    costs_time=False,
)
def check(moe: MoeResult, limits: Limits) -> Iterator[Draft]:
    """Yield one finding for all layers with dead experts."""
    check_experts_known(moe)
    dead = [
        layer
        for layer in moe.layers
        if layer.dead_ratio >= limits["dead_ratio"] and layer.dead_ratio > 0 and _has_many(layer)
    ]
    if not dead:
        return
    worst = max(dead, key=lambda layer: layer.dead_ratio)
    number = round(worst.dead_ratio * worst.num_experts)
    more = f"; {len(dead) - 1} more layers have dead experts" if len(dead) > 2 else ""
    more = "; 1 more layer has dead experts" if len(dead) == 2 else more
    yield Draft(
        message=(
            f"{number} of {worst.num_experts} experts of {name_layer(worst)} get less than 1 % of "
            f"the mean{_named(worst)}{more}."
        ),
        fix=(
            "Raise the weight of the load-balancing loss, or bias the router towards experts with "
            "few tokens."
        ),
        evidence=("moe.layers",),
    )


def _has_many(layer: MoeLayer) -> bool:
    """Whether even routing would give each expert enough tokens that none would look dead."""
    number = layer.tokens_per_step * max(layer.top_k, 1) * layer.num_steps
    return number >= _MIN_TOKENS * layer.num_experts


def _named(layer: MoeLayer) -> str:
    if not layer.dead_experts:
        return ""
    shown = ", ".join(map(str, layer.dead_experts[:_MAX_NAMED]))
    more = ", …" if len(layer.dead_experts) > _MAX_NAMED else ""
    return f": {'expert' if len(layer.dead_experts) == 1 else 'experts'} {shown}{more}"
