"""# single-device-connection

## What it detects
A job that shards its parameters runs with `CUDA_DEVICE_MAX_CONNECTIONS=1`, and its gathers and
reduce-scatters do not overlap with computation.

## Why it costs time
With one connection all streams of a process enter the GPU through one queue, in the order in which
the CPU launched them. A gather behind a queue of kernels begins only after they have begun, and
kernels behind the gather wait too. Megatron's tensor parallelism needs this order on GPUs before
Blackwell. The overlap of sharded parameters needs independent streams.

## Evidence needed
The job's environment (a run directory), GPU activities, and all-gathers of a sharding axis.

## How the cost is computed
The smaller of two means per rank and step: exposed transfer of the sharding axes, and computation
that runs without concurrent communication. This is an upper bound, because other causes may also
prevent overlap.

## How to fix
Unset the variable, or set it to a value from 8 (the default) to 32. If tensor parallelism needs 1
on Hopper and earlier, and parameters are sharded too, compare both settings.

## When it is wrong
Exposed transfer may have another cause, such as `no-parameter-prefetch`. A trace does not show the
queue itself.

## Sources
CUDA C++ Programming Guide, environment variables. Megatron-FSDP's documentation, which recommends
leaving it unset.
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
    limits={"min_step_ratio": Limit(0.05, "smallest share of the step that is worth reporting")},
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
            f"{_VARIABLE}=1, and the exposed transfer of sharded parameters in {where} takes "
            f"{step.share(cost)}."
        ),
        fix=f"Unset {_VARIABLE}: the overlap of sharded parameters needs independent streams.",
        cost_ns_per_step=cost,
        confidence=Confidence.INFERRED,
        evidence=("sharding.environment", "sharding.axes", "overlap.ranks"),
        without="overlap",
    )
