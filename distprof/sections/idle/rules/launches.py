"""Rules about late launches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from distprof.escape import fitting
from distprof.rules.base import Draft, Limit, Limits, advice, rule
from distprof.sections.computation import ComputationResult
from distprof.sections.idle import (
    COMPILES,
    CPU_OPTIMIZER,
    PYTHON,
    CpuPause,
    IdleResult,
    RankIdle,
    is_optimizer,
)
from distprof.sections.idle.rules.pauses import check_calls
from distprof.sections.perturbation import PerturbationResult
from distprof.sections.shares import MeanStep, StepTimes
from distprof.terms import Confidence, Severity
from distprof.units import format_duration, format_ratio, name_ranks


@rule(
    "HST101",
    Severity.WARNING,
    idle_host_ratio=Limit(0.15, "share of the step that the GPU may wait for launches"),
)
def launch_bound_host(
    idle: IdleResult,
    times: StepTimes,
    perturbation: PerturbationResult,
    computation: ComputationResult,
    limits: Limits,
) -> Iterator[Draft]:
    """The GPU runs out of work because the CPU does not launch kernels fast enough."""
    step = times.mean_step()
    check_calls(idle, "launch")
    cost = step.mean(step.total.idle_host_ns)
    if step.ratio(cost) < limits["idle_host_ratio"]:
        return
    if step.ratio(perturbation.surely_ns(cost)) < limits["idle_host_ratio"]:
        if perturbation.is_estimated:
            yield _undecided(perturbation, step, cost)
        return
    zeroing, breaks = _zeroing(idle.ranks, step), _breaks(computation, step)
    yield Draft(
        headline=f"Launch-bound: the GPU waits {step.part(cost)} for kernel launches",
        message=f"{step.amount(cost)}{_kernels(idle.ranks)}.{zeroing}{breaks}",
        fix=(
            f"{_SET_TO_NONE if zeroing else ''}{_UNBROKEN if breaks else ''}"
            f"{advice('launch-bound-host', 'decided')}"
        ),
        cost_ns_per_step=cost,
        ranks=tuple(r.rank for r in idle.ranks if r.host_ns * 2 >= r.idle_ns > 0),
        evidence=("idle.ranks", "waterfall.all.idle_host_ns"),
        without="launch-gaps",
    )


def _undecided(perturbation: PerturbationResult, step: MeanStep, cost: int) -> Draft:
    """The finding on a trace in which the profiler may be the cause."""
    least, most = (min(part, cost) for part in perturbation.explained_ns)
    explained = "all" if least == cost else f"{format_duration(least)} to {format_duration(most)}"
    return Draft(
        headline=f"Launch-bound in this trace: the GPU waits {step.part(cost)} for launches",
        message=(
            f"{step.amount(cost)}. At 3 to 7 µs for each of {perturbation.num_operators:,} "
            f"operators, the profiler explains {explained} of it."
        ),
        fix=advice("launch-bound-host", "undecided"),
        severity=Severity.INFO,
        confidence=Confidence.INFERRED,
        evidence=("perturbation", "waterfall.all.idle_host_ns"),
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


_UNBROKEN = "Remove graph breaks: TORCH_LOGS=graph_breaks names the line of each. "


def _breaks(computation: ComputationResult, step: MeanStep) -> str:
    """Sentence on graph breaks in compiled code; empty without any."""
    code = computation.compiled
    breaks = 0 if code is None else computation.per_step(code.num_breaks)
    if code is None or not breaks:
        return ""
    return (
        f" Compiled code runs as {computation.per_step(code.num_regions):,} regions per "
        f"{step.word} and rank, at least {breaks:,} of which end in a graph break."
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


@rule(
    "HST112",
    Severity.WARNING,
    idle_ratio=Limit(0.03, "share of the step that a named range may leave the GPU idle"),
    unnamed_ratio=Limit(0.08, "the same for code that nothing names"),
)
def work_between_launches(
    idle: IdleResult, times: StepTimes, computation: ComputationResult, limits: Limits
) -> Iterator[Draft]:
    """The training thread does something else than launching kernels for so long that the GPU runs
    out of work: a range that the program named, an operator on the CPU, compiling, or code outside
    of PyTorch.
    """
    step = times.mean_step()
    check_calls(idle, "launch")
    for pause in idle.pauses:
        if pause.kind not in ("range", "python"):
            continue
        cost = pause.idle_ns_per_step
        limit = limits["unnamed_ratio" if pause.name == PYTHON else "idle_ratio"]
        if step.ratio(cost) < limit:
            continue
        yield Draft(
            headline=fitting(
                f"The GPU idles {step.part(cost)} while the training thread {_does(pause)}",
                f"The GPU idles {step.part(cost)} while its CPU {_does(pause)}",
                f"The GPU idles {step.part(cost)} while its CPU {_briefly(pause)}",
            ),
            message=(
                f"{step.amount(cost)}; the thread {_does(pause)} for "
                f"{format_duration(pause.cpu_ns_per_step)} per {step.word} on "
                f"{name_ranks(pause.ranks)}.{_versions(pause, computation)}"
            ),
            fix=_fix(pause),
            cost_ns_per_step=cost,
            ranks=pause.ranks,
            evidence=("idle.pauses", "waterfall.all.idle_pause_ns"),
            without=CPU_OPTIMIZER if is_optimizer(pause.caller) else f"pause {pause.name}",
        )


def _does(pause: CpuPause) -> str:
    if pause.name != PYTHON:
        return f"is in {pause.name}"
    if pause.caller == COMPILES:
        return "compiles with torch.compile"
    return f"runs {pause.caller} on the CPU" if pause.caller else "runs code outside of PyTorch"


def _briefly(pause: CpuPause) -> str:
    """The same without a name, which may be long."""
    if not pause.caller:
        return "is in one annotated range"
    return "runs the optimizer" if is_optimizer(pause.caller) else "runs one operator itself"


def _versions(pause: CpuPause, computation: ComputationResult) -> str:
    """Sentence on how often torch.compile compiled; empty if that is unknown or no matter."""
    code = computation.compiled
    if pause.caller != COMPILES or code is None or not code.num_compiles:
        return ""
    many = code.most_versions
    of_one = f"; of one function it made at least {many:,} versions" if many > 1 else ""
    times = "once" if code.num_compiles == 1 else f"{code.num_compiles:,} times"
    return f" It compiled {times} while recorded on {name_ranks(computation.ranks)}{of_one}."


def _fix(pause: CpuPause) -> str:
    if pause.caller == COMPILES:
        return advice("work-between-launches", "compiles")
    if pause.caller:
        case = "optimizer" if is_optimizer(pause.caller) else "operator"
        return advice("work-between-launches", case)
    return advice("work-between-launches", "unknown" if pause.name == PYTHON else "annotated")
