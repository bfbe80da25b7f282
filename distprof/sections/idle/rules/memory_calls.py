"""# memory-calls

## What it detects
The CPU allocates or frees memory of the GPU inside steps, and the GPU runs out of work meanwhile.

## Why it costs time
PyTorch's caching allocator keeps the memory of freed tensors, so a steady step makes none of these
calls. `cudaFree` waits for the GPU and takes tens to hundreds of microseconds, `cudaMalloc` as
long. After `torch.cuda.empty_cache()`, or when the memory is nearly full and the allocator has to
free what it cached, each step pays for them again.

## Evidence needed
Runtime calls and launch calls of at least one rank.

## How the cost is computed
Idle GPU time that these calls caused, mean over ranks and steps: at most as long as they lasted.
The time recovered comes from simulating the step without it.

## How to fix
Do not call `torch.cuda.empty_cache()` in the loop. If the allocator retries because memory is
nearly full, use smaller micro-batches or recomputation, or avoid fragmentation with
`PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`. Allocate pinned CPU memory once.

## When it is wrong
The first steps of a job allocate. A job with new tensor shapes in each step allocates for a long
time; `expandable_segments` helps there, too.

## Sources
PyTorch documentation, "CUDA semantics" (memory management). Formula sheet, "Measured from traces".
"""

from __future__ import annotations

from collections.abc import Iterator

from distprof.rules.base import Draft, InsufficientEvidenceError, Limit, Limits, rule
from distprof.sections.idle.result import MEMORY, IdleResult
from distprof.sections.shares import mean_step
from distprof.sections.time.result import StepTimeResult, WaterfallResult
from distprof.terms import Severity


@rule(
    code="HST111",
    severity=Severity.WARNING,
    since="0.1.0",
    limits={"idle_ratio": Limit(0.02, "share of the step that the GPU may idle due to such calls")},
)
def check(
    idle: IdleResult, waterfall: WaterfallResult, step_time: StepTimeResult, limits: Limits
) -> Iterator[Draft]:
    """Yield one finding for the run."""
    step = mean_step(waterfall, step_time)
    if not idle.ranks:
        raise InsufficientEvidenceError(
            "no runtime calls to judge by: the cause of idle time is unknown"
        )
    calls = [pause for pause in idle.pauses if pause.kind == "memory"]
    cost = sum(pause.idle_ns_per_step for pause in calls)
    if not calls or step.ratio(cost) < limits["idle_ratio"]:
        return
    count = sum(pause.count_per_step for pause in calls)
    worst = calls[0]
    yield Draft(
        message=(
            f"The GPU idles {step.share(cost)} because the CPU allocates and frees its memory: "
            f"{count:.1f} calls per {step.word}, most of the time in {worst.name}"
            f"{f' ({worst.caller})' if worst.caller else ''}."
        ),
        fix=(
            "Do not call torch.cuda.empty_cache() in the loop. If memory is nearly full, use "
            "smaller micro-batches, or PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True."
        ),
        cost_ns_per_step=cost,
        ranks=worst.ranks,
        evidence=("idle.pauses", "waterfall.all"),
        without=f"pause {MEMORY}",
    )
