"""Rules about experts: their load, their placement and the exchange of tokens."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from distprof.artefacts.record import grouped
from distprof.rules.base import Draft, InsufficientEvidenceError, Limit, Limits, rule
from distprof.sections.collectives import CollectivesResult
from distprof.sections.moe import MoeExchange, MoeLayer, MoePlacement, MoeResult
from distprof.terms import CollectiveKind, Confidence, Severity
from distprof.units import format_duration, format_ratio, name_ranks

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


_MOST_NAMED = 3


@rule(
    "MOE101",
    Severity.WARNING,
    load_ratio=Limit(2.0, "tokens of the busiest expert over the mean expert"),
)
def overloaded_expert(
    moe: MoeResult, collectives: CollectivesResult, limits: Limits
) -> Iterator[Draft]:
    """Routers send one expert far more tokens than the others over the whole recording."""
    check_experts_known(moe)
    overloaded = [
        layer
        for layer in moe.layers
        if _load(layer) >= limits["load_ratio"] and is_beyond_chance(layer)
    ]
    by_expert = grouped([(layer.busiest_expert, layer) for layer in overloaded])
    named = {e: busy for e, busy in by_expert.items() if 2 * len(busy) >= len(moe.layers)}
    if len(by_expert) <= _MOST_NAMED:
        named = by_expert
    others = [layer for layer in overloaded if layer.busiest_expert not in named]
    has_one = len(named) + bool(others) == 1
    for expert, layers in sorted(named.items()):
        cost, is_measured = _cost(moe, layers, len(overloaded), collectives)
        load = sum(_load(layer) for layer in layers) / len(layers)
        yield _draft(
            f"Expert {expert} gets {load:.1f} times the tokens of the mean expert",
            f"This is the mean of {_share_of(moe.layers, len(layers))}",
            cost,
            is_measured=is_measured,
            is_only=has_one,
        )
    if others:
        worst = max(others, key=_load)
        cost, is_measured = _cost(moe, others, len(overloaded), collectives)
        yield _draft(
            f"Single experts get up to {_load(worst):.1f} times the tokens of the mean expert",
            f"In {_share_of(moe.layers, len(others))} one expert, which differs by layer, "
            f"gets at least {limits['load_ratio']:g} times as many; the busiest is expert "
            f"{worst.busiest_expert} of {name_layer(worst)}",
            cost,
            is_measured=is_measured,
            is_only=has_one,
        )


def _share_of(rows: Sequence[MoeLayer | MoePlacement], count: int) -> str:
    """For example "3 of 15 layers": there is a row for each layer and part of the data."""
    parts = " and parts of the data" if any(row.part for row in rows) else ""
    return f"{count} of {len(rows)} layers{parts}"


def _draft(
    headline: str, message: str, cost: int | None, *, is_measured: bool, is_only: bool
) -> Draft:
    """The what-if scenario covers all uneven experts, so only a single finding can refer to it."""
    return Draft(
        headline=headline,
        message=f"{message}{_waits(cost, is_measured=is_measured)}.",
        cost_ns_per_step=cost,
        confidence=Confidence.MEASURED if is_measured else Confidence.INFERRED,
        evidence=("moe.layers", "collectives.classes"),
        without="expert-imbalance" if is_only else "",
    )


def _load(layer: MoeLayer) -> float:
    return layer.busiest_share_ratio * layer.num_experts


def _cost(
    moe: MoeResult, layers: Sequence[MoeLayer], num_overloaded: int, collectives: CollectivesResult
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
    """Experts get almost no tokens: less than 1 % of the mean over the whole recording."""
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
        headline=f"{number} of {worst.num_experts} experts of a layer get almost no tokens",
        message=f"In {name_layer(worst)} they get less than 1 % of the mean{_named(worst)}{more}.",
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
    """Assignments of tokens to experts were dropped because the experts were over capacity."""
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
        headline=f"A layer drops {format_ratio(worst.dropped_ratio)} of its assignments of tokens",
        message=(
            f"It is {name_layer(worst)}{rest if len(moe.layers) > 1 else ''}. Its busiest expert "
            f"gets {worst.max_over_mean:.1f} times the mean."
        ),
        evidence=("moe.layers",),
    )


MOST_LAYERS = 0.75
"""If at least this share of layers is uneven, busy experts matter only because of placement."""


@rule(
    "MOE104",
    Severity.WARNING,
    rank_ratio=Limit(1.2, "tokens of the busiest rank over the mean of its group"),
    gain_ratio=Limit(0.5, "smallest share of the excess that another placement removes"),
)
def unbalanced_expert_placement(moe: MoeResult, limits: Limits) -> Iterator[Draft]:
    """Ranks that share the experts of a layer get uneven numbers of tokens, and another placement
    of the same experts would balance them.
    """
    check_experts_known(moe)
    rows = moe.typical_placement
    uneven = [row for row in rows if _is_uneven(row, limits)]
    if not uneven:
        return
    worst = max(uneven, key=lambda row: row.max_over_mean)
    replaced = worst.replaced_max_over_mean or 1.0
    saved = [
        row.expert_ns_per_step - row.replaced_ns_per_step
        for row in uneven
        if row.expert_ns_per_step is not None and row.replaced_ns_per_step is not None
    ]
    cost = round(max(sum(saved), 0) * share_of_layers(moe)) if len(saved) == len(uneven) else None
    explains_load = cost is None and len(uneven) >= MOST_LAYERS * len(rows)
    yield Draft(
        headline=(
            f"Placement of experts: the busiest rank gets {worst.max_over_mean:.2f} times the mean"
        ),
        message=(
            f"In {_share_of(rows, len(uneven))}, placement by measured loads would remove at "
            f"least {format_ratio(limits['gain_ratio'])} of the excess. In the most uneven of "
            f"these, {name_layer(worst)}, the busiest of {worst.num_ranks} ranks would get "
            f"{replaced:.2f} times."
        ),
        cost_ns_per_step=cost,
        confidence=Confidence.MODELLED,
        evidence=("moe.placement",),
        explains=("MOE101",) if explains_load else (),
    )


def _is_uneven(row: MoePlacement, limits: Limits) -> bool:
    if row.replaced_max_over_mean is None or row.max_over_mean < limits["rank_ratio"]:
        return False
    left = (row.replaced_max_over_mean - 1) / (row.max_over_mean - 1)
    return left <= 1 - limits["gain_ratio"] and ranks_beyond_chance(row)


@rule(
    "MOE105",
    Severity.INFO,
    size_ratio=Limit(1.3, "bytes of the busiest rank over the mean of its group"),
)
def uneven_all_to_all(moe: MoeResult, limits: Limits) -> Iterator[Draft]:
    """In the all-to-alls that dispatch tokens to their experts, one rank sends or receives far more
    than the mean of its group.
    """
    uneven = [
        exchange
        for exchange in moe.exchanges
        if _ratio(exchange) >= limits["size_ratio"] and _is_beyond_chance(exchange, moe)
    ]
    if not uneven:
        return
    worst = max(uneven, key=_ratio)
    costs = [
        round(exchange.transfer_ns_per_step * (1 - 1 / _ratio(exchange)))
        for exchange in uneven
        if exchange.transfer_ns_per_step is not None
    ]
    more = f"; {len(uneven)} of {len(moe.exchanges)} groups are uneven" if len(uneven) > 1 else ""
    yield Draft(
        headline=f"{_busiest(worst)} the mean of its group in dispatch",
        message=f"Its group is {name_ranks(worst.ranks)}{more}.",
        cost_ns_per_step=sum(costs) // len(moe.exchanges) if len(costs) == len(uneven) else None,
        confidence=Confidence.INFERRED,
        evidence=("moe.exchanges", "moe.pairs"),
    )


def _ratio(exchange: MoeExchange) -> float:
    return max(exchange.sent_max_over_mean or 1.0, exchange.received_max_over_mean or 1.0)


def _busiest(exchange: MoeExchange) -> str:
    sent, received = exchange.sent_max_over_mean or 1.0, exchange.received_max_over_mean or 1.0
    if sent > received:
        return f"Rank {exchange.busiest_sender} sends {sent:.1f} times"
    return f"Rank {exchange.busiest_receiver} receives {received:.1f} times"


def _is_beyond_chance(exchange: MoeExchange, moe: MoeResult) -> bool:
    """Whether chance alone does not explain the ratio; True if the number of tokens is unknown."""
    size = len(exchange.ranks)
    calls = [row.tokens_per_call for row in moe.placement if row.num_ranks == size]
    if not calls or size < 2:
        return size > 1
    tokens = sum(calls) / len(calls)
    return bool(tokens > 0 and _ratio(exchange) - 1 >= DEVIATIONS * ((size - 1) / tokens) ** 0.5)
