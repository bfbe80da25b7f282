"""# input-bound

## What it detects
The GPU idles while the training loop waits for its next batch.

## Why it costs time
A batch that is not ready when the step begins stalls the rank and, at the next collective, all
other ranks.

## Evidence needed
CPU annotations of the data loader (`enumerate(DataLoader)#…`, `…DataLoader…__next__`, or
`distprof:input`) on the thread that launches. If the straggler rules already name every waiting
rank for its late input, this rule is silent: these ranks are the problem, not the loop.

## How the cost is computed
Idle GPU time covered by these annotations, mean over ranks and steps. If the input of one rank is
late, its straggler finding includes the loss of the other ranks. The cost is not part of any other
finding.

## How to fix
Raise `num_workers` until the wait is gone, then set `pin_memory=True`, `persistent_workers=True`
and a larger `prefetch_factor`, and copy with `non_blocking=True`. If workers cannot keep up, decode
and tokenise ahead of time, use larger shards, or replace network storage with a local cache.

## When it is wrong
The first step of an epoch starts the workers. A recording of that step alone says nothing about
later steps.

## Sources
Formula sheet, "Measured from traces" (input wait). PyTorch documentation of `DataLoader`.
"""

from __future__ import annotations

from collections.abc import Iterator

from distprof.rules.base import Draft, InsufficientEvidenceError, Limit, Limits, rule
from distprof.sections.idle.result import IdleResult
from distprof.sections.input.rules._shared import named_for_late_input
from distprof.sections.shares import mean_step
from distprof.sections.stragglers.result import StragglersResult
from distprof.sections.time.result import StepTimeResult, WaterfallResult
from distprof.terms import Severity

_FIX = (
    "Raise num_workers and prefetch_factor, set pin_memory and persistent_workers, and copy with "
    "non_blocking=True. Then look at decoding and storage."
)
_FIX_OF_CPU = (
    "Raise num_workers and prefetch_factor, and set persistent_workers; leave the workers cores "
    "that no rank computes on. Then look at decoding and storage."
)


@rule(
    code="INP101",
    severity=Severity.WARNING,
    since="0.1.0",
    limits={
        "idle_input_ratio": Limit(0.05, "share of the step that the GPU may wait for data"),
        "error_ratio": Limit(0.2, "share of the step from which the finding is an error"),
    },
)
def check(
    idle: IdleResult,
    waterfall: WaterfallResult,
    step_time: StepTimeResult,
    stragglers: StragglersResult,
    limits: Limits,
) -> Iterator[Draft]:
    """Yield one finding for the run."""
    step = mean_step(waterfall, step_time)
    if not idle.ranks:
        raise InsufficientEvidenceError(
            "no CPU activities to judge by: the cause of idle time is unknown"
        )
    cost = step.mean(step.total.idle_input_ns)
    if step.ratio(cost) < limits["idle_input_ratio"]:
        return
    spans = {rank.rank: rank.span_ns for rank in waterfall.ranks}
    late = tuple(
        rank.rank
        for rank in idle.ranks
        if rank.input_ns >= limits["idle_input_ratio"] * spans.get(rank.rank, rank.idle_ns)
    )
    if late and set(late) <= named_for_late_input(stragglers):
        return
    yield Draft(
        message=(
            f"For {step.share(cost)} {idle.nothing_runs} while the training loop waits for data."
        ),
        fix=_FIX_OF_CPU if idle.is_cpu else _FIX,
        cost_ns_per_step=cost,
        ranks=late,
        evidence=("idle.ranks", "waterfall.all"),
        without="input",
        severity=Severity.ERROR if step.ratio(cost) >= limits["error_ratio"] else None,
    )
