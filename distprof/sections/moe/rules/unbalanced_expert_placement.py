"""# unbalanced-expert-placement

## What it detects
Ranks that share the experts of a layer get uneven numbers of tokens, where another placement of
the same experts would make them even.

## Why it costs time
A step waits for the rank with most tokens, layer by layer. Experts that are busy together often
lie on one rank because they are placed in order of their numbers.

## Evidence needed
Tokens per expert (`moe.jsonl`, or counts), and the ranks that share them: by the all-to-alls of
the trace, by the mesh, or, for counts alone, a number of ranks that divides the experts.

## How the cost is computed
Expert time of the slowest rank as it is, less what it would be if each layer's experts were
placed by their measured loads, busiest first onto the rank with least: the excess of the slowest
rank over the mean shrinks as that of its tokens does. Layers that a rank holds are added up.
Unknown without times.

## How to fix
Place experts by their loads (an expert-parallel load balancer such as EPLB does), for each layer
by itself; `moe.placement` in the report holds a placement. Give the busiest experts replicas if
one alone is more than a rank's share.

## When it is wrong
If the routing drifts (`moe.drift`) a placement that fits now will not fit later. Moving experts
moves their optimizer state too. The placement is judged by the loads that it was made of.

## Sources
Formula sheet, "Mixture of experts". DeepSeek-AI, EPLB (expert parallelism load balancer).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from distprof.rules.base import Draft, Limit, Limits, rule
from distprof.sections.moe.result import MoePlacement, MoeResult
from distprof.sections.moe.rules._shared import (
    check_experts_known,
    name_layer,
    ranks_beyond_luck,
    share_of_layers,
)
from distprof.terms import Confidence, Severity

_TYPICAL_RANKS = 8


@rule(
    code="MOE104",
    severity=Severity.WARNING,
    since="0.1.0",
    needs=(MoeResult,),
    limits={
        "rank_ratio": Limit(1.2, "tokens of the busiest rank over the mean of its group"),
        "gain_ratio": Limit(0.5, "share of the excess that another placement takes away"),
    },
)
def check(moe: MoeResult, limits: Limits) -> Iterator[Draft]:
    """Yield one finding for all layers whose experts could be placed better."""
    check_experts_known(moe)
    rows = _of_one_size(moe.placement)
    found = [row for row in rows if _is_uneven(row, limits)]
    if not found:
        return
    worst = max(found, key=lambda row: row.max_over_mean)
    anew = worst.replaced_max_over_mean or 1.0
    yield Draft(
        message=(
            f"Ranks that share experts are uneven in {len(found)} of {len(rows)} layers, most in "
            f"{name_layer(worst)}: {worst.max_over_mean:.2f} times the mean on the busiest of "
            f"{worst.num_ranks} ranks, {anew:.2f} times if placed by measured loads."
        ),
        fix=(
            "Place experts by their loads, layer by layer (as expert-parallel load balancers do); "
            "moe.placement in the report holds a placement."
        ),
        cost_ns_per_step=_cost(moe, found),
        confidence=Confidence.MODELLED,
        evidence=("moe.placement",),
    )


def _of_one_size(rows: Sequence[MoePlacement]) -> list[MoePlacement]:
    """Of layers that several numbers of ranks were tried for, the number nearest to eight."""
    best: dict[tuple[str, str], MoePlacement] = {}
    for row in rows:
        known = best.setdefault((row.part, row.layer), row)
        if abs(row.num_ranks - _TYPICAL_RANKS) < abs(known.num_ranks - _TYPICAL_RANKS):
            best[row.part, row.layer] = row
    return list(best.values())


def _is_uneven(row: MoePlacement, limits: Limits) -> bool:
    if row.replaced_max_over_mean is None or row.max_over_mean < limits["rank_ratio"]:
        return False
    left = (row.replaced_max_over_mean - 1) / (row.max_over_mean - 1)
    return left <= 1 - limits["gain_ratio"] and ranks_beyond_luck(row)


def _cost(moe: MoeResult, rows: Sequence[MoePlacement]) -> int | None:
    """What the slowest ranks would save, all layers; None where a layer has no time."""
    saved = [
        row.expert_ns_per_step - row.replaced_ns_per_step
        for row in rows
        if row.expert_ns_per_step is not None and row.replaced_ns_per_step is not None
    ]
    return round(max(sum(saved), 0) * share_of_layers(moe)) if len(saved) == len(rows) else None
