"""Rules about the exchange of tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from distprof.rules.base import Draft, Limit, Limits, rule
from distprof.sections.moe.result import MoeExchange, MoePlacement, MoeResult
from distprof.sections.moe.rules._shared import (
    DEVIATIONS,
    check_experts_known,
    name_layer,
    ranks_beyond_chance,
    share_of_layers,
)
from distprof.terms import Confidence, Severity
from distprof.units import name_ranks

_TYPICAL_RANKS = 8

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

    ## Why it costs time
    In every layer the step waits for the rank with the most tokens. Experts that are busy at the
    same time are often on one rank because experts are placed in numerical order.

    ## Evidence needed
    Tokens per expert (`moe.jsonl`, or counts), and the ranks that share them: from the all-to-alls
    of the trace, from the mesh, or, for counts alone, a number of ranks that divides the number of
    experts.

    ## How the cost is computed
    Measured expert time of the slowest rank, minus its modelled time if each layer's experts were
    placed by their measured loads, busiest first onto the least loaded rank. The model shrinks the
    slowest rank's excess over the mean in proportion to its excess of tokens. The cost sums the
    layers of a rank. It is unknown without times.

    ## How to fix
    Place experts by their loads, separately for each layer (an expert-parallel load balancer such
    as EPLB does this). `moe.placement` in the report holds a placement. Replicate the busiest
    experts if one alone exceeds a rank's share.

    ## When it is wrong
    If the routing drifts (`moe.drift`), a placement that fits now will not fit later. Moving
    experts moves their optimizer state too. The placement is evaluated on the same loads that it
    was derived from.

    ## Sources
    Formula sheet, "Mixture of experts". DeepSeek-AI, EPLB (expert parallelism load balancer).
    """
    check_experts_known(moe)
    rows = _of_one_size(moe.placement)
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
        message=(
            f"Ranks that share experts are uneven in {len(uneven)} of {len(rows)} layers, most in "
            f"{name_layer(worst)}: {worst.max_over_mean:.2f} times the mean on the busiest of "
            f"{worst.num_ranks} ranks, and {replaced:.2f} times with experts placed by measured "
            "loads."
        ),
        fix=(
            "Place experts by their loads, layer by layer (as expert-parallel load balancers do). "
            "See moe.placement in the report for a placement."
        ),
        cost_ns_per_step=cost,
        confidence=Confidence.MODELLED,
        evidence=("moe.placement",),
        explains=("MOE101",) if explains_load else (),
    )


def _of_one_size(rows: Sequence[MoePlacement]) -> list[MoePlacement]:
    """One row per layer: if several numbers of ranks were tried, the number nearest to eight."""
    best: dict[tuple[str, str], MoePlacement] = {}
    for row in rows:
        best_yet = best.setdefault((row.part, row.layer), row)
        if abs(row.num_ranks - _TYPICAL_RANKS) < abs(best_yet.num_ranks - _TYPICAL_RANKS):
            best[row.part, row.layer] = row
    return list(best.values())


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

    ## Why it costs time
    An all-to-all ends only when the busiest rank's links have moved all their bytes. The links of
    the other ranks idle until then.

    ## Evidence needed
    Split sizes of the all-to-alls, from the arguments of NCCL's records or the inputs of the
    operator, and their times on every rank of the group.

    ## How the cost is computed
    Transfer time of the exchanges after the last rank has arrived, times one minus the ratio of the
    mean rank's bytes to the busiest rank's. Even sizes would recover this time if links are the
    limit. It is part of what `exposed-communication` reports, and fixing `overloaded-expert` or
    `unbalanced-expert-placement` recovers it too. It is unknown if waiting and transfer cannot be
    separated.

    ## How to fix
    Receivers are uneven because of their experts: balance the routing, or place experts by their
    loads. Senders are uneven because they have different numbers of tokens: pack or pad sequences
    so that all ranks hold the same number.

    ## When it is wrong
    If links inside the node differ between pairs of ranks, sizes alone do not show which link is
    the slowest.

    ## Sources
    Formula sheet, "Mixture of experts" and "Collectives" (all-to-all).
    """
    uneven = [
        exchange
        for exchange in moe.exchanges
        if _ratio(exchange) >= limits["size_ratio"] and _is_beyond_chance(exchange, moe)
    ]
    if not uneven:
        return
    worst = max(uneven, key=_ratio)
    costs = [_uneven_all_to_all_cost(exchange) for exchange in uneven]
    known = [cost for cost in costs if cost is not None]
    more = f"; {len(uneven)} of {len(moe.exchanges)} groups are uneven" if len(uneven) > 1 else ""
    yield Draft(
        message=f"{_busiest(worst)} the mean of its group in dispatch "
        f"({name_ranks(worst.ranks)}){more}.",
        fix=(
            "If receivers are uneven, balance the routing or place experts by their loads. If "
            "senders are uneven, give all ranks the same number of tokens."
        ),
        cost_ns_per_step=sum(known) // len(moe.exchanges) if len(known) == len(costs) else None,
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


def _uneven_all_to_all_cost(exchange: MoeExchange) -> int | None:
    if exchange.transfer_ns_per_step is None:
        return None
    return round(exchange.transfer_ns_per_step * (1 - 1 / _ratio(exchange)))
