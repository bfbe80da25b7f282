"""# uneven-all-to-all

## What it detects
In the all-to-alls that dispatch tokens to their experts, one rank sends or receives far more than
the mean of its group.

## Why it costs time
An all-to-all ends only when the busiest rank's links have moved all their bytes. The links of the
other ranks idle until then.

## Evidence needed
Split sizes of the all-to-alls, from the arguments of NCCL's records or the inputs of the
operator, and their times on every rank of the group.

## How the cost is computed
Transfer time of the exchanges after the last rank has arrived, times one minus the ratio of the
mean rank's bytes to the busiest rank's. Even sizes would recover this time if links are the limit.
It is part of what `exposed-communication` reports, and fixing `overloaded-expert` or
`unbalanced-expert-placement` recovers it too. It is unknown if waiting and transfer cannot be
separated.

## How to fix
Receivers are uneven because of their experts: balance the routing, or place experts by their loads.
Senders are uneven because they have different numbers of tokens: pack or pad sequences so that all
ranks hold the same number.

## When it is wrong
If links inside the node differ between pairs of ranks, sizes alone do not show which link is the
slowest.

## Sources
Formula sheet, "Mixture of experts" and "Collectives" (all-to-all).
"""

from __future__ import annotations

from collections.abc import Iterator

from distprof.rules.base import Draft, Limit, Limits, rule
from distprof.sections.moe.result import MoeExchange, MoeResult
from distprof.sections.moe.rules._shared import DEVIATIONS
from distprof.terms import Confidence, Severity
from distprof.units import name_ranks


@rule(
    code="MOE105",
    severity=Severity.INFO,
    since="0.1.0",
    limits={"size_ratio": Limit(1.3, "bytes of the busiest rank over the mean of its group")},
)
def check(moe: MoeResult, limits: Limits) -> Iterator[Draft]:
    """Yield one finding for the group with the most uneven exchanges."""
    uneven = [
        exchange
        for exchange in moe.exchanges
        if _ratio(exchange) >= limits["size_ratio"] and _is_beyond_chance(exchange, moe)
    ]
    if not uneven:
        return
    worst = max(uneven, key=_ratio)
    costs = [_cost(exchange) for exchange in uneven]
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


def _cost(exchange: MoeExchange) -> int | None:
    if exchange.transfer_ns_per_step is None:
        return None
    return round(exchange.transfer_ns_per_step * (1 - 1 / _ratio(exchange)))
