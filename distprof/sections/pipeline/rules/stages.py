"""Rules about stages."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from distprof.rules.base import Draft, InsufficientEvidenceError, Limit, Limits, rule
from distprof.sections.idle.result import IdleResult, PausesResult
from distprof.sections.pipeline.result import PipelineGroup, PipelinePosition, PipelineResult
from distprof.sections.settings.result import SettingsResult
from distprof.sections.stragglers.result import StragglersResult
from distprof.terms import Confidence, Severity, StragglerCause
from distprof.units import format_duration, format_ratio, name_ranks

_WIDER = ("PIP103",)  # Finding that includes the same time in a larger sum

_FIX = (
    "Move blocks to the other stages, and count embedding, output layer and loss as work. If the "
    "stages hold equal work, check the clocks and temperature of the slow stage's GPU."
)


@rule(
    "PIP101",
    Severity.WARNING,
    excess_ratio=Limit(
        0.08, "largest acceptable excess of a stage's work over the other stages' median"
    ),
    excess_ratio_without_spare_cpu=Limit(
        0.2, "the same on CPU ranks that share as few CPUs as there are ranks"
    ),
    min_step_ratio=Limit(0.01, "smallest share of the step that is worth reporting"),
    chance=Limit(0.01, "largest probability that equal stages would differ as much by chance"),
)
def unequal_stages(
    pipeline: PipelineResult,
    stragglers: StragglersResult,
    pauses: PausesResult,
    idle: IdleResult,
    settings: SettingsResult,
    limits: Limits,
) -> Iterator[Draft]:
    """One pipeline stage works longer on each micro-batch than the others.

    ## Why it costs time
    A pipeline runs at the speed of its slowest stage. The other stages wait for it in every
    micro-batch. This looks like a bubble but does not shrink with more micro-batches.

    ## Evidence needed
    Computation inside the marks around the work of stages (`distprof:pp …`, recorded by the probe
    `pipeline_marks`), in at least three steps. If several ranks hold a stage, the rank that works
    least sets its time. If only messages show the stages, distprof compares all computation of the
    ranks, and the rule is *inferred*. For an operation log or a pipeline timeline, distprof uses
    the mean of its steps.

    ## How the cost is computed
    With M micro-batches, (M − 1)/M of the difference between the busiest stage's work and the mean
    of all stages. An even split of the same work would recover this time. For a log, distprof
    replays the order of actions with the measured stage durations and with equal ones. The time is
    part of what `exposed-communication` reports.

    ## How to fix
    Move blocks from the busiest stage to the others. Count the embedding with the first stage and
    the output layer and loss with the last: with a large vocabulary they cost as much as several
    blocks. If the stages hold equal work, the busiest stage's GPU is slow: check its clocks and
    temperature.

    ## When it is wrong
    Stages may be uneven on purpose because one GPU has less memory or is an older model. If a
    machine runs many more processes than it has cores, the scheduler makes stages uneven. On CPU
    ranks, the rule is silent unless the CPU time of the training threads confirms the difference,
    and it requires a larger difference if there are no more CPUs than ranks.

    ## Sources
    Formula sheet, "Pipeline bubble" (stage imbalance).
    """
    cost, step = pipeline.lost_ns_per_step, pipeline.step_ns
    if not pipeline.positions:
        yield from _of_logs(pipeline, limits)
        return
    if len(pipeline.positions) < 2 or not cost or not step:
        return  # no pipeline, or one with equal stages
    busiest = max(pipeline.positions, key=lambda position: position.excess_ratio)
    if busiest.excess_ratio < limits["excess_ratio"] or cost < limits["min_step_ratio"] * step:
        return
    if _is_due_to(StragglerCause.SLOW_DEVICE, busiest, stragglers):
        return  # its GPU is slow: it does not hold more layers
    if busiest.chance > limits["chance"]:
        raise InsufficientEvidenceError(
            f"{_stages(busiest).lower()} works {format_ratio(busiest.excess_ratio)} more than the "
            "others, but these few steps differ so much that it may be chance: trace more steps"
        )
    is_small = busiest.excess_ratio < limits["excess_ratio_without_spare_cpu"]
    if idle.is_cpu and is_small and settings.without_spare.intersection(busiest.ranks):
        raise InsufficientEvidenceError(
            f"{_stages(busiest).lower()} works {format_ratio(busiest.excess_ratio)} more than the "
            "others, but there are no more CPUs than ranks, so equal stages differ as much by "
            "chance: leave a CPU free"
        )
    is_taken = _is_due_to(StragglerCause.CPU_TAKEN, busiest, stragglers)
    is_traced = _is_due_to(StragglerCause.TRACING, busiest, stragglers)
    if idle.is_cpu and (is_taken or is_traced or _has_no_more_cpu_time(busiest, pauses)):
        raise InsufficientEvidenceError(
            f"{_stages(busiest).lower()} takes {format_ratio(busiest.excess_ratio)} longer than "
            "the others, but the CPU time of its training thread does not confirm this: other "
            "processes take its CPU, or the profiler slows the stage down"
        )
    # messages show which rank holds which stage, but not which computation is the stage's
    is_marked = busiest.work_ns_per_micro_batch is not None
    yield Draft(
        message=(
            f"{_who_works(busiest)} {format_duration(_work(busiest))} {_each(busiest)}, "
            f"{format_ratio(busiest.excess_ratio)} more than the other stages' median of "
            f"{format_duration(_work(busiest) / (1 + busiest.excess_ratio))}. The pipeline waits "
            f"{format_duration(cost)} ({format_ratio(cost / step)}) of each step for it."
        ),
        fix=_FIX,
        cost_ns_per_step=cost,
        confidence=Confidence.MEASURED if is_marked else Confidence.INFERRED,
        ranks=busiest.ranks,
        evidence=("pipeline.positions", "pipeline.max_over_mean"),
        without="stage-imbalance",
        explains=_WIDER,
    )


def _is_due_to(
    cause: StragglerCause, busiest: PipelinePosition, stragglers: StragglersResult
) -> bool:
    """Whether all ranks of a position are slow because of this cause."""
    slow = {rank for one in stragglers.sets if one.cause is cause for rank in one.ranks}
    return set(busiest.ranks) <= slow


UNEVEN = 1.1  # Share of a stage over an even one from which it, and not its group, is named

SHOWS = 0.5
"""Share of a stage's excess, in time or relative to the other stages, that the CPU time of its
training thread must also show. On a busy machine, waiting stretches the time; in short steps,
everything outside of stages dilutes the ratio."""


def _has_no_more_cpu_time(busiest: PipelinePosition, pauses: PausesResult) -> bool:
    """Whether a stage on CPU ranks takes longer, although its training thread does not run longer.

    It then waits for a CPU, or the profiler slows it down: the CPU time is that of steps without a
    profiler.
    """
    cpu_ns = {rank.rank: rank.cpu_ns_per_step for rank in pauses.ranks}
    others = [ns for rank, ns in cpu_ns.items() if ns and rank not in busiest.ranks]
    own = [ns for rank, ns in cpu_ns.items() if ns and rank in busiest.ranks]
    if not own or not others:
        return False
    excess_ns = busiest.work_ns_per_step * busiest.excess_ratio / (1 + busiest.excess_ratio)
    more_ns = median(own) - median(others)
    return more_ns < SHOWS * min(excess_ns, busiest.excess_ratio * median(others))


def _of_logs(pipeline: PipelineResult, limits: Limits) -> Iterator[Draft]:
    """The busiest stage according to an operation log, which does not separate steps."""
    uneven = [
        one for one in pipeline.groups if (one.imbalance_ratio or 0) - 1 >= limits["excess_ratio"]
    ]
    if uneven and all(group.imbalance_ns is None for group in pipeline.groups):
        raise InsufficientEvidenceError(_unpriced(uneven[0], uneven[0].imbalance_ratio or 0.0))
    for group in pipeline.groups:
        cost, span, stage = group.imbalance_ns, group.span_ns, group.limiting_stage
        ratio = group.imbalance_ratio
        if cost is None or not span or stage is None or ratio is None:
            continue
        if ratio - 1 < limits["excess_ratio"] or cost < limits["min_step_ratio"] * span:
            continue
        yield Draft(
            message=(
                f"Stage {stage} (rank {group.limiting_rank}) limits the pipeline: its rank works "
                f"{format_ratio(ratio - 1)} more than the mean. The pipeline waits "
                f"{format_duration(cost)} ({format_ratio(cost / span)}) of each step for it."
            ),
            fix=_FIX,
            cost_ns_per_step=cost,
            confidence=group.confidence,
            ranks=() if group.limiting_rank is None else (group.limiting_rank,),
            evidence=("pipeline.groups",),
            without="stage-imbalance",
            explains=_WIDER,
        )


def _unpriced(group: PipelineGroup, ratio: float) -> str:
    """Reason for a pipeline whose order is unknown, or that was not recorded completely."""
    return (
        f"rank {group.limiting_rank} of the pipeline of {name_ranks(group.ranks)} works "
        f"{format_ratio(ratio - 1)} more than the mean, but the cost is unknown, because its "
        "stages or their order are not completely known: mark the stages (pipeline_marks)"
    )


def _who_works(position: PipelinePosition) -> str:
    """The subject and the verb: the stage, or the one of several that works more than its share."""
    ranks, ratio = name_ranks(position.ranks), position.busiest_ratio
    if ratio is None or ratio < UNEVEN / len(position.stages):
        return f"{_stages(position)} ({ranks}) works"
    share, verb = format_ratio(ratio), "works" if len(position.ranks) == 1 else "work"
    numbers = ", ".join(map(str, position.stages))
    return (
        f"Stage {position.busiest_stage} is {share} of the work of stages {numbers}: {ranks} {verb}"
    )


def _stages(position: PipelinePosition) -> str:
    numbers = ", ".join(map(str, position.stages))
    return f"Stage {numbers}" if len(position.stages) == 1 else f"The group with stages {numbers}"


def _each(position: PipelinePosition) -> str:
    return "in each step" if position.work_ns_per_micro_batch is None else "on each micro-batch"


def _work(position: PipelinePosition) -> float:
    return position.work_ns_per_micro_batch or position.work_ns_per_step
