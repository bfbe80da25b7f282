"""# memory-nearly-full

## What it detects
Tensors nearly fill a GPU's memory.

## Why it costs time
A longer sequence, a fragmented cache or a library that allocates its own memory can then end the
job. Before that, the allocator retries, which stalls all ranks.

## Evidence needed
A run directory with memory counters, and the GPU's memory size from its trace or the hardware
sheet.

## How the cost is computed
No cost: memory use that fits costs no time.

## How to fix
Leave a tenth free: use a smaller micro-batch, more sharding, selective recomputation, or a fused
loss that keeps no logits. NCCL and the CUDA context need a few GB outside the allocator.

## When it is wrong
A job with fixed shapes that has run for a long time will not need more memory.

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
    limits={
        "allocated_ratio": Limit(
            0.90, "largest acceptable share of a GPU's memory filled by tensors"
        )
    },
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
            f" {format_bytes(fullest.capacity_bytes)} of the fullest GPU, and at least"
            f" {format_ratio(limit)} on {len(full)} of {len(known)} ranks."
        ),
        fix=(
            "Leave a tenth free: use smaller micro-batches, more sharding or selective "
            "recomputation."
        ),
        ranks=tuple(rank.rank for rank in full),
        evidence=("efficiency.memory",),
    )
