"""# small-batch-for-data-parallelism

## What it detects
Reducing the gradients takes longer than backward computes, so even perfect overlap cannot hide
them: each rank has too few samples for so many ranks.

## Why it costs time
The bytes of the gradients do not depend on the batch, the work does. Below the critical batch,
batch · CCR*/CCR (computation per byte against what the device computes per byte the network
moves), the network sets the pace, and ranks that are added compute next to nothing.

## Evidence needed
torch's marks of DDP, launches of kernels (on a device), and matched collectives, which tell
transfer from waiting. The number of tokens comes from the step log, where there is one.

## How the cost is computed
Transfer of one reduction less the computation of the backward beside which it could run, no more
than is exposed; mean over ranks and steps. Modelled: the critical batch takes computation to be
proportional to the batch, and both to keep their speed.

## How to fix
Larger micro-batches, up to the factor in the message. Where memory or convergence forbids them:
fewer data-parallel ranks (more tensor or pipeline parallelism), accumulation with `no_sync` (one
reduction for several backwards), 16-bit or compressed gradients, hybrid sharding.

## When it is wrong
Where something slows the transfers: compare with `below-fabric-bandwidth` and the rules on NCCL's
network before changing the batch. On CPUs that communicate and compute with the same cores.

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
    needs=(GradientsResult, StepLogResult, WaterfallResult, StepTimeResult),
    limits={
        "transfer_ratio": Limit(1.0, "transfer of a reduction over the computation of backward"),
        "min_step_ratio": Limit(0.05, "share of the step that may be lost to it"),
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
                f"Reducing {name_of(group)} takes {format_duration(transfer)}, backward "
                f"{format_duration(backward)}: {step.share(cost)} cannot be hidden. With "
                f"{factor:.3g} times the samples per micro-batch{_tokens(group, step_log, factor)} "
                "it could."
            ),
            fix=(
                "Larger micro-batches or accumulation with no_sync; else fewer data-parallel ranks,"
                " 16-bit or compressed gradients."
            ),
            cost_ns_per_step=cost,
            confidence=Confidence.MODELLED,
            ranks=group.ranks,
            evidence=("gradients.groups", "waterfall.all"),
            explains=WIDER_TRANSFER,
        )


def _tokens(group: GradientGroup, step_log: StepLogResult, factor: float) -> str:
    """Tokens of a micro-batch as they are and as they would be; nothing where none are logged."""
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
    """Transfer of a reduction, computation of a backward, ns."""
    if group.backward_ns is None:
        raise InsufficientEvidenceError(NO_BACKWARD)
    if group.transfer_ns is None:
        raise InsufficientEvidenceError(
            "transfer and waiting could not be told apart: gradients were not matched across ranks"
        )
    return group.transfer_ns, group.backward_ns
