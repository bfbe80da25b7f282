"""# small-sharding-units

## What it detects
Parameters are sharded in many small units, with gathers of a few megabytes or less in sequence.

## Why it costs time
Each gather of any size pays a start-up cost (α times the steps of its ring), and small messages do
not reach the bandwidth of the network. One unit per transformer block moves the same bytes in far
fewer operations.

## Evidence needed
All-gathers and reduce-scatters of a sharding axis with their sizes. A fabric profile (`--fabric`)
provides the start-up cost.

## How the cost is computed
Modelled: the share of gathers that units of the limit's size would avoid (1 − total bytes / (number
· limit)), times their exposed transfer. With a fabric profile the cost is at most the start-up cost
of the avoided gathers, from the fitted α. If waiting for late members is unknown, it counts as
transfer, so the cost is an upper bound.

## How to fix
Apply `fully_shard` to whole transformer blocks instead of their layers (FSDP1: an
`auto_wrap_policy` on the block's class; `size_based_auto_wrap_policy` with a larger
`min_num_params`). DeepSpeed: a larger `stage3_prefetch_bucket_size` and
`stage3_param_persistence_threshold`.

## When it is wrong
A small model has few small blocks, and merging them leaves nothing to overlap with. The rule
therefore stays silent below `min_units`.

## Sources
Formula sheet, "Collectives" (α and β) and "Volume per training step" (FSDP). PyTorch documentation
of `fully_shard`.
"""

from __future__ import annotations

from collections.abc import Iterator

from distprof.rules.base import Draft, InsufficientEvidenceError, Limit, Limits, rule
from distprof.sections.sharding.result import ShardedAxis, ShardingResult
from distprof.sections.sharding.rules._shared import gather_scenario, gather_transfer, moved_by
from distprof.sections.shares import mean_step
from distprof.sections.time.result import StepTimeResult, WaterfallResult
from distprof.terms import Confidence, Severity
from distprof.units import format_bytes


@rule(
    code="COM118",
    severity=Severity.WARNING,
    since="0.1.0",
    limits={
        "unit_bytes": Limit(4_000_000, "gather size from which a unit is large enough, in bytes"),
        "min_units": Limit(16, "smallest number of units per pass that is worth merging"),
        "min_step_ratio": Limit(0.02, "smallest share of the step that is worth reporting"),
    },
)
def check(
    sharding: ShardingResult, waterfall: WaterfallResult, step_time: StepTimeResult, limits: Limits
) -> Iterator[Draft]:
    """Yield one finding for each axis with many small units."""
    if not sharding.axes:
        return
    step = mean_step(waterfall, step_time)
    if all(axis.gather_bytes_median is None for axis in sharding.axes):
        raise InsufficientEvidenceError("the recording has no message sizes")
    for axis in sharding.axes:
        size, units = axis.gather_bytes_median, axis.num_units
        if size is None or units is None:
            continue
        if size >= limits["unit_bytes"] or units < limits["min_units"]:
            continue
        cost = _cost(axis, limits["unit_bytes"])
        if step.ratio(cost) < limits["min_step_ratio"]:
            continue
        yield Draft(
            message=(
                f"A pass over the parameters sharded over {moved_by(axis)} takes {units} gathers "
                "of "
                f"{format_bytes(size)}. Units of {format_bytes(limits['unit_bytes'])} would "
                f"recover {step.share(cost)}."
            ),
            fix=(
                "Shard whole transformer blocks: fully_shard(block) for each, or an "
                "auto_wrap_policy on the block's class (FSDP1)."
            ),
            cost_ns_per_step=cost,
            confidence=Confidence.MODELLED,
            evidence=("sharding.axes", "waterfall.all"),
            without=gather_scenario(axis),
        )


def _cost(axis: ShardedAxis, unit_bytes: float) -> int:
    """Time of the gathers that larger units would avoid."""
    needed = max((axis.gather_bytes_per_step or 0) / unit_bytes, 1.0)
    gone = max(axis.gathers_per_step - needed, 0.0)
    cost = gather_transfer(axis) * gone / max(axis.gathers_per_step, 1.0)
    if axis.latency_ns_per_gather is not None:
        cost = min(cost, gone * axis.latency_ns_per_gather)
    return int(cost)
