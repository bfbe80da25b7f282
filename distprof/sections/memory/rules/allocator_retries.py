"""# allocator-retries

## What it detects
The caching allocator runs out of memory in steady steps, frees its cache and retries.

## Why it costs time
A retry synchronises the GPU, returns every cached block to the driver and requests new ones. This
takes tens to hundreds of milliseconds on one rank, and all ranks wait in the next collective.

## Evidence needed
A run directory with memory counters of ranks on GPUs. Retries in the first half of the steps do not
count, because the allocator has to see every size once.

## How the cost is computed
Extra time of steady steps with a retry over the median steady step without one, on the rank that
loses most, averaged over all its steady steps. Traced steps do not count. The cost is unknown if
every steady step has retries.

## How to fix
Free memory: use a smaller micro-batch, more sharding or selective recomputation. Against
fragmentation set `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`, pad sequences to a few
lengths, and do not call `empty_cache` in the loop.

## When it is wrong
If other long steps (checkpoints, evaluation) coincide with retries, the cost includes part of their
time.

## Sources
PyTorch documentation, "CUDA semantics", memory management (`num_alloc_retries`).
"""

from __future__ import annotations

from collections.abc import Iterator

from distprof.rules.base import Draft, InsufficientEvidenceError, Limit, Limits, rule
from distprof.sections.efficiency.result import EfficiencyResult
from distprof.sections.memory.result import MemoryResult
from distprof.sections.memory.rules._shared import measured_memory
from distprof.sections.step_log.result import StepLogResult
from distprof.terms import Severity
from distprof.units import format_duration, format_ratio


@rule(
    code="MEM103",
    severity=Severity.WARNING,
    since="0.1.0",
    limits={
        "num_retries": Limit(
            1, "smallest number of retries of a rank in the second half of the steps"
        )
    },
)
def check(
    efficiency: EfficiencyResult, memory: MemoryResult, step_log: StepLogResult, limits: Limits
) -> Iterator[Draft]:
    """Yield one finding for all ranks."""
    measured = measured_memory(efficiency, memory)
    known = [rank for rank in measured if rank.num_retries is not None]
    if measured and not known:
        raise InsufficientEvidenceError("too few steps to find retries in steady steps")
    ranks = [rank for rank in known if (rank.num_retries or 0) >= max(1, limits["num_retries"])]
    if not ranks:
        return
    total = sum(rank.num_retries or 0 for rank in ranks)
    cost = max((rank.retry_ns_per_step or 0 for rank in ranks), default=0)
    times = "once" if total == 1 else f"{total} times"
    who = "1 rank" if len(ranks) == 1 else f"{len(ranks)} ranks"
    yield Draft(
        message=(
            f"The allocator of {who} ran out of memory and retried {times} in the second half of"
            f" the steps{_share(cost, step_log.step_ns)}."
        ),
        fix=(
            "Free memory with a smaller micro-batch, more sharding or recomputation. Set "
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True against fragmentation."
        ),
        cost_ns_per_step=cost or None,
        ranks=tuple(rank.rank for rank in ranks),
        evidence=("efficiency.memory", "step_log.ranks"),
    )


def _share(cost: int, step: int | None) -> str:
    if not cost or not step:
        return ""
    mean = step + cost
    share = f"{format_ratio(cost / mean)} of each step"
    return f": {share} ({format_duration(cost)} of {format_duration(mean)})"
