"""# synchronising-calls

## What it detects
The CPU waits for the GPU inside the step, and the GPU then waits for the CPU.

## Why it costs time
While the CPU waits, it launches nothing. When it resumes, the queue is empty, and the GPU idles
until new work arrives. Each call leaves a gap.

## Evidence needed
Runtime calls of at least one rank (`cudaStreamSynchronize`, `cudaDeviceSynchronize`, blocking
copies and their HIP names) and launch calls.

The operators around the calls, if the trace has them, name the callers.

## How the cost is computed
Idle GPU time caused by synchronising calls that delayed the next launches, mean over ranks and
steps: after the call, and later, for as long as launches would not have been late without it. Time
in which the CPU is blocked while the GPU works costs nothing and is not counted. A call that is
made less than once per step is not reported: reading results every N steps is the fix.
The cost is not part of any other finding.

## How to fix
Find the calls: `.item()`, `.cpu()`, `.tolist()`, `print(loss)`, `if tensor:`, `torch.nonzero`,
boolean masks, `torch.cuda.synchronize()`, `clip_grad_norm_` with `error_if_nonfinite`. Keep
metrics on the GPU and read them every N steps, copy with `non_blocking=True` from pinned memory,
and find the remaining calls with `torch.cuda.set_sync_debug_mode("warn")`.

## When it is wrong
One synchronisation at the end of a step is harmless if the first launches of the next step are
quick. Some frameworks synchronise on purpose to limit memory.

## Sources
Formula sheet, "Measured from traces" (idle). PyTorch documentation, performance tuning guide.
"""

from __future__ import annotations

from collections.abc import Iterator

from distprof.rules.base import Draft, InsufficientEvidenceError, Limit, Limits, rule
from distprof.sections.idle.result import CpuPause, IdleResult
from distprof.sections.shares import mean_step
from distprof.sections.time.result import StepTimeResult, WaterfallResult
from distprof.terms import Severity
from distprof.units import format_duration, name_ranks

OFTEN = 1.0
"""Calls per step below which the program already does what the fix says."""


@rule(
    code="HST102",
    severity=Severity.WARNING,
    since="0.1.0",
    limits={
        "idle_sync_ratio": Limit(
            0.02, "share of the step that the GPU may idle after synchronising calls"
        )
    },
)
def check(
    idle: IdleResult, waterfall: WaterfallResult, step_time: StepTimeResult, limits: Limits
) -> Iterator[Draft]:
    """Yield one finding for the run that names the call that costs most."""
    step = mean_step(waterfall, step_time)
    if not idle.ranks:
        raise InsufficientEvidenceError(
            "no runtime calls to judge by: the cause of idle time is unknown"
        )
    cost = step.mean(step.total.idle_sync_ns)
    if step.ratio(cost) < limits["idle_sync_ratio"] or not idle.sync_calls:
        return
    worst = max(idle.sync_calls, key=lambda call: call.idle_ns_per_step)
    if worst.count_per_step < OFTEN:
        return
    yield Draft(
        message=(
            f"The GPU idles {step.share(cost)} after the CPU has waited for it, mostly because of "
            f"{_called(worst)}: {worst.count_per_step:.1f} calls per {step.word} on "
            f"{name_ranks(worst.ranks)}, {format_duration(worst.idle_ns_per_step)} idle."
        ),
        fix=(
            "Keep values on the GPU and read them every N steps instead of calling .item() or "
            ".cpu(). Copy with non_blocking=True from pinned memory. "
            "torch.cuda.set_sync_debug_mode('warn') names the lines."
        ),
        cost_ns_per_step=cost,
        ranks=worst.ranks,
        evidence=("idle.pauses", "waterfall.all"),
        without="sync-calls",
    )


def _called(pause: CpuPause) -> str:
    return f"{pause.caller} ({pause.name})" if pause.caller else pause.name
