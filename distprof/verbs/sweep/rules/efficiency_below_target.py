"""# efficiency-below-target

## What it detects
Each rank does less work per time as ranks are added, and the efficiency falls below the target,
with its whole 95 % interval.

## Why it costs time
At an efficiency of 70 %, three of ten GPUs are wasted. The loss grows with every added rank, so a
job for many GPUs should reach the target on a few GPUs first.

## Evidence needed
Runs of at least two sizes. Repeats of each size determine the uncertainty of the efficiency.
Without repeats, the interval comes from the steps of one run.

## How the cost is computed
The step at the largest size below the target, minus the time of the same work at the efficiency of
the baseline.

## How to fix
Start with the losses by cause, and with the findings of `distprof analyze` on the largest run.
Strong scaling always has a limit. At the limit, use fewer ranks, or increase the batch with them.

## When it is wrong
If the baseline is a single rank, which has no communication. If one rank cannot train the model
anyway, a baseline of one node is fairer.

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
    limits={"target_ratio": Limit(0.8, "required efficiency over the baseline")},
)
def check(scaling: ScalingResult, limits: Limits) -> Iterator[Draft]:
    """Yield one finding for the largest size below the target."""
    target = limits["target_ratio"]
    below = [
        size
        for size in larger_sizes(scaling)
        if (size.efficiency if size.efficiency_high is None else size.efficiency_high) < target
    ]
    if not below:
        return
    worst = below[-1]
    since = f" It falls below the target at {below[0].num_ranks} ranks." if len(below) > 1 else ""
    yield Draft(
        message=(
            f"{str(scaling.mode).capitalize()} scaling from {scaling.baseline_ranks} to"
            f" {worst.num_ranks} ranks has an efficiency of {between(worst)}, below the target of"
            f" {format_ratio(target)}.{since}"
        ),
        fix=(
            "Reduce the largest of the losses by cause. Until then, use fewer than"
            f" {below[0].num_ranks} ranks, or more work per rank."
        ),
        cost_ns_per_step=max(worst.lost_ns, 1),
        evidence=("scaling.sizes",),
    )
