"""# synchronising-calls

## What it detects
The host waits for the device inside the step, and the device then waits for the host.

## Why it costs time
While the host waits it launches nothing. When it goes on, the queue is empty, and the device
idles until new work arrives: a bubble at each call.

## Evidence needed
Runtime calls of at least one rank (`cudaStreamSynchronize`, `cudaDeviceSynchronize`, blocking
copies and their HIP names) and launch calls.

## How the cost is computed
Idle device time that follows a synchronising call and ends with the first launch after it; mean
over ranks and steps. The time the host is blocked while the device works costs nothing and is not
counted. It overlaps with no other finding.

## How to fix
Find the calls: `.item()`, `.cpu()`, `.tolist()`, `print(loss)`, `if tensor:`, `torch.nonzero`,
boolean masks, `torch.cuda.synchronize()`, `clip_grad_norm_` with `error_if_nonfinite`. Keep
metrics on the device and read them every N steps, copy with `non_blocking=True` from pinned
memory, and let `torch.cuda.set_sync_debug_mode("warn")` name what remains.

## When it is wrong
One synchronisation at the end of a step is harmless where the next step's first launches are
quick. Some frameworks synchronise on purpose to bound memory.

## Sources
Formula sheet, "Measured from traces" (idle). PyTorch documentation, performance tuning guide.
"""

from __future__ import annotations

from collections.abc import Iterator

from distprof.rules.base import Draft, InsufficientEvidenceError, Limit, Limits, rule
from distprof.sections.idle.result import IdleResult
from distprof.sections.shares import mean_step
from distprof.sections.time.result import StepTimeResult, WaterfallResult
from distprof.terms import Severity
from distprof.units import fold_ranks, format_duration


@rule(
    code="HST102",
    severity=Severity.WARNING,
    since="0.1.0",
    needs=(IdleResult, WaterfallResult, StepTimeResult),
    limits={
        "idle_sync_ratio": Limit(
            0.03, "share of the step that the device may idle after such calls"
        )
    },
)
def check(
    idle: IdleResult, waterfall: WaterfallResult, step_time: StepTimeResult, limits: Limits
) -> Iterator[Draft]:
    """Yield one finding for the run, naming the call that costs most."""
    step = mean_step(waterfall, step_time)
    if not idle.ranks:
        raise InsufficientEvidenceError("no runtime calls in the traces: idle time has no cause")
    cost = step.mean(step.total.idle_sync_ns)
    if step.ratio(cost) < limits["idle_sync_ratio"] or not idle.sync_calls:
        return
    worst = max(idle.sync_calls, key=lambda call: call.idle_ns_per_step)
    yield Draft(
        message=(
            f"For {step.share(cost)} the device idles after the host had waited for it: mostly "
            f"{worst.name}, {worst.count_per_step:.1f} calls per {step.word} on ranks "
            f"{fold_ranks(worst.ranks)}, {format_duration(worst.idle_ns_per_step)} idle."
        ),
        fix=(
            "Keep values on the device and read them every N steps instead of .item() or .cpu(); "
            "copy with non_blocking=True from pinned memory; "
            "torch.cuda.set_sync_debug_mode('warn') names the lines."
        ),
        cost_ns_per_step=cost,
        ranks=worst.ranks,
        evidence=("idle.sync_calls", "waterfall.all"),
        without="sync-calls",
    )
