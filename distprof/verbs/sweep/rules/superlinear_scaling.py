"""# superlinear-scaling

## What it detects
More ranks do more work per rank than the baseline does, beyond what repeats differ by.

## Why it costs time
It costs nothing, but every efficiency that is measured against such a baseline is too high: losses
of larger sizes hide behind a baseline that is itself slow. A gate on efficiency then passes what it
should not, and an extrapolation promises what will not come.

## Evidence needed
Runs of two sizes at least, with the interval of their efficiency from repeats or steps.

## How the cost is computed
There is none: the sweep loses no time to it, only its meaning.

## How to fix
Look at the baseline first: analyse it alone. Usual reasons are a baseline that is short of memory
and recomputes, pages or allocates anew, whose share does not fit the caches, that was measured
while something else ran, or on other hardware. Choose a larger baseline, and repeat it in turns
with the others.

## When it is wrong
In strong scaling each rank's share gets smaller and may fit a cache at last: then it is true,
although not a reason to expect more of the same.

## Sources
Gunther, Puglia and Tomasette, "Hadoop Superlinear Scalability" (2015).
"""

from __future__ import annotations

from collections.abc import Iterator

from distprof.rules.base import Draft, Limit, Limits, rule
from distprof.terms import Severity
from distprof.units import format_ratio
from distprof.verbs.sweep.result import CAUSES, ScalingResult, ScalingSize
from distprof.verbs.sweep.rules._shared import between, larger_sizes, lowest


@rule(
    code="SCA105",
    severity=Severity.INFO,
    since="0.1.0",
    needs=(ScalingResult,),
    limits={"above_ratio": Limit(0.02, "efficiency beyond 1 that is put down to measurement")},
    costs_time=False,
)
def check(scaling: ScalingResult, limits: Limits) -> Iterator[Draft]:
    """Yield one finding, for the size with the highest efficiency."""
    beyond = [size for size in larger_sizes(scaling) if lowest(size) > 1 + limits["above_ratio"]]
    if not beyond:
        return
    best = max(beyond, key=lambda size: size.efficiency)
    base = scaling.baseline_ranks
    ranks = f"{base} rank{'' if base == 1 else 's'}"
    yield Draft(
        message=(
            f"On {best.num_ranks} ranks the efficiency over {ranks} is"
            f" {between(best)}{_computation(best)}."
        ),
        fix=(
            f"Analyse the baseline of {ranks} alone (memory, recomputation, other programs), repeat"
            " it in turns with the others, or choose a larger one."
        ),
        evidence=("scaling.sizes",),
    )


def _computation(size: ScalingSize) -> str:
    """Whether computation of the same work got shorter, where traces tell."""
    grew = next((x.lost_ns for x in size.losses if x.cause == CAUSES["computation_ns"]), None)
    if grew is None or grew >= 0 or size.computation_ns is None:
        return ""
    less = format_ratio(-grew / (size.computation_ns - grew))
    return f"; computation of the same work is {less} shorter there"
