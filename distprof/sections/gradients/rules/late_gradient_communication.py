"""# late-gradient-communication

## What it detects
DistributedDataParallel begins to reduce gradients only when backward is almost over. No computation
is left for the reductions to overlap with.

## Why it costs time
The gradients of the last layers are ready first, early in backward. If DDP sends them at once, in
buckets, they travel while the GPU computes the rest of backward, and only the last bucket is
exposed.

## Evidence needed
torch's marks of DDP in the trace, and on a GPU the launches of kernels, which show when backward
begins. With matched collectives, the cost excludes waiting for late ranks. Without them, the
finding is marked *inferred*.

## How the cost is computed
The exposed transfer of one reduction per update, capped at the backward computation that it could
overlap with: mean over ranks and steps. This is an upper bound, because one bucket stays exposed.
The time is part of what `low-overlap` and `exposed-communication` count; this rule names the cause.

## How to fix
One bucket: lower `bucket_cap_mb` to about a tenth of the gradients' bytes (the default is 25 MB,
and 1 MB for the first bucket). Several buckets: register modules in the order in which forward uses
them, avoid `find_unused_parameters=True`, which prevents DDP from reordering buckets, and do not
wait for reductions in gradient hooks.

## When it is wrong
If only the first layers of a model are trained, their gradients are always ready last. If backward
is too short to overlap with anything, see `small-batch-for-data-parallelism`.

## Sources
Formula sheet, "Volume per training step" (DDP: overlap with backward if buckets allow). PyTorch
documentation of `DistributedDataParallel` (`bucket_cap_mb`). Li et al., "PyTorch Distributed", VLDB
2020.
"""

from __future__ import annotations

from collections.abc import Iterator

from distprof.rules.base import Draft, Limit, Limits, rule
from distprof.sections.gradients.result import GradientGroup, GradientsResult
from distprof.sections.gradients.rules._shared import (
    confidence_of,
    exposed_label,
    exposed_once_ns,
    gradient_groups,
    is_late,
)
from distprof.sections.shares import WIDER_TRANSFER, mean_step
from distprof.sections.time.result import StepTimeResult, WaterfallResult
from distprof.terms import Severity
from distprof.units import format_ratio


@rule(
    code="COM112",
    severity=Severity.WARNING,
    since="0.1.0",
    limits={"min_step_ratio": Limit(0.03, "smallest share of the step that is worth reporting")},
)
def check(
    gradients: GradientsResult,
    waterfall: WaterfallResult,
    step_time: StepTimeResult,
    limits: Limits,
) -> Iterator[Draft]:
    """Yield one finding per axis."""
    for group in gradient_groups(gradients):
        if not is_late(group):
            continue
        step = mean_step(waterfall, step_time)
        cost = min(exposed_once_ns(group), group.backward_ns or 0)
        if step.ratio(cost) < limits["min_step_ratio"]:
            continue
        yield Draft(
            message=(
                f"{_when(group)}: {step.share(cost)} is {exposed_label(group)} that could have "
                "overlapped with backward."
            ),
            fix=_fix(group),
            cost_ns_per_step=cost,
            confidence=confidence_of(group),
            ranks=group.ranks,
            evidence=("gradients.groups", "waterfall.all"),
            without="overlap",
            explains=WIDER_TRANSFER,
        )


def _when(group: GradientGroup) -> str:
    if group.num_buckets == 1:
        return "All gradients are in one bucket, which is ready only when backward has ended"
    done = (group.before_first_ns or 0) / max(group.backward_ns or 0, 1)
    return (
        f"The first of {group.num_buckets} gradient buckets is ready only after "
        f"{format_ratio(done)} of backward"
    )


def _fix(group: GradientGroup) -> str:
    if group.num_buckets == 1:
        return (
            f"Make the buckets smaller: bucket_cap_mb={max(group.bytes // 10_000_000, 1)} instead "
            "of one bucket for all gradients."
        )
    return (
        "Register modules in the order in which forward uses them, do not search for unused "
        "parameters, and do not wait for reductions in gradient hooks."
    )
