"""# launch-bound-host

## What it detects
The GPU runs out of work because the CPU does not launch kernels fast enough.

## Why it costs time
A launch takes about 5 to 10 µs on the CPU, and the Python code around it takes longer. If kernels
are shorter than that, the queue empties and the GPU waits for every kernel.

A profiler fakes this: it adds microseconds to each operator and launch, so a job that its GPU
paces may run dry while it is traced, and only then.

## Evidence needed
GPU activities with their launch calls (runtime rows) on at least one rank, and the time of steps
without the profiler: from the step log, or from `--step-time`. Without it the profiler's part is
estimated at 3 to 7 µs for each operator. If that may explain the idle time, the finding says so,
has no price and blames nothing.

## How the cost is computed
Idle GPU time charged to the CPU: gaps whose next activity was launched only after the gap had
opened, if nothing else that the CPU did explains them: loading data, a call that waited, garbage
collection, memory calls, a named range or code outside of PyTorch. Mean over ranks and steps, in
the time of steps without the profiler where it is known. The rule needs idle time that even the
fastest tenth of those steps has. The cost is not part of any other finding.

## How to fix
Launch less: use `torch.compile` (`mode="reduce-overhead"` uses CUDA graphs), manual CUDA graphs,
fused optimizers (`fused=True` or `foreach=True`) or larger micro-batches. Launch faster: pin the
process to cores near its GPU, and keep Python work (logging, metrics, hooks) out of the step.

## When it is wrong
Python stacks (`with_stack=True`) slow launches much more than 7 µs for each operator. The first
steps of a compiled program include compilation. CPUs of virtual machines vary in speed: a job whose
CPU is almost as slow as its GPU is launch-bound at times.

## Sources
Formula sheet, "Measured from traces" (host-bound idle) and "The profiler in the picture". PyTorch
documentation of `torch.compile` and CUDA graphs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from distprof.rules.base import Draft, InsufficientEvidenceError, Limit, Limits, rule
from distprof.sections.idle.result import IdleResult, RankIdle
from distprof.sections.perturbation.result import PerturbationResult
from distprof.sections.shares import MeanStep, mean_step
from distprof.sections.time.result import StepTimeResult, WaterfallResult
from distprof.terms import Confidence, Severity
from distprof.units import format_duration, format_ratio


@rule(
    code="HST101",
    severity=Severity.WARNING,
    since="0.1.0",
    limits={"idle_host_ratio": Limit(0.15, "share of the step that the GPU may wait for launches")},
)
def check(
    idle: IdleResult,
    waterfall: WaterfallResult,
    step_time: StepTimeResult,
    perturbation: PerturbationResult,
    limits: Limits,
) -> Iterator[Draft]:
    """Yield one finding for the run."""
    step = mean_step(waterfall, step_time)
    if not idle.ranks:
        raise InsufficientEvidenceError(
            "no launch calls to judge by: the cause of idle time is unknown"
        )
    cost = step.mean(step.total.idle_host_ns)
    if step.ratio(cost) < limits["idle_host_ratio"]:
        return
    if step.ratio(perturbation.surely_ns(cost)) < limits["idle_host_ratio"]:
        if perturbation.is_estimated:
            yield _undecided(perturbation, step, cost)
        return
    yield Draft(
        message=(
            f"Launch-bound: the GPU idles {step.share(cost)} waiting for the CPU to launch kernels"
            f"{_kernels(idle.ranks)}.{_zeroing(idle.ranks, step)}"
        ),
        fix=(
            f"{_SET_TO_NONE if _zeroing(idle.ranks, step) else ''}"
            "Launch less (torch.compile with mode='reduce-overhead', CUDA graphs, fused optimizer, "
            "larger micro-batches) or faster (pin processes to cores, keep Python work out of the "
            "step)."
        ),
        cost_ns_per_step=cost,
        ranks=tuple(r.rank for r in idle.ranks if r.host_ns * 2 >= r.idle_ns > 0),
        evidence=("idle.ranks", "waterfall.all"),
        without="launch-gaps",
    )


def _undecided(perturbation: PerturbationResult, step: MeanStep, cost: int) -> Draft:
    """The finding on a trace in which the profiler may be the cause."""
    least, most = (min(part, cost) for part in perturbation.explained_ns)
    explained = "all" if least == cost else f"{format_duration(least)} to {format_duration(most)}"
    return Draft(
        message=(
            f"Launch-bound in this trace: the GPU idles {step.share(cost)} waiting for launches. "
            f"At 3 to 7 µs for each of {perturbation.num_operators:,} operators, the profiler "
            f"explains {explained} of it."
        ),
        fix=(
            "Measure the mean step without the profiler and pass it with --step-time: it decides "
            "whether launches bound the job."
        ),
        severity=Severity.INFO,
        confidence=Confidence.INFERRED,
        evidence=("perturbation", "idle.ranks"),
    )


MANY_ZEROING = 0.05
"""Share of launches that zero gradients from which the finding names them."""

_SET_TO_NONE = "Use zero_grad(set_to_none=True), PyTorch's default since 2.0. "


def _zeroing(ranks: Sequence[RankIdle], step: MeanStep) -> str:
    """Sentence on launches that only zero gradients; empty if they are few."""
    zeroing, launches = sum(r.num_zeroing for r in ranks), sum(r.num_launches for r in ranks)
    if zeroing < MANY_ZEROING * launches or not zeroing:
        return ""
    return (
        f" {step.mean(zeroing):,} of {step.mean(launches):,} launches per {step.word} and rank "
        "only zero gradients."
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
