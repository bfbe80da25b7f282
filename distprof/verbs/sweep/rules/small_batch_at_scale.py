"""# small-batch-at-scale

## What it detects
In data-parallel training, each rank's batch is so small that a step transfers gradients for longer
than it computes, and part of the transfer is exposed.

## Why it costs time
A step sends each gradient once, whatever the number of tokens. The transfer therefore stays the
same while computation shrinks with the batch per rank. Below the critical batch, not even perfect
overlap can hide the transfer.

## Evidence needed
A trace of the largest size with both exposed and overlapped communication, and the mesh. The mesh
must have data-parallel axes only, as the traffic of other axes grows with the batch.

## How the cost is computed
The exposed transfers of one step. At the critical batch, all of them could overlap with
computation. The critical batch is the batch per rank times transfer time over computation time.

## How to fix
Give each rank more work per step: a larger batch, or micro-batches that accumulate gradients
without a reduction each time. Alternatively, use fewer ranks, gradients of half the size, or a
faster network.

## When it is wrong
If weights are sharded: they are gathered for every micro-batch, so accumulation does not save all
of the traffic. If collectives are small and latency-bound: fewer and larger buckets help more. A
larger batch may need different hyperparameters.

## Sources
Formula sheet, "Computation and communication" (regimes, critical batch).
"""

from __future__ import annotations

from collections.abc import Iterator

from distprof.costs.roofline import critical_batch
from distprof.rules.base import Draft, InsufficientEvidenceError, Limit, Limits, rule
from distprof.terms import Confidence, Severity
from distprof.units import format_duration
from distprof.verbs.sweep.result import ScalingResult, ScalingSize
from distprof.verbs.sweep.rules._shared import larger_sizes


@rule(
    code="SCA104",
    severity=Severity.WARNING,
    since="0.1.0",
    limits={
        "position_ratio": Limit(
            0.8, "computation over transfer time below which transfers limit the step"
        ),
        "exposed_ratio": Limit(0.1, "minimum exposed transfer, as a share of the step"),
    },
)
def check(scaling: ScalingResult, limits: Limits) -> Iterator[Draft]:
    """Yield the largest size, if its batch is below the critical one."""
    size = larger_sizes(scaling)[-1]
    if size.exposed_transfer_ns is None or size.computation_ns is None:
        raise InsufficientEvidenceError(f"no traced parts for {size.num_ranks} ranks")
    if size.is_data_parallel is None:
        raise InsufficientEvidenceError(f"the mesh of the run on {size.num_ranks} ranks is unknown")
    if not size.is_data_parallel or size.transfer_ns is None or size.computation_ns <= 0:
        return
    position = size.computation_ns / size.transfer_ns
    if position >= limits["position_ratio"]:
        return
    if size.exposed_transfer_ns < limits["exposed_ratio"] * size.step_ns:
        return
    yield Draft(
        message=(
            f"On {size.num_ranks} ranks, a step computes for"
            f" {format_duration(size.computation_ns)} and transfers for"
            f" {format_duration(size.transfer_ns)}, of which"
            f" {format_duration(size.exposed_transfer_ns)} are exposed: {_batch(size, scaling)}."
        ),
        fix=(
            "Give each rank more work per step: a larger batch, or micro-batches whose gradients"
            " accumulate without a reduction each time."
        ),
        cost_ns_per_step=size.exposed_transfer_ns,
        confidence=Confidence.INFERRED,
        evidence=("scaling.sizes",),
    )


def _batch(size: ScalingSize, scaling: ScalingResult) -> str:
    """The batch compared with the critical batch; without units if the work is unknown."""
    assert size.computation_ns is not None
    assert size.transfer_ns is not None
    batch = (size.work_per_step or size.num_ranks) / size.num_ranks
    critical = critical_batch(batch, size.computation_ns, size.transfer_ns)
    if size.work_per_step is None:
        return f"the critical batch is {critical / batch:.3g} times that of a rank"
    return f"{batch:,.0f} {scaling.unit} per rank are below the critical batch of {critical:,.0f}"
