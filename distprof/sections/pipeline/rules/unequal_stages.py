"""# unequal-stages

## What it detects
One stage of a pipeline works longer on each micro-batch than the others.

## Why it costs time
A pipeline runs at the speed of its slowest stage. The other stages wait for it once in every
micro-batch, which looks like bubble but does not shrink with more micro-batches.

## Evidence needed
Computation inside the marks around the work of stages (`distprof:pp …`, recorded by the probe
`pipeline_marks`), in at least three steps. A stage held by several ranks works as long as the one
that works least. From a log of operations, or a pipeline timeline, the mean of its steps is taken.

## How the cost is computed
With M micro-batches, (M − 1)/M of the work of the busiest stage beyond the mean of all stages: what
an even split of the same work would save. From a log, the order of actions is replayed with the
stages' own durations, and with equal ones. The time is part of what `exposed-communication`
reports.

## How to fix
Move blocks from the busiest stage to the others. Count the embedding with the first stage and the
output layer and loss with the last: with a large vocabulary they weigh as much as several blocks.
If the stages hold equal work, its device is slow: look at its clocks and its temperature.

## When it is wrong
Stages that are uneven on purpose, because one of their devices has less memory or is of an older
kind. Where many more processes than cores share a machine, the scheduler makes stages uneven.

## Sources
Formula sheet, "Pipeline bubble" (stage imbalance).
"""

from __future__ import annotations

from collections.abc import Iterator

from distprof.rules.base import Draft, Limit, Limits, rule
from distprof.sections.pipeline.result import PipelinePosition, PipelineResult
from distprof.terms import Severity
from distprof.units import format_duration, format_ratio, name_ranks

_FIX = (
    "Move blocks to the other stages, and count embedding, output layer and loss as work; "
    "if the stages hold equal work, look at the clocks and the temperature of its device."
)


@rule(
    code="PIP101",
    severity=Severity.WARNING,
    since="0.1.0",
    needs=(PipelineResult,),
    limits={
        "excess_ratio": Limit(0.08, "work beyond the other stages' median that is tolerated"),
        "min_step_ratio": Limit(0.01, "share of the step that may be lost to it"),
        "chance": Limit(0.01, "chance that stages which are all alike differ so much"),
    },
)
def check(pipeline: PipelineResult, limits: Limits) -> Iterator[Draft]:
    """Yield one finding for the busiest stage."""
    cost, step = pipeline.lost_ns_per_step, pipeline.step_ns
    if not pipeline.positions:
        yield from _of_logs(pipeline, limits)
        return
    if len(pipeline.positions) < 2 or not cost or not step:
        return  # no pipeline, or one whose stages are alike
    busiest = max(pipeline.positions, key=lambda position: position.excess_ratio)
    if busiest.excess_ratio < limits["excess_ratio"] or busiest.chance > limits["chance"]:
        return
    if cost < limits["min_step_ratio"] * step:
        return
    yield Draft(
        message=(
            f"{_stages(busiest)} ({name_ranks(busiest.ranks)}) works "
            f"{format_duration(_per_micro_batch(busiest))} on each micro-batch, the other stages' "
            f"median is {format_duration(_others(busiest))} "
            f"({format_ratio(busiest.excess_ratio)} more); the pipeline waits for it for "
            f"{format_duration(cost)} of each step ({format_ratio(cost / step)})."
        ),
        fix=_FIX,
        cost_ns_per_step=cost,
        ranks=busiest.ranks,
        evidence=("pipeline.positions", "pipeline.max_over_mean"),
        without="stage-imbalance",
    )


def _of_logs(pipeline: PipelineResult, limits: Limits) -> Iterator[Draft]:
    """The busiest stage by a log of operations, whose steps are not told apart."""
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
                f"{format_ratio(ratio - 1)} more than the mean; the pipeline waits for it for "
                f"{format_duration(cost)} of each step ({format_ratio(cost / span)})."
            ),
            fix=_FIX,
            cost_ns_per_step=cost,
            confidence=group.confidence,
            ranks=() if group.limiting_rank is None else (group.limiting_rank,),
            evidence=("pipeline.groups",),
            without="stage-imbalance",
        )


def _stages(position: PipelinePosition) -> str:
    numbers = ", ".join(map(str, position.stages))
    return f"Stage {numbers}" if len(position.stages) == 1 else f"What holds stages {numbers}"


def _per_micro_batch(position: PipelinePosition) -> float:
    return position.work_ns_per_micro_batch or position.work_ns_per_step


def _others(position: PipelinePosition) -> float:
    return _per_micro_batch(position) / (1 + position.excess_ratio)
