"""# memory-nearly-full

## What it detects
Tensors fill a device almost to its end.

## Why it costs time
A longer sequence, a fragmented cache or a library that allocates for itself then ends the job. On
the way there the allocator retries, which stalls all ranks.

## Evidence needed
A run directory with memory counters, and the size of the device by its trace or the hardware sheet.

## How the cost is computed
There is none: as long as it fits, it costs nothing.

## How to fix
Leave a tenth free: a smaller micro-batch, more sharding, selective recomputation, a fused loss that
keeps no logits. NCCL and the CUDA context need some GB outside of the allocator.

## When it is wrong
With fixed shapes and a job that has run long, what fits will go on fitting.

## Sources
Kineto's TensorBoard plugin (recommendation above 90 %). PyTorch documentation, "CUDA semantics".
"""

from __future__ import annotations

from collections.abc import Iterator

from distprof.rules.base import Draft, Limit, Limits, rule
from distprof.sections.efficiency.result import EfficiencyResult
from distprof.sections.memory.result import MemoryResult
from distprof.sections.memory.rules._shared import sized_memory
from distprof.terms import Severity
from distprof.units import format_bytes, format_ratio


@rule(
    code="MEM104",
    severity=Severity.INFO,
    since="0.1.0",
    needs=(EfficiencyResult, MemoryResult),
    limits={"allocated_ratio": Limit(0.90, "share of a device that tensors may fill")},
    costs_time=False,
)
def check(efficiency: EfficiencyResult, memory: MemoryResult, limits: Limits) -> Iterator[Draft]:
    """Yield one finding for all ranks."""
    known = sized_memory(efficiency, memory)
    limit = limits["allocated_ratio"]
    full = [rank for rank in known if (rank.allocated_ratio or 0.0) >= limit]
    if not full:
        return
    fullest = max(full, key=lambda rank: rank.allocated_ratio or 0.0)
    yield Draft(
        message=(
            f"Tensors fill {format_ratio(fullest.allocated_ratio)} of the"
            f" {format_bytes(fullest.capacity_bytes)} of the fullest device, on {len(full)} of"
            f" {len(known)} ranks more than {format_ratio(limit)}."
        ),
        fix="Leave a tenth free: a smaller micro-batch, more sharding or selective recomputation.",
        ranks=tuple(rank.rank for rank in full),
        evidence=("efficiency.memory",),
    )
