"""# needless-sharding

## What it detects
Weights are sharded and gathered again in each forward and backward pass although every GPU could
hold the whole state.

## Why it costs time
Sharded data parallelism gathers the weights twice per step and scatters gradients once. This moves
one and a half times the bytes of an all-reduce, and computation has to wait for the gathers of the
forward pass.

## Evidence needed
Traces with weight gathers that repeat within a step; the model (run.json or `[model]` in
`distprof.toml`) with only data-parallel axes; memory counters of every rank; GPU memory sizes.

## How the cost is computed
Modelled: the exposed transfer of the all-gathers except for one pass over the weights (half of it
for two passes), because one pass becomes the second half of an all-reduce. Memory is modelled too:
the present use of the fullest GPU, plus 16 bytes for each parameter that it does not hold now.

## How to fix
Use DistributedDataParallel, or ZeRO-1, which shards optimizer memory without more traffic. Or keep
FSDP and leave weights gathered after the forward pass (`reshard_after_forward=False`).

## When it is wrong
A larger micro-batch may gain more than less traffic. The state is smaller or larger than modelled
if parameters, gradients and moments do not take 16 bytes in total.

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
    limits={
        "filled_ratio": Limit(
            0.85, "largest acceptable share of a GPU's memory for the whole state"
        ),
        "exposed_ratio": Limit(0.02, "largest acceptable share of exposed gathers in the step"),
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
        raise InsufficientEvidenceError("it is unknown whether weights are sharded")
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
            f"Weights are gathered {max(axis.gather_passes or 0.0 for axis in repeated):.2g} times "
            f"per step although the whole state would fit: {format_bytes(whole)} of "
            f"{format_bytes(size)} (modelled). Exposed gathers take {step.share(exposed)}."
        ),
        fix="Use DistributedDataParallel, ZeRO-1, or FSDP with reshard_after_forward=False.",
        cost_ns_per_step=round(sum(gather_transfer(a) * _needless(a) for a in repeated)),
        confidence=Confidence.MODELLED,
        evidence=("efficiency.unsharded_bytes", "sharding.axes"),
    )


def _needless(axis: ShardedAxis) -> float:
    """The share of gathers beyond one pass over the weights."""
    return 1 - 1 / (axis.gather_passes or 1.0)
