"""# dead-experts

## What it detects
Experts that get next to no tokens: less than 1 % of the mean, over the whole recording.

## Why it costs time
Their weights take memory, optimizer state and gradient traffic, and learn nothing; the tokens
that they lack are the load of others. No step time is named for that.

## Evidence needed
The routing that each rank logged (`moe.jsonl`), or counts of tokens per expert, with so many
tokens that even routing would give every expert a hundred at least.

## How the cost is computed
Not at all: what a dead expert costs is model quality and memory.

## How to fix
Raise the weight of the load-balancing loss, or bias the router towards experts with few tokens
(loss-free balancing); add noise to its logits early in training. An expert that died long ago may
be initialised again from a busy one.

## When it is wrong
Counts of one kind of text tell little about an expert for another kind: look at all of them.

## Sources
Formula sheet, "Mixture of experts". Shazeer et al. 2017, "Outrageously large neural networks".
"""

from __future__ import annotations

from collections.abc import Iterator

from distprof.rules.base import Draft, Limit, Limits, rule
from distprof.sections.moe.result import MoeLayer, MoeResult
from distprof.sections.moe.rules._shared import check_experts_known, name_layer
from distprof.terms import Severity

_LEAST_TOKENS = 100
_MOST_NAMED = 8


@rule(
    code="MOE102",
    severity=Severity.WARNING,
    since="0.1.0",
    needs=(MoeResult,),
    limits={"dead_ratio": Limit(0.05, "share of a layer's experts that is dead")},
    costs_time=False,
)
def check(moe: MoeResult, limits: Limits) -> Iterator[Draft]:
    """Yield one finding for all layers with dead experts."""
    check_experts_known(moe)
    found = [
        layer
        for layer in moe.layers
        if layer.dead_ratio >= limits["dead_ratio"] and layer.dead_ratio > 0 and _has_many(layer)
    ]
    if not found:
        return
    worst = max(found, key=lambda layer: layer.dead_ratio)
    number = round(worst.dead_ratio * worst.num_experts)
    more = f"; {len(found) - 1} more layers have some" if len(found) > 2 else ""
    more = "; another layer has some" if len(found) == 2 else more
    yield Draft(
        message=(
            f"{number} of {worst.num_experts} experts of {name_layer(worst)} get less than 1 % of "
            f"the mean{_named(worst)}{more}."
        ),
        fix=(
            "Raise the weight of the load-balancing loss or bias the router towards experts with "
            "few tokens."
        ),
        evidence=("moe.layers",),
    )


def _has_many(layer: MoeLayer) -> bool:
    """Whether even routing would give each expert so many tokens that none were near nothing."""
    number = layer.tokens_per_step * max(layer.top_k, 1) * layer.num_steps
    return number >= _LEAST_TOKENS * layer.num_experts


def _named(layer: MoeLayer) -> str:
    if not layer.dead_experts:
        return ""
    shown = ", ".join(map(str, layer.dead_experts[:_MOST_NAMED]))
    more = ", …" if len(layer.dead_experts) > _MOST_NAMED else ""
    return f": {'expert' if len(layer.dead_experts) == 1 else 'experts'} {shown}{more}"
