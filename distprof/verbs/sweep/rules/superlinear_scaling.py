"""# superlinear-scaling

## What it detects
Each rank does more work per time than in the baseline, by more than repeats differ.

## Why it costs time
It costs no time, but every efficiency over this baseline is too high: the slow baseline hides
losses at larger sizes. A gate on efficiency then misses regressions, and an extrapolation is too
optimistic.

## Evidence needed
Runs of at least two sizes, with the interval of their efficiency from repeats or steps.

## How the cost is computed
No cost is computed: the sweep loses no time, but its efficiencies are not meaningful.

## How to fix
Analyse the baseline alone first. It may be short of memory and recompute, page or allocate again.
Its share of the data may not fit into caches. It may have run next to other programs, or on
different hardware. Choose a larger baseline, and repeat it alternately with the other sizes.

## When it is wrong
In strong scaling, each rank's share shrinks and may fit into a cache at some size. Then the gain is
real, but it does not continue with more ranks.

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
    limits={"above_ratio": Limit(0.02, "efficiency above 1 that counts as measurement error")},
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
            f"On {best.num_ranks} ranks, the efficiency over {ranks} is"
            f" {between(best)}{_computation(best)}."
        ),
        fix=(
            f"Analyse the baseline of {ranks} alone (memory, recomputation, other programs), repeat"
            " it alternately with the other sizes, or choose a larger baseline."
        ),
        evidence=("scaling.sizes",),
    )


def _computation(size: ScalingSize) -> str:
    """How much shorter the computation of the same work is; empty if traces do not show it."""
    grew = next((x.lost_ns for x in size.losses if x.cause == CAUSES["computation_ns"]), None)
    if grew is None or grew >= 0 or size.computation_ns is None:
        return ""
    less = format_ratio(-grew / (size.computation_ns - grew))
    return f"; computation of the same work is {less} shorter"
