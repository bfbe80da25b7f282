"""# uneven-memory

## What it detects
One rank's GPU memory is much fuller than that of ranks that do the same work.

## Why it costs time
The fullest GPU limits the micro-batch of all ranks. Ranks of one pipeline stage hold the same
weights and equally large activations, so any excess is something that only one rank keeps.

## Evidence needed
A run directory with memory counters of several ranks of one pipeline stage, and GPU memory sizes.

## How the cost is computed
No cost: the gain from a larger micro-batch was not measured.

## How to fix
Find out what that rank keeps: losses or outputs gathered on rank 0, a checkpoint's copy of the
state, processes that opened its GPU by accident (`CUDA_VISIBLE_DEVICES`, `map_location`), longer
sequences, or more tokens for its experts.

## When it is wrong
If sequences differ in length, the fullest rank changes from step to step. Balance the sequences
then.

## Sources
TraceML (skew of memory across ranks). PyTorch documentation, "Serialization" (`map_location`).
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from distprof.rules.base import Draft, Limit, Limits, rule
from distprof.sections.efficiency.result import DeviceMemory, EfficiencyResult
from distprof.sections.memory.result import MemoryResult
from distprof.sections.memory.rules._shared import sized_memory
from distprof.terms import Severity
from distprof.units import format_bytes, format_ratio


@rule(
    code="MEM105",
    severity=Severity.INFO,
    since="0.1.0",
    limits={
        "over_median_ratio": Limit(
            1.25, "ratio of the memory of a stage's fullest rank to that of its median rank"
        ),
        "allocated_ratio": Limit(0.6, "share of a GPU's memory below which it limits no rank"),
    },
    costs_time=False,
)
def check(efficiency: EfficiencyResult, memory: MemoryResult, limits: Limits) -> Iterator[Draft]:
    """Yield one finding per pipeline stage."""
    stages: dict[int, list[DeviceMemory]] = {}
    for rank in sized_memory(efficiency, memory):
        stages.setdefault(rank.stage, []).append(rank)
    for ranks in stages.values():
        yield from _judge(ranks, limits)


def _judge(ranks: Sequence[DeviceMemory], limits: Limits) -> Iterator[Draft]:
    """The lower median is the reference: with two ranks, the emptier one."""
    held = [rank.allocated_bytes or 0 for rank in ranks]
    median, fullest = statistics.median_low(held), max(ranks, key=lambda r: r.allocated_bytes or 0)
    if (fullest.allocated_ratio or 0.0) < limits["allocated_ratio"]:
        return
    if max(held) < limits["over_median_ratio"] * median:
        return
    yield Draft(
        message=(
            f"Rank {fullest.rank} holds {format_bytes(max(held))}, the median rank"
            f" {format_bytes(median)}. Rank {fullest.rank} fills"
            f" {format_ratio(fullest.allocated_ratio)} of its GPU and limits the micro-batch of all"
            " ranks."
        ),
        fix=(
            "Find out what this rank keeps: gathered outputs, a copy of the state, other processes "
            "on its GPU, longer sequences, or more tokens for its experts."
        ),
        ranks=(fullest.rank,),
        evidence=("efficiency.memory",),
    )
