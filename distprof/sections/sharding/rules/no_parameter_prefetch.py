"""# no-parameter-prefetch

## What it detects
Sharded parameters are gathered only after the previous computation has ended, so the GPU waits for
each unit. The rule also reports a model that is a single unit, which leaves nothing to compute
during the gather.

## Why it costs time
A gather that begins during the computation of the previous unit costs nothing unless it takes
longer than that computation. A gather that begins afterwards adds its full length to the step, in
forward and again in backward.

## Evidence needed
All-gathers and reduce-scatters of a sharding axis (`dp_shard`, or any group that gathers parameters
unit by unit), with the computation of the same rank.

## How the cost is computed
The smaller of two means per rank and step: exposed transfer of the gathers, and computation that
runs without concurrent communication. If waiting for late members is unknown, all exposed time
counts as transfer and the finding is marked *inferred*. The time is part of what
`exposed-communication` and `low-overlap` report.

## How to fix
FSDP2 (`fully_shard`): wrap each transformer block, keep the implicit prefetch (no
`torch.cuda.synchronize` or `.item()` in forward), and call `set_modules_to_forward_prefetch` and
`set_modules_to_backward_prefetch` if the CPU is slow. FSDP1: `forward_prefetch=True`,
`backward_prefetch=BackwardPrefetch.BACKWARD_PRE`. DeepSpeed: `stage3_prefetch_bucket_size`,
`overlap_comm`. Megatron: `--overlap-param-gather`. Prefetch needs memory for one more unit.

## When it is wrong
The computation of a unit may be too short to overlap with a prefetched gather, or there may be no
memory for a second unit. `tiny-collectives` covers units of a few kilobytes.

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
    limits={
        "max_ahead_ratio": Limit(
            0.25,
            "share of overlappable gathers from which parameters count as prefetched",
        ),
        "min_unit_bytes": Limit(
            100_000, "median size of a gather in bytes below which latency dominates"
        ),
        "min_step_ratio": Limit(0.03, "smallest share of the step that is worth reporting"),
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
    """Share of gathers that can overlap: no computation precedes the root and the first block.

    With one or two units no gather can overlap, and the rule reports that.
    """
    units = axis.num_units or 0
    return (units - 2) / units if units > 2 else 1.0


def _message(axis: ShardedAxis, step: MeanStep, cost_ns: int) -> str:
    size = "" if axis.gather_bytes_median is None else f" {format_bytes(axis.gather_bytes_median)}"
    times = f"{axis.gathers_per_step:.0f} times{size}"
    if axis.num_units == 1:
        return (
            f"All parameters sharded over {moved_by(axis)} are one unit, gathered {times}: "
            f"{step.share(cost_ns)} is spent gathering with nothing to compute."
        )
    return (
        f"Only {format_ratio(axis.ahead_ratio)} of the parameters sharded over {moved_by(axis)} "
        f"are gathered during computation: {step.share(cost_ns)} is exposed gathering, {times}."
    )
