"""# work-between-launches

## What it detects
The training thread does something else than launching kernels for so long that the GPU runs out of
work: a range that the program named, an operator on the CPU, compiling, or code outside of PyTorch.

## Why it costs time
One thread launches all work of a rank. While it tokenises, logs, writes a file or sleeps, nothing
is launched, and the GPU idles as soon as its queue is empty.

## Evidence needed
Launch calls of at least one rank. A name needs a range that the program annotated
(`torch.profiler.record_function`) around the work, or an operator that runs for most of it.

## How the cost is computed
Idle GPU time between the launches before and after such a stretch, and until the CPU has caught up:
at most as long as the stretch, mean over ranks and steps. A stretch in a named range takes at
least 1 ms and 3 % of the step, one without a name 2 ms and 8 %. Loading batches, garbage
collection, calls that wait for the GPU and calls that manage its memory are counted elsewhere. The
time recovered comes from simulating the step without it; of an optimizer on the CPU, also without
the copies.

## How to fix
Move the work to data loader workers, to another thread or process, or do it every N steps. Record
stacks (`--stacks`), or annotate parts of the loop, to see which code it is.

## When it is wrong
Compiling in the first steps is part of every job that uses `torch.compile`. It counts if the
recorded steps come later.

## Sources
PyTorch documentation, performance tuning guide. Formula sheet, "Measured from traces" (idle).
"""

from __future__ import annotations

from collections.abc import Iterator

from distprof.rules.base import Draft, InsufficientEvidenceError, Limit, Limits, rule
from distprof.sections.idle.result import (
    COMPILES,
    CPU_OPTIMIZER,
    PYTHON,
    CpuPause,
    IdleResult,
    is_optimizer,
)
from distprof.sections.shares import mean_step
from distprof.sections.time.result import StepTimeResult, WaterfallResult
from distprof.terms import Severity
from distprof.units import format_duration, name_ranks


@rule(
    code="HST112",
    severity=Severity.WARNING,
    since="0.1.0",
    limits={
        "idle_ratio": Limit(0.03, "share of the step that a named range may leave the GPU idle"),
        "unnamed_ratio": Limit(0.08, "the same for code that nothing names"),
    },
)
def check(
    idle: IdleResult, waterfall: WaterfallResult, step_time: StepTimeResult, limits: Limits
) -> Iterator[Draft]:
    """Yield one finding per range."""
    step = mean_step(waterfall, step_time)
    if not idle.ranks:
        raise InsufficientEvidenceError(
            "no launch calls to judge by: the cause of idle time is unknown"
        )
    for pause in idle.pauses:
        if pause.kind not in ("range", "python"):
            continue
        cost = pause.idle_ns_per_step
        limit = limits["unnamed_ratio" if pause.name == PYTHON else "idle_ratio"]
        if step.ratio(cost) < limit:
            continue
        yield Draft(
            message=(
                f"The GPU idles {step.share(cost)} while the training thread {_does(pause)}: "
                f"{format_duration(pause.cpu_ns_per_step)} per {step.word} on "
                f"{name_ranks(pause.ranks)}."
            ),
            fix=_fix(pause),
            cost_ns_per_step=cost,
            ranks=pause.ranks,
            evidence=("idle.pauses", "waterfall.all"),
            without=CPU_OPTIMIZER if is_optimizer(pause.caller) else f"pause {pause.name}",
        )


def _does(pause: CpuPause) -> str:
    if pause.name != PYTHON:
        return f"is in {pause.name}"
    if pause.caller == COMPILES:
        return "waits for torch.compile, which compiles"
    return f"runs {pause.caller} on the CPU" if pause.caller else "runs code outside of PyTorch"


def _fix(pause: CpuPause) -> str:
    if pause.caller == COMPILES:
        return (
            "Code that recompiles in every step has a guard that fails each time: "
            "TORCH_LOGS=recompiles names it. Pass what changes as a tensor, mark changing sizes "
            "with torch._dynamo.mark_dynamic, or keep that function out with "
            "torch.compiler.disable."
        )
    if pause.caller:
        return (
            "Run that operator on the GPU, or let another thread run it while the GPU works. An "
            "optimizer on the CPU saves GPU memory, but its step has to fit into the time of the "
            "next forward pass."
            if is_optimizer(pause.caller)
            else "Run that operator on the GPU, or move it to data loader workers or to another "
            "thread."
        )
    move = "Move that work to data loader workers or to another thread, or do it every N steps."
    if pause.name != PYTHON:
        return move
    return (
        f"{move} Annotate parts of the loop with torch.profiler.record_function to see which code "
        "it is."
    )
