"""# overloaded-expert

## What it detects
Routers send the same expert far more tokens than the others, over the whole recording.

## Why it costs time
The rank that holds the expert computes for all of them, and everybody waits for it in the
all-to-all that brings tokens back. With a capacity limit tokens are dropped instead, and the model
learns less.

## Evidence needed
The routing that each rank logged (`moe.jsonl`). An expert counts if its share is beyond what even
routing of as many tokens would show by chance.

## How the cost is computed
Exposed waiting in all-to-alls, mean per rank and step: an upper bound, since ranks may come late to
them for other reasons too. With several overloaded experts it is divided by the layers each is the
busiest of. Unknown where no all-to-all was timed. The time is part of what `exposed-communication`
reports.

## How to fix
Raise the weight of the load-balancing loss, or bias the router against busy experts (loss-free
balancing); add noise to its logits early in training; see that the router's initial weights are
small. Place experts that are busy together on different ranks.

## Example
```text
overloaded-expert: expert 2 gets 3.9 times the mean of all experts' tokens in 4 of 4 layers; the
other ranks wait for all-to-alls for 31.5 ms of each step.
```

## When it is wrong
Early in training routers are uneven by their initial weights; shared experts that see every token
are no routing at all.

## Sources
Formula sheet, "Mixture of experts". Lepikhin et al. 2020 (GShard); Wang et al. 2024, "Auxiliary-
loss-free load balancing strategy for mixture-of-experts".
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from distprof.analyzers.collectives import CollectivesResult
from distprof.analyzers.moe import MoeLayer, MoeResult
from distprof.rules.base import Draft, Limit, Limits, rule
from distprof.terms import CollectiveKind, Confidence, Severity
from distprof.units import format_duration

_DEVIATIONS = 6.0
"""Standard deviations beyond even routing: with thousands of experts nobody gets there by luck."""


@rule(
    code="MOE101",
    severity=Severity.WARNING,
    since="0.1.0",
    needs=(MoeResult, CollectivesResult),
    limits={"load_ratio": Limit(2.0, "tokens of the busiest expert over the mean of all")},
)
def check(moe: MoeResult, collectives: CollectivesResult, limits: Limits) -> Iterator[Draft]:
    """Yield one finding per expert that is overloaded in any layer."""
    by_expert: dict[int, list[MoeLayer]] = {}
    for layer in moe.layers:
        if _load(layer) >= limits["load_ratio"] and _is_beyond_luck(layer):
            by_expert.setdefault(layer.busiest_expert, []).append(layer)
    num_overloaded = sum(len(layers) for layers in by_expert.values())
    waiting = _waiting_ns(collectives)
    for expert, layers in sorted(by_expert.items()):
        cost = None if waiting is None else waiting * len(layers) // num_overloaded
        load = sum(_load(layer) for layer in layers) / len(layers)
        yield Draft(
            message=(
                f"Expert {expert} gets {load:.1f} times the mean of all experts' tokens in "
                f"{len(layers)} of {len(moe.layers)} layers{_waits(cost)}."
            ),
            fix=(
                "Raise the weight of the load-balancing loss or bias the router against busy "
                "experts; spread experts that are busy together over ranks."
            ),
            cost_ns_per_step=cost,
            confidence=Confidence.INFERRED,
            evidence=("moe.layers", "collectives.classes"),
        )


def _load(layer: MoeLayer) -> float:
    return layer.busiest_share_ratio * layer.num_experts


def _is_beyond_luck(layer: MoeLayer) -> bool:
    """Whether even routing would hardly give any expert such a share."""
    even = 1 / layer.num_experts
    number = max(layer.tokens_per_step * layer.top_k * layer.num_steps, 1)
    deviation = math.sqrt(even * (1 - even) / number)
    return layer.busiest_share_ratio - even >= _DEVIATIONS * deviation > 0


def _waiting_ns(collectives: CollectivesResult) -> int | None:
    """Exposed waiting in all-to-alls; None where there are none, or it is not known."""
    waits = [
        found.exposed_wait_ns_per_step
        for found in collectives.classes
        if found.kind == CollectiveKind.ALL_TO_ALL.label
    ]
    known = [wait for wait in waits if wait is not None]
    return sum(known) if known else None


def _waits(cost: int | None) -> str:
    if not cost:
        return ""
    return f"; the other ranks wait for all-to-alls for {format_duration(cost)} of each step"
