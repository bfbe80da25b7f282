"""Rules about the routing of tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from distprof.rules.base import Draft, Limit, Limits, rule
from distprof.sections.collectives.result import CollectivesResult
from distprof.sections.moe.result import MoeLayer, MoeResult
from distprof.sections.moe.rules._shared import (
    check_experts_known,
    is_beyond_chance,
    name_layer,
    share_of_layers,
)
from distprof.terms import CollectiveKind, Confidence, Severity
from distprof.units import format_duration, format_ratio

_MOST_NAMED = 3
_FIX = (
    "Raise the weight of the load-balancing loss, or bias the router against busy experts. Place "
    "experts that are busy at the same time on different ranks."
)


@rule(
    "MOE101",
    Severity.WARNING,
    load_ratio=Limit(2.0, "tokens of the busiest expert over the mean expert"),
)
def overloaded_expert(
    moe: MoeResult, collectives: CollectivesResult, limits: Limits
) -> Iterator[Draft]:
    """Routers send one expert far more tokens than the others over the whole recording.

    ## Why it costs time
    The rank with this expert processes all its tokens, and the other ranks wait for it in the
    all-to-all that returns tokens. With a capacity limit tokens are dropped instead, and the model
    learns less.

    ## Evidence needed
    The routing that each rank logged (`moe.jsonl`), or counts of tokens per expert. An expert
    counts if its share is higher than even routing of the same number of tokens would show by
    chance.

    ## How the cost is computed
    Each rank computes its experts between the all-to-all that dispatches tokens and the one that
    returns results. The cost is the time of the slowest rank minus that of the mean rank, summed
    over the forward and backward sections of these layers, per step. If sections cannot be
    identified, the cost is the exposed waiting in all-to-alls, mean per rank and step. This is an
    upper bound, because ranks may also be late for other reasons. Several overloaded experts share
    it in proportion to the layers in which each is the busiest. The time is part of what
    `exposed-communication` reports.

    ## How to fix
    Raise the weight of the load-balancing loss, or bias the router against busy experts (loss-free
    balancing). Add noise to its logits early in training, and keep the router's initial weights
    small. Place experts that are busy at the same time on different ranks.

    ## When it is wrong
    Early in training routers are uneven because of their initial weights. Shared experts see every
    token and involve no routing.

    ## Sources
    Formula sheet, "Mixture of experts". Lepikhin et al. 2020 (GShard); Wang et al. 2024,
    "Auxiliary- loss-free load balancing strategy for mixture-of-experts".
    """
    check_experts_known(moe)
    overloaded = [
        layer
        for layer in moe.layers
        if _load(layer) >= limits["load_ratio"] and is_beyond_chance(layer)
    ]
    by_expert: dict[int, list[MoeLayer]] = {}
    for layer in overloaded:
        by_expert.setdefault(layer.busiest_expert, []).append(layer)
    named = {e: busy for e, busy in by_expert.items() if 2 * len(busy) >= len(moe.layers)}
    if len(by_expert) <= _MOST_NAMED:
        named = by_expert
    others = [layer for layer in overloaded if layer.busiest_expert not in named]
    has_one = len(named) + bool(others) == 1
    for expert, layers in sorted(named.items()):
        cost, is_measured = _cost(moe, layers, len(overloaded), collectives)
        message = (
            f"Expert {expert} gets {(sum(_load(layer) for layer in layers) / len(layers)):.1f} "
            f"times the tokens of the mean expert in {len(layers)} of {len(moe.layers)} layers"
        )
        yield _draft(message, cost, is_measured=is_measured, is_only=has_one)
    if others:
        worst = max(others, key=_load)
        cost, is_measured = _cost(moe, others, len(overloaded), collectives)
        message = (
            f"In {len(others)} of {len(moe.layers)} layers one expert, which differs by layer, "
            f"gets at least {limits['load_ratio']:g} times the tokens of the mean expert; the "
            f"busiest is expert {worst.busiest_expert} of {name_layer(worst)} with "
            f"{_load(worst):.1f} times"
        )
        yield _draft(message, cost, is_measured=is_measured, is_only=has_one)


def _draft(message: str, cost: int | None, *, is_measured: bool, is_only: bool) -> Draft:
    """The what-if scenario covers all uneven experts, so only a single finding can refer to it."""
    return Draft(
        message=f"{message}{_waits(cost, is_measured=is_measured)}.",
        fix=_FIX,
        cost_ns_per_step=cost,
        confidence=Confidence.MEASURED if is_measured else Confidence.INFERRED,
        evidence=("moe.layers", "collectives.classes"),
        without="expert-imbalance" if is_only else "",
    )


def _load(layer: MoeLayer) -> float:
    return layer.busiest_share_ratio * layer.num_experts


def _cost(
    moe: MoeResult,
    layers: Sequence[MoeLayer],
    num_overloaded: int,
    collectives: CollectivesResult,
) -> tuple[int | None, bool]:
    """The time per step, and whether it was measured in each section."""
    lost = [layer.lost_ns_per_step for layer in layers if layer.lost_ns_per_step is not None]
    if len(lost) == len(layers):
        return round(sum(lost) * share_of_layers(moe)), True
    # exposed waiting in all-to-alls; None if there are none or the waiting is unknown
    waits = [
        record.exposed_wait_ns_per_step
        for record in collectives.classes
        if record.kind == CollectiveKind.ALL_TO_ALL.label
    ]
    known = [wait for wait in waits if wait is not None]
    waiting = sum(known) if known else None
    return None if waiting is None else waiting * len(layers) // num_overloaded, False


def _waits(cost: int | None, *, is_measured: bool) -> str:
    if not cost:
        return ""
    if is_measured:
        longer = f"{format_duration(cost)} per step longer than the mean rank's"
        return f". The slowest rank's experts take {longer}"
    return f". The other ranks wait in all-to-alls for {format_duration(cost)} of each step"


_MIN_TOKENS = 100
_MAX_NAMED = 8


@rule(
    "MOE102",
    Severity.WARNING,
    costs_time=False,
    dead_ratio=Limit(0.05, "smallest share of dead experts in a layer"),
)
def dead_experts(moe: MoeResult, limits: Limits) -> Iterator[Draft]:
    """Experts get almost no tokens: less than 1 % of the mean over the whole recording.

    ## Why it costs time
    Their weights take memory, optimizer state and gradient traffic but learn nothing, and other
    experts process their tokens. No recording shows the time that this costs.

    ## Evidence needed
    The routing that each rank logged (`moe.jsonl`), or counts of tokens per expert, with enough
    tokens that even routing would give every expert at least 100.

    ## How the cost is computed
    No cost: a dead expert costs model quality and memory, not time.

    ## How to fix
    Raise the weight of the load-balancing loss, or bias the router towards experts with few tokens
    (loss-free balancing). Add noise to its logits early in training. Reinitialise an expert that
    stays dead from a busy one.

    ## When it is wrong
    Counts from one kind of text say little about an expert for another kind: count all kinds.

    ## Sources
    Formula sheet, "Mixture of experts". Shazeer et al. 2017, "Outrageously large neural networks".
    """
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


@rule(
    "MOE103",
    Severity.WARNING,
    costs_time=False,
    dropped_ratio=Limit(0.02, "smallest share of dropped assignments in a layer"),
)
def dropped_tokens(moe: MoeResult, limits: Limits) -> Iterator[Draft]:
    """Assignments of tokens to experts were dropped because the experts were over capacity.

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
    Some drops are expected: a capacity factor of 1 with good balance drops a few per cent by
    chance.

    ## Sources
    Formula sheet, "Mixture of experts". Fedus et al. 2021 (Switch Transformer), capacity factor.
    """
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
