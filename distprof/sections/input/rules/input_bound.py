"""# input-bound

## What it detects
The device idles while the training loop waits for its next batch.

## Why it costs time
A batch that is not ready when the step begins stops the rank, and through the next collective all
other ranks too.

## Evidence needed
Host annotations of the data loader (`enumerate(DataLoader)#…`, `…DataLoader…__next__`, or
`distprof:input`) on the thread that launches. Where the straggler rules name every rank that waits
so long for its late input, this rule is silent: it is not the loop that is bound, but these ranks.

## How the cost is computed
Idle device time covered by such annotations, mean over ranks and steps. If one rank's input is
late, the others' loss is in its straggler finding, not here. It overlaps with no other finding.

## How to fix
Raise `num_workers` until the wait is gone, then set `pin_memory=True`, `persistent_workers=True`
and a larger `prefetch_factor`; copy with `non_blocking=True`. If workers cannot keep up: decode
and tokenise ahead of time, larger shards, local cache in place of network storage, fewer samples
per file.

## When it is wrong
The first step of an epoch starts the workers; a recording of that step alone says nothing about
the rest.

## Sources
Formula sheet, "Measured from traces" (input wait). PyTorch documentation of `DataLoader`.
"""

from __future__ import annotations

from collections.abc import Iterator

from distprof.rules.base import Draft, InsufficientEvidenceError, Limit, Limits, rule
from distprof.sections.idle.result import IdleResult
from distprof.sections.shares import mean_step
from distprof.sections.stragglers.result import StragglersResult
from distprof.sections.time.result import StepTimeResult, WaterfallResult
from distprof.terms import Severity, StragglerCause, StragglerPattern


@rule(
    code="INP101",
    severity=Severity.WARNING,
    since="0.1.0",
    needs=(IdleResult, WaterfallResult, StepTimeResult, StragglersResult),
    limits={
        "idle_input_ratio": Limit(0.05, "share of the step that the device may wait for data"),
        "error_ratio": Limit(0.2, "share of the step from which it is an error"),
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
        raise InsufficientEvidenceError("no host activities in the traces: idle time has no cause")
    cost = step.mean(step.total.idle_input_ns)
    if step.ratio(cost) < limits["idle_input_ratio"]:
        return
    spans = {rank.rank: rank.span_ns for rank in waterfall.ranks}
    late = tuple(
        rank.rank
        for rank in idle.ranks
        if rank.input_ns >= limits["idle_input_ratio"] * spans.get(rank.rank, rank.idle_ns)
    )
    if late and set(late) <= _named(stragglers):
        return
    yield Draft(
        message=f"For {step.share(cost)} the device idles while the loop waits for data.",
        fix=(
            "Raise num_workers and prefetch_factor, set pin_memory and persistent_workers, copy "
            "with non_blocking=True; then look at decoding and storage."
        ),
        cost_ns_per_step=cost,
        ranks=late,
        evidence=("idle.ranks", "waterfall.all"),
        without="input",
        severity=Severity.ERROR if step.ratio(cost) >= limits["error_ratio"] else None,
    )


def _named(stragglers: StragglersResult) -> set[int]:
    """Ranks whose late input a straggler rule reports."""
    return {
        rank.rank
        for rank in stragglers.ranks
        if rank.pattern is not StragglerPattern.NONE and rank.cause is StragglerCause.LATE_INPUT
    }
