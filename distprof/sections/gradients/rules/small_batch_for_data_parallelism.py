"""# small-batch-for-data-parallelism

## What it detects
Reducing the gradients takes longer than computing backward, so part of the reduction stays exposed
even with perfect overlap: the batch per rank is too small for this number of ranks.

## Why it costs time
The bytes of the gradients do not depend on the batch, but the work does. Below the critical batch,
batch · CCR*/CCR, the network sets the pace, and additional ranks speed up almost nothing. CCR is
the computation per byte, and CCR* is what the GPU computes in the time in which the network moves
one byte.

## Evidence needed
torch's marks of DDP, launches of kernels (on a GPU), and matched collectives, which separate
transfer from waiting. The number of tokens comes from the step log, if there is one.

## How the cost is computed
Transfer of one reduction minus the backward computation that it could overlap with, capped at the
exposed transfer: mean over ranks and steps. The cost is modelled: the critical batch assumes that
computation is proportional to the batch, and that the speeds of GPU and network do not change.

## How to fix
Use larger micro-batches, up to the factor in the message. If memory or convergence forbids them,
use fewer data-parallel ranks (more tensor or pipeline parallelism), accumulation with `no_sync`
(one reduction for several backwards), 16-bit or compressed gradients, or hybrid sharding.

## When it is wrong
Something else may slow down the transfers: check `below-fabric-bandwidth` and the rules on NCCL's
network before you change the batch. On CPUs, communication and computation use the same cores.

## Sources
Formula sheet, "Computation and communication" (critical batch) and
"Anti-patterns" (small batch with large DP).
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from distprof.rules.base import Draft, InsufficientEvidenceError, Limit, Limits, rule
from distprof.sections.gradients.result import GradientGroup, GradientsResult
from distprof.sections.gradients.rules._shared import (
    NO_BACKWARD,
    exposed_once_ns,
    gradient_groups,
    name_of,
)
from distprof.sections.shares import WIDER_TRANSFER, mean_step
from distprof.sections.step_log.result import StepLogResult
from distprof.sections.time.result import StepTimeResult, WaterfallResult
from distprof.terms import Confidence, Severity
from distprof.units import NS_PER_S, format_duration


@rule(
    code="COM114",
    severity=Severity.WARNING,
    since="0.1.0",
    limits={
        "transfer_ratio": Limit(
            1.0, "ratio of a reduction's transfer to the computation of backward"
        ),
        "min_step_ratio": Limit(0.05, "smallest share of the step that is worth reporting"),
    },
)
def check(
    gradients: GradientsResult,
    step_log: StepLogResult,
    waterfall: WaterfallResult,
    step_time: StepTimeResult,
    limits: Limits,
) -> Iterator[Draft]:
    """Yield one finding per axis."""
    for group in gradient_groups(gradients):
        transfer, backward = _times(group)
        if transfer <= limits["transfer_ratio"] * backward:
            continue
        step = mean_step(waterfall, step_time)
        cost = min(transfer - backward, exposed_once_ns(group))
        if step.ratio(cost) < limits["min_step_ratio"]:
            continue
        factor = transfer / max(backward, 1)
        yield Draft(
            message=(
                f"Reducing {name_of(group)} takes {format_duration(transfer)}, but backward only "
                f"{format_duration(backward)}: {step.share(cost)} cannot overlap. With "
                f"{factor:.3g} times the samples per micro-batch{_tokens(group, step_log, factor)} "
                "it could."
            ),
            fix=(
                "Use larger micro-batches or accumulation with no_sync, else fewer data-parallel "
                "ranks or 16-bit or compressed gradients."
            ),
            cost_ns_per_step=cost,
            confidence=Confidence.MODELLED,
            ranks=group.ranks,
            evidence=("gradients.groups", "waterfall.all"),
            explains=WIDER_TRANSFER,
        )


def _tokens(group: GradientGroup, step_log: StepLogResult, factor: float) -> str:
    """Tokens of a micro-batch now and with the larger batch; empty if none are logged."""
    tokens = [
        rank.tokens_per_s * rank.median_ns / NS_PER_S / group.micro_batches
        for rank in step_log.ranks
        if rank.rank in group.ranks and rank.tokens_per_s and rank.median_ns
    ]
    if not tokens:
        return ""
    now = statistics.median(tokens)
    return f" ({now * factor:,.0f} tokens instead of {now:,.0f})"


def _times(group: GradientGroup) -> tuple[int, int]:
    """Transfer of one reduction and computation of one backward, ns."""
    if group.backward_ns is None:
        raise InsufficientEvidenceError(NO_BACKWARD)
    if group.transfer_ns is None:
        raise InsufficientEvidenceError(
            "transfer and waiting could not be separated: gradients were not matched across ranks"
        )
    return group.transfer_ns, group.backward_ns
