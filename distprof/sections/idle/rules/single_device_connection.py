"""# single-device-connection

## What it detects
A job that shards its parameters runs with `CUDA_DEVICE_MAX_CONNECTIONS=1`, and its gathers and
reduce-scatters are not hidden behind computation.

## Why it costs time
With one connection all streams of a process enter the device through one queue, in the order in
which the host launched them. A gather that was launched behind a queue of kernels begins only when
they have begun, and kernels launched behind it wait too. That order is what Megatron's tensor
parallelism wants on GPUs before Blackwell; the overlap of sharded parameters needs streams that run
freely.

## Evidence needed
The job's environment (a run directory), device activities, and all-gathers of a sharding axis.

## How the cost is computed
The smaller of two means per rank and step: exposed transfer of the sharding axes, and computation
that runs with no communication beside it. An upper bound: other causes may stand in the way too.

## How to fix
Unset it, or set 8 (the default) to 32. Where tensor parallelism needs it on Hopper and before, and
parameters are sharded too, compare both ways.

## When it is wrong
Where exposed transfer has another cause, such as `no-parameter-prefetch`; nothing in a trace shows
the queue itself.

## Sources
CUDA C++ Programming Guide, environment variables. Megatron-FSDP's documentation, which says to
leave it unset.
"""

from __future__ import annotations

from collections.abc import Iterator

from distprof.rules.base import Draft, Limit, Limits, rule
from distprof.sections.overlap.result import OverlapResult
from distprof.sections.sharding.result import ShardingResult
from distprof.sections.sharding.rules._shared import gather_transfer, moved_by, scatter_transfer
from distprof.sections.shares import alone_ns, mean_step
from distprof.sections.time.result import StepTimeResult, WaterfallResult
from distprof.terms import Confidence, Severity

_VARIABLE = "CUDA_DEVICE_MAX_CONNECTIONS"


@rule(
    code="HST104",
    severity=Severity.WARNING,
    since="0.1.0",
    needs=(ShardingResult, OverlapResult, WaterfallResult, StepTimeResult),
    limits={
        "min_step_ratio": Limit(0.05, "share of the step from which on overlap counts as lost")
    },
)
def check(
    sharding: ShardingResult,
    overlap: OverlapResult,
    waterfall: WaterfallResult,
    step_time: StepTimeResult,
    limits: Limits,
) -> Iterator[Draft]:
    """Yield one finding for the run."""
    if not sharding.axes or sharding.device == "cpu" or sharding.variable(_VARIABLE) != "1":
        return
    step = mean_step(waterfall, step_time)
    alone = alone_ns(step, overlap)
    cost = min(
        sum(gather_transfer(axis) + scatter_transfer(axis) for axis in sharding.axes),
        alone,
        step.exposed_transfer_ns,
    )
    if step.ratio(cost) < limits["min_step_ratio"]:
        return
    where = " and ".join(moved_by(axis) for axis in sharding.axes)
    yield Draft(
        message=(
            f"{_VARIABLE}=1, and {step.share(cost)} is exposed transfer of sharded parameters in "
            f"{where}."
        ),
        fix=f"Unset {_VARIABLE}: the overlap of sharded parameters needs streams that run freely.",
        cost_ns_per_step=cost,
        confidence=Confidence.INFERRED,
        evidence=("sharding.environment", "sharding.axes", "overlap.ranks"),
        without="overlap",
    )
