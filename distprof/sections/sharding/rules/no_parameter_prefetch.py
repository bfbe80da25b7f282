"""# no-parameter-prefetch

## What it detects
Sharded parameters are gathered only when the computation before them has ended, so that the device
waits for each unit in turn. That is so too where the whole model is one unit, which leaves nothing
to compute meanwhile.

## Why it costs time
A gather that begins while the unit before is computed costs nothing as long as it takes no longer
than that. One that begins afterwards adds its full length to the step, in forward and again in
backward.

## Evidence needed
All-gathers and reduce-scatters of a sharding axis (`dp_shard`, or any group that gathers
parameters unit after unit), with the computation of the same rank.

## How the cost is computed
The smaller of two means per rank and step: exposed transfer of the gathers, and computation that
runs with no communication beside it. Where waiting for late members is not known, exposed time
stands for exposed transfer and the finding is marked *inferred*. The time is part of what
`exposed-communication` and `low-overlap` report.

## How to fix
FSDP2 (`fully_shard`): wrap each transformer block, keep the implicit prefetch (no
`torch.cuda.synchronize` or `.item()` in forward), and call `set_modules_to_forward_prefetch` and
`set_modules_to_backward_prefetch` where the host is slow. FSDP1: `forward_prefetch=True`,
`backward_prefetch=BackwardPrefetch.BACKWARD_PRE`. DeepSpeed: `stage3_prefetch_bucket_size`,
`overlap_comm`. Megatron: `--overlap-param-gather`. It takes the memory of one more unit.

## When it is wrong
Where computation of a unit is so short that a prefetched gather, begun in time, is past it at once;
where memory has no room for a second unit. Units of a few kilobytes are left to `tiny-collectives`.

## Sources
Formula sheet, "Anti-patterns" (FSDP without prefetch) and "Volume per training step" (FSDP).
PyTorch documentation of `fully_shard`.
"""

from __future__ import annotations

from collections.abc import Iterator

from distprof.rules.base import Draft, Limit, Limits, rule
from distprof.sections.overlap.result import OverlapResult
from distprof.sections.sharding.result import ShardedAxis, ShardingResult
from distprof.sections.sharding.rules._shared import (
    confidence,
    gather_scenario,
    gather_transfer,
    moved_by,
)
from distprof.sections.shares import WIDER_TRANSFER, MeanStep, alone_ns, mean_step
from distprof.sections.time.result import StepTimeResult, WaterfallResult
from distprof.terms import Severity
from distprof.units import format_bytes, format_ratio


@rule(
    code="COM117",
    severity=Severity.WARNING,
    since="0.1.0",
    needs=(ShardingResult, OverlapResult, WaterfallResult, StepTimeResult),
    limits={
        "max_ahead_ratio": Limit(
            0.25,
            "share of the gathers that could begin beside computation, from which on is prefetch",
        ),
        "min_unit_bytes": Limit(
            100_000, "median size in bytes of a gather, below which only latency counts"
        ),
        "min_step_ratio": Limit(0.03, "share of the step below which the cost is not worth naming"),
    },
)
def check(
    sharding: ShardingResult,
    overlap: OverlapResult,
    waterfall: WaterfallResult,
    step_time: StepTimeResult,
    limits: Limits,
) -> Iterator[Draft]:
    """Yield one finding for each axis that gathers nothing ahead."""
    if not sharding.axes:
        return
    step = mean_step(waterfall, step_time)
    alone = alone_ns(step, overlap)
    for axis in sharding.axes:
        if axis.ahead_ratio is None:
            continue
        if axis.ahead_ratio >= limits["max_ahead_ratio"] * _possible_ratio(axis):
            continue
        if (axis.gather_bytes_median or limits["min_unit_bytes"]) < limits["min_unit_bytes"]:
            continue
        cost = min(gather_transfer(axis), alone)
        if step.ratio(cost) < limits["min_step_ratio"]:
            continue
        yield Draft(
            message=_message(axis, step, cost),
            fix=(
                "Gather the next unit while this one computes: one unit per transformer block, "
                "set_modules_to_forward_prefetch and set_modules_to_backward_prefetch (FSDP2), "
                "forward_prefetch=True (FSDP1)."
            ),
            cost_ns_per_step=cost,
            confidence=confidence(axis),
            evidence=("sharding.axes", "overlap.ranks", "waterfall.all"),
            without=gather_scenario(axis),
            explains=WIDER_TRANSFER,
        )


def _possible_ratio(axis: ShardedAxis) -> float:
    """Share of gathers that can be ahead: the root and the first block have nothing before them.

    Of one unit or two nothing can, which is what the finding then says.
    """
    units = axis.num_units or 0
    return (units - 2) / units if units > 2 else 1.0


def _message(axis: ShardedAxis, step: MeanStep, cost_ns: int) -> str:
    size = "" if axis.gather_bytes_median is None else f" {format_bytes(axis.gather_bytes_median)}"
    times = f"{axis.gathers_per_step:.0f} times{size}"
    if axis.num_units == 1:
        return (
            f"All parameters that {moved_by(axis)} shares are one unit, gathered {times}: "
            f"{step.share(cost_ns)} is gathering while there is nothing to compute."
        )
    return (
        f"{format_ratio(axis.ahead_ratio)} of the parameters that {moved_by(axis)} shares are "
        f"gathered beside computation: {step.share(cost_ns)} is gathering, {times}, that nothing "
        "hides."
    )
