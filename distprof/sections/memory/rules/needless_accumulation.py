"""# needless-accumulation

## What it detects
Gradients are accumulated over micro-batches although larger micro-batches would fit.

## Why it costs time
Each micro-batch launches every kernel again on smaller matrices, and sharded weights are gathered
again for it. Half as many micro-batches of twice the size do the same work with less of both.

## Evidence needed
A run directory: forward passes per step from the step log, memory counters of every rank, the
memory size of its GPU, and a mesh with only data-parallel axes (a pipeline needs its
micro-batches).

## How the cost is computed
No cost: the gain from larger matrices depends on kernels that did not run.

## How to fix
Double the micro-batch and halve the number of micro-batches: the optimizer's batch and the training
stay the same.

## When it is wrong
Memory use at most doubles with the micro-batch, so the larger one fits. But sequences of different
lengths may need the memory in other steps, and layers that normalise over the micro-batch train
differently.

## Sources
Formula sheet, "Anti-patterns" (accumulation when the batch fits in memory).
"""

from __future__ import annotations

from collections.abc import Iterator

from distprof.rules.base import Draft, InsufficientEvidenceError, Limit, Limits, rule
from distprof.sections.efficiency.result import EfficiencyResult
from distprof.sections.memory.result import MemoryResult
from distprof.sections.memory.rules._shared import sized_memory
from distprof.terms import Confidence, Severity
from distprof.units import format_bytes, format_ratio


@rule(
    code="MEM102",
    severity=Severity.INFO,
    since="0.1.0",
    limits={
        "reserved_ratio": Limit(0.45, "share of a GPU's memory below which twice as much fits")
    },
    costs_time=False,
)
def check(efficiency: EfficiencyResult, memory: MemoryResult, limits: Limits) -> Iterator[Draft]:
    """Yield one finding for the run."""
    ranks = sized_memory(efficiency, memory)
    if not ranks:
        return
    if efficiency.num_micro_batches is None or efficiency.is_data_parallel_only is None:
        raise InsufficientEvidenceError(
            "the number of micro-batches per step, or the mesh, is unknown"
        )
    if efficiency.num_micro_batches < 2 or not efficiency.is_data_parallel_only:
        return
    fullest = max(ranks, key=lambda rank: rank.reserved_ratio or rank.allocated_ratio or 0.0)
    used = fullest.reserved_ratio or fullest.allocated_ratio or 0.0
    if used >= limits["reserved_ratio"]:
        return
    yield Draft(
        message=(
            f"Gradients are accumulated over {efficiency.num_micro_batches} micro-batches, while"
            f" the fullest GPU reserves {format_ratio(used)} of its"
            f" {format_bytes(fullest.capacity_bytes)}: micro-batches of twice the size fit."
        ),
        fix=(
            "Double the micro-batch and halve the number of micro-batches. The optimizer's batch "
            "stays the same."
        ),
        confidence=Confidence.INFERRED,
        evidence=("efficiency.num_micro_batches", "efficiency.memory"),
    )
