"""# unexplained-idle

## What it detects
The GPU idles for a fifth of the step or more, and the recording does not show why.

## Why it costs time
Time in which the GPU does nothing is lost. Without the cause it is unknown whether any other fix
helps. If the GPU idles for half of the step or more, this finding comes first, before the plan.

## Evidence needed
GPU activities of at least one rank.

## How the cost is computed
Idle GPU time that no launch, synchronising call, input or communication explains, mean over ranks
and steps. It is an upper bound: the trace may lack kernels that ran in this time.

## How to fix
Record what is missing. Without CPU activities no idle time has a cause: profile with
`ProfilerActivity.CPU`, and read it (no `--device-only`). Inside CUDA graphs some versions of the
profiler lose kernels: record a few steps without graphs, or with a newer version of PyTorch and
CUPTI. Otherwise look at the gaps in a timeline, and record with Python stacks.

## When it is wrong
If the trace lacks kernels, the GPU was busy. Compare the power draw or the utilisation that
`nvidia-smi` shows with the computation in the report.

## Sources
Formula sheet, "Measured from traces" (idle time by cause).
"""

from __future__ import annotations

from collections.abc import Iterator

from distprof.rules.base import Draft, InsufficientEvidenceError, Limit, Limits, rule
from distprof.sections.capture.result import CaptureResult
from distprof.sections.idle.result import IdleResult
from distprof.sections.shares import mean_step
from distprof.sections.time.result import StepTimeResult, WaterfallResult
from distprof.terms import Confidence, Severity
from distprof.units import format_ratio

DOMINATES = 0.5
"""From this share of the step on, finding the cause comes before any other fix."""


@rule(
    code="HST109",
    severity=Severity.WARNING,
    since="0.1.0",
    limits={"idle_ratio": Limit(0.2, "share of the step that may be idle for unknown causes")},
)
def check(
    idle: IdleResult,
    capture: CaptureResult,
    waterfall: WaterfallResult,
    step_time: StepTimeResult,
    limits: Limits,
) -> Iterator[Draft]:
    """Yield one finding for the run."""
    if capture.filtered_ranks:
        raise InsufficientEvidenceError(
            "rows were removed from traces, so the GPU may have been busy when it seems idle"
        )
    step = mean_step(waterfall, step_time)
    cost = step.mean(step.total.idle_unknown_ns)
    if idle.is_cpu or step.ratio(cost) < limits["idle_ratio"]:
        return
    why, fix = _reason(idle)
    yield Draft(
        message=f"The GPU idles {step.share(cost)}, and the recording does not show why{why}.",
        fix=fix,
        cost_ns_per_step=cost,
        confidence=Confidence.INFERRED,
        evidence=("idle.ranks", "waterfall.all"),
        comes_first=step.ratio(cost) >= DOMINATES,
    )


def _reason(idle: IdleResult) -> tuple[str, str]:
    """Why the cause is unknown, and how to find it."""
    if not idle.ranks:
        return ": it has no CPU activities, or they were not read", (
            "Also profile with ProfilerActivity.CPU, and read these activities (no --device-only)."
        )
    unknown = sum(rank.unknown_ns for rank in idle.ranks)
    inside = sum(rank.within_launch_ns for rank in idle.ranks)
    if inside > unknown / 2:
        return (
            f": {format_ratio(inside / unknown)} of this time is inside CUDA graphs, whose kernels "
            "the trace may lack"
        ), (
            "Record a few steps without CUDA graphs, or with a newer PyTorch and CUPTI, before you "
            "change anything else: the GPU may have been busy."
        )
    return ", although kernels were launched in time", (
        "Look at the gaps in a timeline, and record with Python stacks (with_stack=True)."
    )
