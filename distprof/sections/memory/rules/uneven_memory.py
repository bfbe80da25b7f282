"""# uneven-memory

## What it detects
One rank's device is much fuller than those of ranks that do the same work.

## Why it costs time
The fullest device limits the micro-batch of all. Ranks of one pipeline stage hold the same weights
and as many activations, so what one has more is something that only it keeps.

## Evidence needed
A run directory with memory counters of several ranks of one pipeline stage, and sizes of devices.

## How the cost is computed
There is none: what a larger micro-batch would gain did not run.

## How to fix
Look what that rank keeps: losses or outputs gathered on rank 0, a checkpoint's copy of the state,
processes that opened its device by accident (`CUDA_VISIBLE_DEVICES`, `map_location`), longer
sequences, more tokens for its experts.

## Example
```text
uneven-memory: Rank 0 holds 71.0 GB, the median rank 52.3 GB: it fills 88.8 % of its device and
limits the micro-batch of all.
```

## When it is wrong
Where sequences differ in length the fullest rank is another one in each step; then balance them.

## Sources
TraceML (skew of memory across ranks). PyTorch documentation, "Serialization" (`map_location`).
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from distprof.rules.base import Draft, Limit, Limits, rule
from distprof.sections.efficiency.result import DeviceMemory, EfficiencyResult
from distprof.sections.memory.result import MemoryResult
from distprof.sections.same_machine import sized_memory
from distprof.terms import Severity
from distprof.units import format_bytes, format_ratio


@rule(
    code="MEM105",
    severity=Severity.INFO,
    since="0.1.0",
    needs=(EfficiencyResult, MemoryResult),
    limits={
        "over_median_ratio": Limit(1.25, "fullest rank of a stage over its median rank"),
        "allocated_ratio": Limit(0.6, "share of a device below which nobody is limited"),
    },
)
def check(efficiency: EfficiencyResult, memory: MemoryResult, limits: Limits) -> Iterator[Draft]:
    """Yield one finding per pipeline stage."""
    stages: dict[int, list[DeviceMemory]] = {}
    for rank in sized_memory(efficiency, memory):
        stages.setdefault(rank.stage, []).append(rank)
    for ranks in stages.values():
        yield from _judge(ranks, limits)


def _judge(ranks: Sequence[DeviceMemory], limits: Limits) -> Iterator[Draft]:
    """Of two ranks the emptier is the measure."""
    held = [rank.allocated_bytes or 0 for rank in ranks]
    median, fullest = statistics.median_low(held), max(ranks, key=lambda r: r.allocated_bytes or 0)
    if (fullest.allocated_ratio or 0.0) < limits["allocated_ratio"]:
        return
    if max(held) < limits["over_median_ratio"] * median:
        return
    yield Draft(
        message=(
            f"Rank {fullest.rank} holds {format_bytes(max(held))}, the median rank"
            f" {format_bytes(median)}: it fills {format_ratio(fullest.allocated_ratio)} of its"
            " device and limits the micro-batch of all."
        ),
        fix=(
            "Look what this rank keeps: gathered outputs, a copy of the state, other processes on"
            " its device, longer sequences, more tokens for its experts."
        ),
        cost_ns_per_step=None,
        ranks=(fullest.rank,),
        evidence=("efficiency.memory",),
    )
