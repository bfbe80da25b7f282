"""# memory-copy-bound

## What it detects
Copies between host and device, or within the device, run while the device does nothing else.

## Why it costs time
Copy engines work beside kernels. A copy on the stream that computes, or from pageable memory,
stops that stream until it is done.

## Evidence needed
Device activities of at least one rank.

## How the cost is computed
Time covered by copies and memory sets and by neither computation nor communication; mean over
ranks and steps. It overlaps with no other finding.

## How to fix
Pin host memory (`pin_memory=True` in the data loader) and copy with `non_blocking=True` on a
stream of its own, one batch ahead. Offloading (optimizer, activations): prefetch and use fewer,
larger copies, or offload less. Device to device: avoid `.contiguous()`, `torch.cat` and
`.clone()` in the hot path.

## When it is wrong
Offloading that makes a model fit at all is worth its copies. A checkpoint in the recorded steps
copies once, not each step.

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
    limits={"exposed_copy_ratio": Limit(0.05, "share of the step that copies alone may take")},
)
def check(waterfall: WaterfallResult, step_time: StepTimeResult, limits: Limits) -> Iterator[Draft]:
    """Yield one finding for the run."""
    step = mean_step(waterfall, step_time)
    cost = step.mean(step.total.exposed_copy_ns)
    limit = limits["exposed_copy_ratio"]
    if step.ratio(cost) < limit:
        return
    yield Draft(
        message=f"{step.share(cost)} is copies with nothing beside them.",
        fix=(
            "Pin host memory and copy with non_blocking=True on a stream of its own, one batch "
            "ahead; offload less or in larger pieces."
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
