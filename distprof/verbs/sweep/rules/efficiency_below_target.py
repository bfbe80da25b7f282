"""# efficiency-below-target

## What it detects
More ranks do less work per rank than is accepted: efficiency over the smallest size is below the
target, and so is its whole interval.

## Why it costs time
At an efficiency of 70 %, three of ten GPUs work for nothing. What is lost grows with every rank
that is added, so a job that is to run on many GPUs should not begin below the target on a few.

## Evidence needed
Runs of two sizes at least. Repeats of each tell how sure the efficiency is; without them the
interval is that of the steps of one run.

## How the cost is computed
The step at the largest such size, less what the same work would take at the efficiency of the
baseline.

## How to fix
What the loss consists of says what to do: see the losses by cause, and the findings of
`distprof analyze` on the largest run. Strong scaling always ends somewhere; then use fewer ranks,
or let the batch grow with them.

## When it is wrong
A baseline of one rank has no communication at all; where no rank alone can train the model anyway,
a baseline of one node is fairer.

## Sources
Formula sheet, "Scaling".
"""

from __future__ import annotations

from collections.abc import Iterator

from distprof.rules.base import Draft, Limit, Limits, rule
from distprof.terms import Severity
from distprof.units import format_ratio
from distprof.verbs.sweep.result import ScalingResult
from distprof.verbs.sweep.rules._shared import between, larger_sizes


@rule(
    code="SCA102",
    severity=Severity.WARNING,
    since="0.1.0",
    needs=(ScalingResult,),
    limits={"target_ratio": Limit(0.8, "efficiency over the baseline that is asked for")},
)
def check(scaling: ScalingResult, limits: Limits) -> Iterator[Draft]:
    """Yield one finding for the sweep, at its largest size below the target."""
    target = limits["target_ratio"]
    below = [
        size
        for size in larger_sizes(scaling)
        if (size.efficiency if size.efficiency_high is None else size.efficiency_high) < target
    ]
    if not below:
        return
    worst = below[-1]
    since = f"; it falls below at {below[0].num_ranks} ranks" if len(below) > 1 else ""
    yield Draft(
        message=(
            f"{str(scaling.mode).capitalize()} scaling from {scaling.baseline_ranks} to"
            f" {worst.num_ranks} ranks has an efficiency of {between(worst)}, below the"
            f" {format_ratio(target)} that are asked for{since}."
        ),
        fix=(
            "See the losses by cause for what to change; until then, use fewer ranks than"
            f" {below[0].num_ranks}, or more work per rank."
        ),
        cost_ns_per_step=max(worst.lost_ns, 1),
        evidence=("scaling.sizes",),
    )
