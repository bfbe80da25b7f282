"""# launch-bound-host

## What it detects
The GPU runs out of work because the CPU does not launch kernels fast enough.

## Why it costs time
A launch takes about 5 to 10 µs on the CPU, and the Python code around it takes longer. If kernels
are shorter than that, the queue empties and the GPU waits for every kernel.

## Evidence needed
GPU activities with their launch calls (runtime rows) on at least one rank.

## How the cost is computed
Idle GPU time charged to the CPU: gaps whose next activity was launched only after the gap had
opened, if neither data loading nor a synchronising call explains them. Mean over ranks and steps.
The cost is not part of any other finding.

## How to fix
Launch less: use `torch.compile` (`mode="reduce-overhead"` uses CUDA graphs), manual CUDA graphs,
fused optimizers (`fused=True` or `foreach=True`) or larger micro-batches. Launch faster: pin the
process to cores near its GPU, and keep Python work (logging, metrics, hooks) out of the step.

## When it is wrong
The profiler itself slows launches, more so with `with_stack=True`: compare with the step time
without it. The first steps of a compiled program include compilation.

## Sources
Formula sheet, "Measured from traces" (host-bound idle). PyTorch documentation of `torch.compile`
and CUDA graphs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from distprof.rules.base import Draft, InsufficientEvidenceError, Limit, Limits, rule
from distprof.sections.idle.result import IdleResult, RankIdle
from distprof.sections.shares import mean_step
from distprof.sections.time.result import StepTimeResult, WaterfallResult
from distprof.terms import Severity
from distprof.units import format_duration, format_ratio


@rule(
    code="HST101",
    severity=Severity.WARNING,
    since="0.1.0",
    needs=(IdleResult, WaterfallResult, StepTimeResult),
    limits={"idle_host_ratio": Limit(0.1, "share of the step that the GPU may wait for launches")},
)
def check(
    idle: IdleResult, waterfall: WaterfallResult, step_time: StepTimeResult, limits: Limits
) -> Iterator[Draft]:
    """Yield one finding for the run."""
    step = mean_step(waterfall, step_time)
    if not idle.ranks:
        raise InsufficientEvidenceError(
            "no launch calls in the traces: the cause of idle time is unknown"
        )
    cost = step.mean(step.total.idle_host_ns)
    if step.ratio(cost) < limits["idle_host_ratio"]:
        return
    yield Draft(
        message=(
            f"Launch-bound: the GPU idles {step.share(cost)} waiting for the CPU to launch kernels"
            f"{_kernels(idle.ranks)}."
        ),
        fix=(
            "Launch less (torch.compile with mode='reduce-overhead', CUDA graphs, fused optimizer, "
            "larger micro-batches) or faster (pin processes to cores, keep Python work out of the "
            "step)."
        ),
        cost_ns_per_step=cost,
        ranks=tuple(r.rank for r in idle.ranks if r.host_ns * 2 >= r.idle_ns > 0),
        evidence=("idle.ranks", "waterfall.all"),
        without="launch-gaps",
    )


def _kernels(ranks: Sequence[RankIdle]) -> str:
    """Late launches and kernel length on the rank that waits most for its CPU."""
    worst = max(ranks, key=lambda rank: rank.host_ns)
    parts = []
    if worst.late_launch_ratio is not None:
        parts.append(f"{format_ratio(worst.late_launch_ratio)} of launches found the GPU idle")
    if worst.median_kernel_ns is not None:
        parts.append(f"the median kernel takes {format_duration(worst.median_kernel_ns)}")
    return f"; on rank {worst.rank}, {', '.join(parts)}" if parts else ""
