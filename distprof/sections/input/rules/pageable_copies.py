"""# pageable-copies

## What it detects
Batches are copied to the GPU from pageable memory, and nothing overlaps with these copies.

## Why it costs time
The driver copies pageable memory piece by piece through an internal pinned buffer, and the call
returns only when the CPU has done its part. The copy is slower, and neither computation nor the
next launches overlap with it, even with `non_blocking=True`.

## Evidence needed
Traces of NVIDIA GPUs, which name the copy `Memcpy HtoD (Pageable -> Device)`.

## How the cost is computed
Time of these copies that overlaps with neither computation nor communication, mean over ranks and
steps. Other findings count the time that the CPU loses while it waits for them. `memory-copy-bound`
counts the same time among all copies.

## How to fix
Use `DataLoader(..., pin_memory=True)` and `batch.to(device, non_blocking=True)`. For other tensors,
call `tensor.pin_memory()` once, outside the loop. Then copy one batch ahead on a separate stream.

## When it is wrong
A batch that the CPU creates in each step may have to be copied into pinned memory first, which
takes CPU time.

## Sources
Formula sheet, "Anti-patterns" (input pipeline without pinned memory). CUDA Runtime API, "API
synchronization behavior". PyTorch tutorial "A guide on good usage of non_blocking and pin_memory".
"""

from __future__ import annotations

from collections.abc import Iterator

from distprof.rules.base import Draft, Limit, Limits, rule
from distprof.sections.settings.result import SettingsResult
from distprof.sections.shares import mean_step
from distprof.sections.time.result import StepTimeResult, WaterfallResult
from distprof.sections.whatif.result import PAGEABLE
from distprof.terms import Severity


@rule(
    code="INP104",
    severity=Severity.INFO,
    since="0.1.0",
    limits={
        "exposed_ratio": Limit(0.01, "share of the step that exposed copies may take"),
        "warning_ratio": Limit(0.05, "share of the step from which the finding is a warning"),
    },
)
def check(
    settings: SettingsResult, waterfall: WaterfallResult, step_time: StepTimeResult, limits: Limits
) -> Iterator[Draft]:
    """Yield one finding for the run."""
    if not any(rank.num_pageable for rank in settings.feed):
        return
    step = mean_step(waterfall, step_time)
    cost = step.mean(sum(rank.exposed_pageable_ns for rank in settings.feed))
    if step.ratio(cost) < limits["exposed_ratio"]:
        return
    spans = {rank.rank: rank.span_ns for rank in waterfall.ranks}
    count = sum(rank.num_pageable for rank in settings.feed) / step.num_samples
    yield Draft(
        message=(
            f"For {step.share(cost)} the GPU only copies from pageable CPU memory "
            f"({_copies(count)} per {step.word}){_loader(settings)}."
        ),
        fix=(
            "Pin CPU memory (pin_memory=True in the data loader, Tensor.pin_memory() once for "
            "other tensors) and copy with non_blocking=True."
        ),
        cost_ns_per_step=cost,
        without=f"pause {PAGEABLE}",
        ranks=tuple(
            rank.rank
            for rank in settings.feed
            if rank.exposed_pageable_ns >= limits["exposed_ratio"] * spans.get(rank.rank, 0) > 0
        ),
        evidence=("settings.feed", "waterfall.all"),
        severity=Severity.WARNING if step.ratio(cost) >= limits["warning_ratio"] else None,
        explains=("MEM101",),
    )


def _copies(count: float) -> str:
    return "1 copy" if count == 1 else f"{count:.3g} copies"


def _loader(settings: SettingsResult) -> str:
    """A clause on the loaders' settings; empty if any loader pins its memory or none is known."""
    is_off = settings.loaders and not any(one.pin_memory for one in settings.loaders)
    return "; the data loader has pin_memory=False" if is_off else ""
