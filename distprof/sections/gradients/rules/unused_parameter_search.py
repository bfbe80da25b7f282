"""# unused-parameter-search

## What it detects
DistributedDataParallel searches the graph after each forward for parameters that took no part
(`find_unused_parameters=True`).

## Why it costs time
The search walks the whole graph on the training thread before backward may begin, and ranks then
tell each other what they found in one more all-reduce. It also keeps DDP from putting buckets in
the order in which gradients become ready, so that they overlap less.

## Evidence needed
A trace with host events: torch names the search
(`torch.distributed.ddp.reducer::search_unused_parameters`).

## How the cost is computed
Time of the search in which the device stands still (on CPUs: all of it), and what the all-reduce
exposes; mean over ranks and steps. What a poor order of buckets costs is not part of it.

## How to fix
Leave `find_unused_parameters` at `False` if every parameter takes part in every forward; torch
warns once per run if the search found none unused. Where some never take part, freeze them
(`requires_grad_(False)`). Where it is always the same ones, `static_graph=True` learns them in the
first step.

## When it is wrong
Where parameters that take part differ from step to step, as with routed branches: then DDP needs
the search, and this is its price.

## Sources
Formula sheet, "Anti-patterns" (`find_unused_parameters` without need). PyTorch documentation of
`DistributedDataParallel`; `torch/csrc/distributed/c10d/reducer.cpp`.
"""

from __future__ import annotations

from collections.abc import Iterator

from distprof.rules.base import Draft, Limit, Limits, rule
from distprof.sections.gradients.result import GradientsResult
from distprof.sections.shares import mean_step
from distprof.sections.time.result import StepTimeResult, WaterfallResult
from distprof.terms import Severity
from distprof.units import format_duration


@rule(
    code="COM115",
    severity=Severity.INFO,
    since="0.1.0",
    needs=(GradientsResult, WaterfallResult, StepTimeResult),
    limits={"min_step_ratio": Limit(0.001, "share of the step that may be lost to it")},
)
def check(
    gradients: GradientsResult,
    waterfall: WaterfallResult,
    step_time: StepTimeResult,
    limits: Limits,
) -> Iterator[Draft]:
    """Yield one finding for the run."""
    if not gradients.search_ns_per_step:
        return
    step = mean_step(waterfall, step_time)
    cost = gradients.search_exposed_ns_per_step
    if step.ratio(cost) < limits["min_step_ratio"]:
        return
    searched = format_duration(gradients.search_ns_per_step)
    yield Draft(
        message=(
            f"DDP searches for unused parameters for {searched} of each {step.word}; "
            f"{step.share(cost)} is lost to that and to telling the other ranks."
        ),
        fix=(
            "find_unused_parameters=False if every parameter takes part in every forward; else "
            "freeze those that never do, or static_graph=True."
        ),
        cost_ns_per_step=cost,
        evidence=("gradients.search_ns_per_step", "gradients.search_exposed_ns_per_step"),
    )
