"""# scaling-loss-dominated

## What it detects
Most of the efficiency that is lost from the smallest to the largest size goes to one cause.

## Why it costs time
Efficiency is lost because parts of a step grow, beside the same computation: transfers that nothing
hides, waiting for the slowest rank, bubbles, the host, input. Where one of them is most of the
loss, little else is worth looking at.

## Evidence needed
Traces of the baseline and of the largest size, taken beside steps without a profiler.

## How the cost is computed
Each part of the traced step, scaled to the step without a profiler, less the same part of the
baseline for the same work. These differences add up to the lost time exactly; the cost is that of
the named cause. Scaling takes the profiler to stretch all parts alike.

## How to fix
Exposed transfer: overlap, fewer bytes, faster links, sharding inside a node. Imbalance: find the
straggler. Bubble: more micro-batches. Host: fewer, larger kernels, compilation. Input: more
workers. Computation that grew: work that every rank repeats, or smaller kernels.

## When it is wrong
Where the trace cannot tell waiting from transfer, the two are one cause. A profiler that slows
launches stretches the host's part more than others.

## Sources
Formula sheet, "Scaling" and "Measured from traces".
"""

from __future__ import annotations

from collections.abc import Iterator

from distprof.rules.base import Draft, InsufficientEvidenceError, Limit, Limits, rule
from distprof.terms import Confidence, Severity
from distprof.units import format_duration, format_ratio
from distprof.verbs.sweep.result import CAUSES, ScalingResult
from distprof.verbs.sweep.rules._shared import larger_sizes

_FIXES = {
    "exposed_transfer_ns": "Hide transfers behind computation, send fewer bytes, or keep them"
    " inside a node.",
    "exposed_wait_ns": "Find the rank that the others wait for: distprof analyze names it.",
    "bubble_ns": "Use more micro-batches, or a schedule with a smaller bubble.",
    "unsplit_comm_ns": "Record all ranks, so that waiting and transfer are told apart; then overlap"
    " what is transfer.",
    "host_ns": "Launch fewer and larger kernels, compile, and remove synchronisation.",
    "input_ns": "Give the input more workers or prefetching: all ranks share its storage.",
    "copy_ns": "Avoid copies between host and device that grow with ranks, or use pinned memory.",
    "computation_ns": "Look for work that every rank repeats, and for kernels that became too small"
    " to be efficient.",
    "other_ns": "Analyse the largest run alone: its idle time has no known cause.",
}


@rule(
    code="SCA103",
    severity=Severity.WARNING,
    since="0.1.0",
    needs=(ScalingResult,),
    limits={
        "lost_ratio": Limit(0.1, "share of the step that is lost before its cause is named"),
        "dominant_ratio": Limit(0.5, "share of the loss that one cause must have"),
    },
)
def check(scaling: ScalingResult, limits: Limits) -> Iterator[Draft]:
    """Yield the dominating cause at the largest size."""
    largest = larger_sizes(scaling)[-1]
    if not largest.losses:
        raise InsufficientEvidenceError(
            f"no traced parts of {scaling.baseline_ranks} and of {largest.num_ranks} ranks"
        )
    worst = max(largest.losses, key=lambda loss: loss.lost_ns)
    lost = largest.lost_ns / largest.step_ns
    surely_lost = 1 - (
        largest.efficiency if largest.efficiency_high is None else largest.efficiency_high
    )
    if surely_lost < limits["lost_ratio"]:
        return
    if worst.lost_ns < limits["dominant_ratio"] * largest.lost_ns:
        return
    of_loss = format_ratio(worst.lost_ns / largest.lost_ns)
    alone = f"{worst.cause} alone makes {of_loss} of that"
    if worst.lost_ns > largest.lost_ns:
        alone = f"{worst.cause} takes more than that, while other parts shrank"
    yield Draft(
        message=(
            f"From {scaling.baseline_ranks} to {largest.num_ranks} ranks {format_ratio(lost)} of"
            f" the step are lost ({format_duration(largest.lost_ns)} of"
            f" {format_duration(largest.step_ns)}), and {alone}"
            f" ({format_duration(worst.lost_ns)})."
        ),
        fix=_FIXES[next(field for field, cause in CAUSES.items() if cause == worst.cause)],
        cost_ns_per_step=worst.lost_ns,
        confidence=Confidence.INFERRED,
        evidence=("scaling.sizes",),
    )
