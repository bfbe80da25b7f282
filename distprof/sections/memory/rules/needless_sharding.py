"""# needless-sharding

## What it detects
Weights are sharded and gathered again in each forward and backward although every device could
hold the whole state.

## Why it costs time
Sharded data parallelism gathers the weights twice in a step and scatters gradients once: one and a
half times the bytes of an all-reduce, and the gathers of the forward stand before the computation.

## Evidence needed
Traces whose gathers of weights are known, that repeat them in a step; the model (run.json or
`[model]` in `distprof.toml`) on data-parallel axes alone, memory counters of every rank, sizes of
devices.

## How the cost is computed
Modelled: of the exposed transfer of the all-gathers all but one pass over the weights (of two
passes, half), since one is what becomes the second half of an all-reduce. Memory is modelled too:
what the fullest device holds, and 16 bytes per parameter for what it does not hold now.

## How to fix
DistributedDataParallel, or ZeRO-1 for the optimizer's part of the memory at no more bytes; or keep
FSDP and leave weights gathered after the forward (`reshard_after_forward=False`).

## When it is wrong
A larger micro-batch may be worth more than the bytes. Parameters, gradients or moments in another
precision than 16 bytes together make the state smaller or larger than modelled.

## Sources
Formula sheet, "Volume per training step", "Memory", "Anti-patterns" (FSDP where DDP would fit).
"""

from __future__ import annotations

from collections.abc import Iterator

from distprof.rules.base import Draft, InsufficientEvidenceError, Limit, Limits, rule
from distprof.sections.efficiency.result import EfficiencyResult
from distprof.sections.memory.result import MemoryResult
from distprof.sections.memory.rules._shared import sized_memory
from distprof.sections.sharding.result import ShardedAxis, ShardingResult
from distprof.sections.sharding.rules._shared import gather_transfer
from distprof.sections.shares import mean_step
from distprof.sections.time.result import StepTimeResult, WaterfallResult
from distprof.terms import Confidence, Severity
from distprof.units import format_bytes

_SHARDED = 3
_REPEATED = 1.5


@rule(
    code="MEM106",
    severity=Severity.INFO,
    since="0.1.0",
    needs=(EfficiencyResult, MemoryResult, ShardingResult, WaterfallResult, StepTimeResult),
    limits={
        "filled_ratio": Limit(0.85, "share of a device that the whole state may fill"),
        "exposed_ratio": Limit(0.02, "share of the step for which gathers may be exposed"),
    },
)
def check(
    efficiency: EfficiencyResult,
    memory: MemoryResult,
    sharding: ShardingResult,
    waterfall: WaterfallResult,
    step_time: StepTimeResult,
    limits: Limits,
) -> Iterator[Draft]:
    """Yield one finding for the run."""
    ranks = sized_memory(efficiency, memory)
    if not ranks:
        return
    if efficiency.zero_stage is None:
        raise InsufficientEvidenceError("whether weights are sharded is not known")
    whole = efficiency.unsharded_bytes
    if efficiency.zero_stage != _SHARDED or whole is None:
        return
    size = min(rank.capacity_bytes or 0 for rank in ranks)
    step = mean_step(waterfall, step_time)
    repeated = [axis for axis in sharding.axes if (axis.gather_passes or 0.0) >= _REPEATED]
    exposed = sum(map(gather_transfer, repeated))
    if not repeated or whole > limits["filled_ratio"] * size:
        return
    if step.ratio(exposed) < limits["exposed_ratio"]:
        return
    yield Draft(
        message=(
            f"Weights are gathered {max(axis.gather_passes or 0.0 for axis in repeated):.2g} times"
            f" in each step although the whole state fits: {format_bytes(whole)} of"
            f" {format_bytes(size)}, modelled. Gathers are exposed for {step.share(exposed)}."
        ),
        fix="Use DistributedDataParallel, ZeRO-1, or FSDP with reshard_after_forward=False.",
        cost_ns_per_step=round(sum(gather_transfer(a) * _needless(a) for a in repeated)),
        confidence=Confidence.MODELLED,
        evidence=("efficiency.unsharded_bytes", "sharding.axes"),
    )


def _needless(axis: ShardedAxis) -> float:
    """All but one pass over the weights."""
    return 1 - 1 / (axis.gather_passes or 1.0)
