"""# unused-parameter-search

## What it detects
DistributedDataParallel searches the graph after each forward for parameters that were not used
(`find_unused_parameters=True`).

## Why it costs time
The search walks the whole graph on the training thread before backward can begin. The ranks then
exchange the result in one more all-reduce. The search also prevents DDP from ordering buckets as
gradients become ready, so the buckets overlap less.

## Evidence needed
A trace with CPU events: torch names the search
(`torch.distributed.ddp.reducer::search_unused_parameters`).

## How the cost is computed
Time of the search during which the GPU is idle (on CPUs: all of it), plus the exposed time of the
all-reduce: mean over ranks and steps. The cost of a poor order of buckets is not included.

## How to fix
Leave `find_unused_parameters` at `False` if every forward uses every parameter; torch warns once
per run if the search found none unused. If some parameters are never used, freeze them
(`requires_grad_(False)`). If the same parameters always stay unused, set `static_graph=True`, which
finds them in the first step.

## When it is wrong
With routed branches the used parameters differ from step to step. DDP then needs the search, and
this is its price.

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
    limits={"min_step_ratio": Limit(0.001, "smallest share of the step that is worth reporting")},
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
            f"{step.share(cost)} is lost to the search and to sharing its result with the other "
            "ranks."
        ),
        fix=(
            "Set find_unused_parameters=False if every forward uses every parameter. Otherwise "
            "freeze the parameters that are never used, or set static_graph=True."
        ),
        cost_ns_per_step=cost,
        evidence=("gradients.search_ns_per_step", "gradients.search_exposed_ns_per_step"),
    )
