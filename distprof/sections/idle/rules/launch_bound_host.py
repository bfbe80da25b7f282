"""# launch-bound-host

## What it detects
The device runs dry because the host does not launch work fast enough.

## Why it costs time
A launch costs the host some 5 to 10 µs, and Python around it more. Where kernels are shorter than
that, the queue empties and the device waits for every kernel.

## Evidence needed
Device activities with their launch calls (runtime rows) on at least one rank.

## How the cost is computed
Idle device time blamed on the host: gaps whose next activity was launched only after the gap had
opened, without data loading or a synchronising call to explain it. Mean over ranks and steps. It
overlaps with no other finding.

## How to fix
Launch less: `torch.compile` (`mode="reduce-overhead"` uses CUDA graphs), CUDA graphs by hand,
fused optimizers (`fused=True` or `foreach=True`), larger micro-batches. Launch faster: pin the
process to cores near its GPU, keep Python work (logging, metrics, hooks) out of the step.

## When it is wrong
The profiler itself slows launches, more with `with_stack=True`; compare with the step time
without it. The first steps of a compiled program hold compilation.

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
    limits={
        "idle_host_ratio": Limit(0.1, "share of the step that the device may wait for launches")
    },
)
def check(
    idle: IdleResult, waterfall: WaterfallResult, step_time: StepTimeResult, limits: Limits
) -> Iterator[Draft]:
    """Yield one finding for the run."""
    step = mean_step(waterfall, step_time)
    if not idle.ranks:
        raise InsufficientEvidenceError("no launch calls in the traces: idle time has no cause")
    cost = step.mean(step.total.idle_host_ns)
    if step.ratio(cost) < limits["idle_host_ratio"]:
        return
    yield Draft(
        message=(
            f"For {step.share(cost)} the device waits for the host to launch work"
            f"{_kernels(idle.ranks)}."
        ),
        fix=(
            "Launch less (torch.compile with mode='reduce-overhead', CUDA graphs, fused optimizer, "
            "larger micro-batches) or faster (pin cores, no Python work inside the step)."
        ),
        cost_ns_per_step=cost,
        ranks=tuple(r.rank for r in idle.ranks if r.host_ns * 2 >= r.idle_ns > 0),
        evidence=("idle.ranks", "waterfall.all"),
        without="launch-gaps",
    )


def _kernels(ranks: Sequence[RankIdle]) -> str:
    """Lateness and length of the kernels of the rank that idles most for its host."""
    worst = max(ranks, key=lambda rank: rank.host_ns)
    parts = []
    if worst.late_launch_ratio is not None:
        parts.append(f"{format_ratio(worst.late_launch_ratio)} of launches found the device idle")
    if worst.median_kernel_ns is not None:
        parts.append(f"the median kernel takes {format_duration(worst.median_kernel_ns)}")
    return f"; on rank {worst.rank}, {', '.join(parts)}" if parts else ""
