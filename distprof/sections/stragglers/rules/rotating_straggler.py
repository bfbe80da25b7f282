"""# rotating-straggler

## What it detects
In most steps one rank arrives far later than all others, and it is a different one each time.

## Why it costs time
No rank is slow on average, yet every step waits for one. With N ranks that each stall once in N
steps, every step stalls.

## Evidence needed
Collectives matched across ranks on comparable clocks, and several steps. Late arrivals count only
if they are far outside the usual spread of the other members, so ordinary noise between equal ranks
is not reported.

## How the cost is computed
As for `persistent-straggler`, summed over the named ranks. The time is part of what
`exposed-communication` reports.

## How to fix
Remove what stalls ranks at random: run garbage collection on all ranks at the same step
(`gc.disable()`, then `gc.collect()` every N steps), balance sequence lengths within each global
batch, give data loader workers and NCCL threads their own cores, stop periodic daemons.

## When it is wrong
A few steps can look like rotation by chance. Data imbalance that changes from step to step (mixture
of experts, packed sequences) is real, but the machines are not at fault.

## Sources
Formula sheet, "Measured from traces" (straggler).
"""

from __future__ import annotations

from collections.abc import Iterator

from distprof.rules.base import Draft, Limit, Limits, rule
from distprof.sections.collectives.result import CollectivesResult
from distprof.sections.stragglers.result import StragglerSet, StragglersResult
from distprof.sections.stragglers.rules._shared import because, of_pattern, sets_of_pattern, who
from distprof.terms import Confidence, Severity, StragglerPattern
from distprof.units import fold_ranks, format_duration, format_ratio


@rule(
    code="STR103",
    severity=Severity.WARNING,
    since="0.1.0",
    limits={"min_step_ratio": Limit(0.02, "share of the step that rotating stalls may take")},
)
def check(
    stragglers: StragglersResult, collectives: CollectivesResult, limits: Limits
) -> Iterator[Draft]:
    """Yield one finding for the run."""
    for one in sets_of_pattern(stragglers, StragglerPattern.ROTATING, limits["min_step_ratio"]):
        yield _of_set(one)
    found = of_pattern(stragglers, collectives, StragglerPattern.ROTATING, limits["min_step_ratio"])
    if not found:
        return
    lost = sum(rank.lost_ns_per_step for rank in found)
    share = sum(rank.share_of_step_ratio for rank in found)
    ranks = tuple(sorted(rank.rank for rank in found))
    yield Draft(
        message=(
            f"Ranks {fold_ranks(ranks)} alternately arrive far behind all others, which wait "
            f"{format_duration(lost)} ({format_ratio(share)}) of every step."
        ),
        fix=(
            "Remove what stalls ranks at random: synchronise garbage collection (gc.disable and "
            "gc.collect every N steps), balance sequence lengths in a global batch, pin loader "
            "workers and NCCL threads to their own cores."
        ),
        cost_ns_per_step=lost,
        confidence=Confidence.INFERRED,
        ranks=ranks,
        evidence=("stragglers.ranks", "stragglers.steps"),
        without="late ranks",
    )


def _of_set(found: StragglerSet) -> Draft:
    """Finding on ranks that are slow alternately, by their own time."""
    share = format_ratio(found.share_of_step_ratio)
    return Draft(
        message=(
            f"{who(found)} are slow alternately, each in different steps: the others wait "
            f"{format_duration(found.lost_ns_per_step)} ({share}) of every step. {because(found)}."
        ),
        fix=(
            "Remove what slows ranks at random: other processes on their machines, garbage "
            "collection at different steps, batches of unequal cost, power limits that nodes share."
        ),
        cost_ns_per_step=found.lost_ns_per_step,
        confidence=Confidence.INFERRED,
        ranks=found.ranks,
        steps=found.steps,
        evidence=("stragglers.sets", "stragglers.steps"),
        without=found.scenario,
    )
