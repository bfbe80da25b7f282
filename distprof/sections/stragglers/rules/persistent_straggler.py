"""# persistent-straggler

## What it detects
The same rank (or few ranks) comes last to the collectives of most steps, and the others wait for
it.

## Why it costs time
A synchronous job runs at the speed of its slowest rank. One GPU that is 10 % slow makes a
thousand others 10 % slow.

## Evidence needed
Collectives matched across at least two ranks, on clocks that can be compared. Lateness below the
clock residual blames nobody, and a rank is named only if its share of the waiting is far beyond
what chance gives to one of many equal ranks.

## How the cost is computed
For each collective in which the rank came last, the median exposed wait of the other members, as
a mean over all other ranks of the run; summed over the collectives of a step, mean over steps.
Lateness that it hands on is its own: a rank that waited in one group of a mesh, and therefore
comes late to its next, is not blamed. The time is part of what `exposed-communication` reports.
With several stragglers, curing one brings back only the time down to the next.

## How to fix
By cause. Slow device (its kernels take longer than the same kernels elsewhere): clocks,
temperature, power cap, a failing card; take the node out. More work: balance data, experts,
layers. Late input: its storage, its `num_workers`. Late host: core pinning, other processes on
that host, Python's garbage collector.

## When it is wrong
Unequal work on purpose (the last pipeline stage, a rank that also logs or evaluates) is a
property of the program. Where ranks are missing from the capture, one of them may be later still.
Lateness handed on through a group that is not in the trace is blamed on the rank that shows it.

## Sources
Formula sheet, "Measured from traces" (straggler).
"""

from __future__ import annotations

from collections.abc import Iterator

from distprof.rules.base import Draft, Limit, Limits, rule
from distprof.sections.collectives.result import CollectivesResult
from distprof.sections.stragglers.result import StragglersResult
from distprof.sections.stragglers.rules._shared import because, fix_of, of_pattern
from distprof.terms import Confidence, Severity, StragglerCause, StragglerPattern
from distprof.units import format_duration, format_ratio


@rule(
    code="STR101",
    severity=Severity.WARNING,
    since="0.1.0",
    needs=(StragglersResult, CollectivesResult),
    limits={
        "min_step_ratio": Limit(0.015, "share of the step that waiting for the rank may take"),
        "error_step_ratio": Limit(0.1, "share of the step from which it is an error"),
    },
)
def check(
    stragglers: StragglersResult, collectives: CollectivesResult, limits: Limits
) -> Iterator[Draft]:
    """Yield one finding per persistent straggler."""
    found = of_pattern(
        stragglers, collectives, StragglerPattern.PERSISTENT, limits["min_step_ratio"]
    )
    for rank in found:
        share = rank.share_of_step_ratio
        sure = rank.cause is not StragglerCause.UNKNOWN and rank.confidence >= 0.75
        yield Draft(
            message=(
                f"The other ranks wait {format_duration(rank.lost_ns_per_step)} of each step "
                f"({format_ratio(share)}) for rank {rank.rank}; {because(rank)}."
            ),
            fix=fix_of(rank),
            cost_ns_per_step=rank.lost_ns_per_step,
            confidence=Confidence.MEASURED if sure else Confidence.INFERRED,
            ranks=(rank.rank,),
            evidence=("stragglers.ranks",),
            without=f"rank {rank.rank}",
            severity=Severity.ERROR if share >= limits["error_step_ratio"] else None,
        )
