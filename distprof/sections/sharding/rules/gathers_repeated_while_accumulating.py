"""# gathers-repeated-while-accumulating

## What it detects
Gradients are accumulated over micro-batches, and each micro-batch gathers the sharded parameters
again or reduces its own gradients, although parameters change only once per step.

## Why it costs time
With M micro-batches the sharding axis moves M times the necessary traffic: 3M · N bytes instead of
3 · N (formula sheet). The exposed part of it adds to the step.

## Evidence needed
All-gathers and reduce-scatters of a sharding axis, in order: how many passes a step makes follows
from that, without knowing the program. Element types and sizes for the passes of gathers.

## How the cost is computed
Exposed transfer of reduce-scatters times 1 − 1/passes, plus that of gathers times 1 − 2/passes
(forward and backward each gather once even without accumulation), mean per rank and step. This is
an upper bound. If waiting for late members is unknown, all exposed time counts as transfer.

## How to fix
All fixes cost memory. Reduce gradients only in the last micro-batch:
`set_requires_gradient_sync(False)` before the others (FSDP2) or `no_sync()` (FSDP1). Each rank then
keeps unsharded gradients. Gather once per step: `set_reshard_after_forward(False)` and
`set_reshard_after_backward(False)` in all but the last micro-batch. Each rank then also keeps
unsharded parameters. If memory allows, use a larger micro-batch instead of accumulation, which
costs no extra traffic.

## When it is wrong
There may be no memory for unsharded gradients, unsharded parameters or a larger micro-batch. The
traffic is then the price of the model's size, so this finding is not a warning. Pipelines always
run on micro-batches; shard less inside a stage there (ZeRO-1 or ZeRO-2).

## Sources
Formula sheet, "Volume per training step" (FSDP) and "Anti-patterns" (accumulation). PyTorch
documentation of `fully_shard`.
"""

from __future__ import annotations

from collections.abc import Iterator

from distprof.rules.base import Draft, Limit, Limits, rule
from distprof.sections.sharding.result import ShardedAxis, ShardingResult
from distprof.sections.sharding.rules._shared import (
    confidence,
    gather_transfer,
    moved_by,
    scatter_transfer,
)
from distprof.sections.shares import mean_step
from distprof.sections.time.result import StepTimeResult, WaterfallResult
from distprof.terms import Severity

_GATHERS = 2
"""Gather passes of one micro-batch: forward and backward."""


@rule(
    code="COM119",
    severity=Severity.INFO,
    since="0.1.0",
    limits={
        "min_gather_passes": Limit(
            3.5, "gather passes per step from which gathers count as repeated"
        ),
        "min_scatter_passes": Limit(
            2, "reduce-scatter passes per step from which they count as repeated"
        ),
        "min_step_ratio": Limit(0.03, "smallest share of the step that is worth reporting"),
    },
)
def check(
    sharding: ShardingResult, waterfall: WaterfallResult, step_time: StepTimeResult, limits: Limits
) -> Iterator[Draft]:
    """Yield one finding for each axis whose traffic is repeated."""
    if not sharding.axes:
        return
    step = mean_step(waterfall, step_time)
    for axis in sharding.axes:
        gathers, scatters = axis.gather_passes or 0.0, axis.scatter_passes or 0
        repeats = scatters >= limits["min_scatter_passes"]
        if gathers < limits["min_gather_passes"] and not repeats:
            continue
        cost = _cost(axis, gathers, scatters)
        if step.ratio(cost) < limits["min_step_ratio"]:
            continue
        yield Draft(
            message=(
                f"A step of {moved_by(axis)} {_what(gathers, scatters)}: the exposed transfer "
                f"beyond that of one micro-batch takes {step.share(cost)}."
            ),
            fix=(
                "If memory allows, reduce gradients in the last micro-batch only "
                "(set_requires_gradient_sync, no_sync) and keep parameters gathered until then "
                "(set_reshard_after_forward, set_reshard_after_backward), or use a larger "
                "micro-batch."
            ),
            cost_ns_per_step=cost,
            confidence=confidence(axis),
            evidence=("sharding.axes", "waterfall.all"),
        )


def _cost(axis: ShardedAxis, gathers: float, scatters: int) -> int:
    of_gathers = gather_transfer(axis) * (1 - min(_GATHERS / gathers, 1)) if gathers else 0.0
    of_scatters = scatter_transfer(axis) * (1 - 1 / scatters) if scatters else 0.0
    return int(of_gathers + of_scatters)


def _what(gathers: float, scatters: int) -> str:
    parts = []
    if gathers > _GATHERS:
        parts.append(f"gathers every parameter {gathers:.0f} times")
    if scatters > 1:
        parts.append(f"reduces every gradient {scatters} times")
    return " and ".join(parts)
