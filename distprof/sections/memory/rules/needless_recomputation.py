"""# needless-recomputation

## What it detects
Activations are recomputed in the backward pass although there is memory to keep them.

## Why it costs time
Full recomputation repeats the forward pass of every block: a quarter of the computation of a step,
which HFU counts and MFU does not.

## Evidence needed
A configuration with recomputed activations (run.json or `[model]`) and only data-parallel axes,
memory counters of every rank, GPU memory sizes, and tokens and micro-batches per step.

## How the cost is computed
Modelled: the measured computation of a step times the share of its FLOP that is recomputed, times
the share of blocks whose activations fit into the free memory (34 bytes per token and hidden unit
of a GPT block, formula sheet, minus what recomputation keeps).

## How to fix
Recompute only as many blocks as memory requires, or only attention (selective recomputation, which
fused attention already does). Alternatively, use the free memory for a larger micro-batch.

## When it is wrong
Layers that keep more activations than a transformer block make the modelled size too small. Long
sequences in other steps may need the memory.

## Sources
Formula sheet, "Memory". Korthikanti et al., "Reducing Activation Recomputation in Large Transformer
Models".
"""

from __future__ import annotations

from collections.abc import Iterator

from distprof.rules.base import Draft, InsufficientEvidenceError, Limit, Limits, rule
from distprof.sections.efficiency.result import NO_MODEL, EfficiencyResult
from distprof.sections.memory.result import MemoryResult
from distprof.sections.memory.rules._shared import sized_memory
from distprof.sections.shares import mean_step
from distprof.sections.time.result import StepTimeResult, WaterfallResult
from distprof.terms import Confidence, Severity
from distprof.units import format_bytes, format_ratio

_LEFT_FREE_RATIO = 0.10
_WORTH_IT_RATIO = 0.1


@rule(
    code="MEM107",
    severity=Severity.WARNING,
    since="0.1.0",
    limits={
        "computed_ratio": Limit(1.2, "computed FLOP over required FLOP (HFU over MFU)"),
        "free_ratio": Limit(0.15, "share of the fullest GPU's memory that may be free"),
    },
)
def check(
    efficiency: EfficiencyResult,
    memory: MemoryResult,
    waterfall: WaterfallResult,
    step_time: StepTimeResult,
    limits: Limits,
) -> Iterator[Draft]:
    """Yield one finding for the run."""
    ranks = sized_memory(efficiency, memory)
    if not ranks:
        return
    if not efficiency.recomputation:
        raise InsufficientEvidenceError(NO_MODEL)
    needed, computed = efficiency.flop_per_step, efficiency.computed_flop_per_step
    saved = efficiency.recomputed_bytes
    if efficiency.recomputation == "none" or not needed or not computed or not saved:
        return
    fullest = max(ranks, key=lambda rank: rank.allocated_ratio or 0.0)
    size, used = fullest.capacity_bytes or 0, fullest.allocated_bytes or 0
    if computed < limits["computed_ratio"] * needed or 1 - used / size < limits["free_ratio"]:
        return
    fits = min(1.0, ((1 - _LEFT_FREE_RATIO) * size - used) / saved)
    if fits < _WORTH_IT_RATIO:
        return
    step = mean_step(waterfall, step_time)
    recomputed_ns = step.mean(step.total.computation_ns) * (1 - needed / computed)
    yield Draft(
        message=(
            f"The forward pass of every block is computed twice{_ratios(efficiency)} while"
            f" {format_bytes(size - used)} of {format_bytes(size)} are free:"
            f" {format_ratio(fits)} of the activations would fit (modelled)."
        ),
        fix="Recompute only as many blocks as memory requires, or use a larger micro-batch.",
        cost_ns_per_step=round(recomputed_ns * fits),
        confidence=Confidence.MODELLED,
        evidence=("efficiency.memory", "efficiency.recomputed_bytes", "waterfall.all"),
    )


def _ratios(efficiency: EfficiencyResult) -> str:
    if efficiency.hfu_ratio is None or efficiency.mfu_ratio is None:
        return ""
    return f" (HFU {format_ratio(efficiency.hfu_ratio)}, MFU {format_ratio(efficiency.mfu_ratio)})"
