"""# scaling-loss-dominated

## What it detects
One cause accounts for most of the efficiency lost between the smallest and the largest size.

## Why it costs time
Efficiency drops when parts of a step grow while computation stays the same: exposed transfers,
waits for the slowest rank, bubbles, CPU time, input. If one of them is most of the loss, work on
it first.

## Evidence needed
Traces of the baseline and of the largest size, in addition to steps without a profiler.

## How the cost is computed
Each part of the traced step, scaled to the step without a profiler, minus the same part of the
baseline for the same work. These differences add up to the lost time exactly. The cost is the
difference of the named cause. The scaling assumes that the profiler slows all parts equally.

## How to fix
- Exposed transfer: overlap it with compute, send fewer bytes, use faster links, shard inside a
  node.
- Imbalance: find the straggler.
- Bubble: use more micro-batches.
- CPU: launch fewer, larger kernels, or compile.
- Input: use more workers.
- Computation that grew: look for work that every rank repeats, and for smaller kernels.

## When it is wrong
If the trace cannot separate waiting from transfer: then the two count as one cause. If the profiler
slows launches: then the CPU's part is too large.

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
    "exposed_transfer_ns": "Overlap transfers with computation, send fewer bytes, or keep them"
    " inside a node.",
    "exposed_wait_ns": "Find the rank that the others wait for: distprof analyze names it.",
    "bubble_ns": "Use more micro-batches, or a schedule with a smaller bubble.",
    "unsplit_comm_ns": "Record all ranks to separate waiting from transfer. Then overlap"
    " the transfer.",
    "host_ns": "Launch fewer and larger kernels, compile, and remove synchronisation.",
    "input_ns": "Use more input workers or prefetching: all ranks share the storage.",
    "copy_ns": "Avoid copies between CPU and GPU that grow with the number of ranks, or pin the"
    " memory.",
    "computation_ns": "Look for work that every rank repeats, and for kernels that became too small"
    " to be efficient.",
    "other_ns": "Analyse the largest run alone: the cause of its idle time is unknown.",
}


@rule(
    code="SCA103",
    severity=Severity.WARNING,
    since="0.1.0",
    limits={
        "lost_ratio": Limit(0.1, "minimum share of the step that is lost"),
        "dominant_ratio": Limit(0.5, "minimum share of the loss for the dominant cause"),
    },
)
def check(scaling: ScalingResult, limits: Limits) -> Iterator[Draft]:
    """Yield the dominant cause at the largest size."""
    largest = larger_sizes(scaling)[-1]
    if not largest.losses:
        raise InsufficientEvidenceError(
            f"no traced parts for {scaling.baseline_ranks} and {largest.num_ranks} ranks"
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
    alone = f"{worst.cause} alone accounts for {of_loss} of that"
    if worst.lost_ns > largest.lost_ns:
        alone = f"{worst.cause} takes more than that, while other parts shrank"
    yield Draft(
        message=(
            f"From {scaling.baseline_ranks} to {largest.num_ranks} ranks, {format_ratio(lost)} of"
            f" the step is lost ({format_duration(largest.lost_ns)} of"
            f" {format_duration(largest.step_ns)}), and {alone}"
            f" ({format_duration(worst.lost_ns)})."
        ),
        fix=_FIXES[next(field for field, cause in CAUSES.items() if cause == worst.cause)],
        cost_ns_per_step=worst.lost_ns,
        confidence=Confidence.INFERRED,
        evidence=("scaling.sizes",),
    )
