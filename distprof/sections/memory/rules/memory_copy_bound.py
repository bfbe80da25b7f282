"""# memory-copy-bound

## What it detects
Copies between CPU and GPU, or within the GPU, run while the GPU does nothing else.

## Why it costs time
Copy engines work concurrently with kernels. A copy on the compute stream, or from pageable memory,
blocks that stream until it is done.

## Evidence needed
GPU activities of at least one rank.

## How the cost is computed
Time covered by copies and memory sets but not by computation or communication, as a mean over ranks
and steps. No other finding includes it.

## How to fix
Pin CPU memory (`pin_memory=True` in the data loader) and copy with `non_blocking=True` on a
separate stream, one batch ahead. Offloading (optimizer, activations): prefetch and use fewer,
larger copies, or offload less. Copies within the GPU: avoid `.contiguous()`, `torch.cat` and
`.clone()` in the hot path.

## When it is wrong
Offloading that makes the model fit is worth its copies. A checkpoint in the recorded steps copies
once, not in every step.

## Sources
Formula sheet, "Measured from traces" (exposed copies). PyTorch documentation, CUDA semantics
(pinned memory).
"""

from __future__ import annotations

from collections.abc import Iterator

from distprof.rules.base import Draft, Limit, Limits, rule
from distprof.sections.shares import mean_step
from distprof.sections.time.result import StepTimeResult, WaterfallResult
from distprof.terms import Severity


@rule(
    code="MEM101",
    severity=Severity.WARNING,
    since="0.1.0",
    needs=(WaterfallResult, StepTimeResult),
    limits={
        "exposed_copy_ratio": Limit(0.05, "largest acceptable share of exposed copies in the step")
    },
)
def check(waterfall: WaterfallResult, step_time: StepTimeResult, limits: Limits) -> Iterator[Draft]:
    """Yield one finding for the run."""
    step = mean_step(waterfall, step_time)
    cost = step.mean(step.total.exposed_copy_ns)
    limit = limits["exposed_copy_ratio"]
    if step.ratio(cost) < limit:
        return
    yield Draft(
        message=(
            f"{step.share(cost)} is exposed copies: they overlap with neither computation nor "
            "communication."
        ),
        fix=(
            "Pin CPU memory and copy with non_blocking=True on a separate stream, one batch ahead. "
            "Offload less or in larger pieces."
        ),
        cost_ns_per_step=cost,
        ranks=tuple(
            rank.rank
            for rank in waterfall.ranks
            if rank.exposed_copy_ns >= limit * rank.span_ns > 0
        ),
        evidence=("breakdown.ranks", "waterfall.all"),
        without="copies",
    )
