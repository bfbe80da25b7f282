"""# pageable-copies

## What it detects
Batches are copied to the device from pageable memory, and nothing runs beside these copies.

## Why it costs time
The driver copies pageable memory through a pinned buffer of its own, piece by piece, and the call
returns only when the host's part is done: such a copy is slower, and neither computation nor the
host's next launches run beside it, whatever `non_blocking=True` asks for.

## Evidence needed
Traces of NVIDIA devices, which name the copy `Memcpy HtoD (Pageable -> Device)`.

## How the cost is computed
Time of these copies with neither computation nor communication beside them, mean over ranks and
steps. What the host loses while it waits for them is in other findings. `memory-copy-bound` counts
the same time among all copies.

## How to fix
`DataLoader(..., pin_memory=True)` and `batch.to(device, non_blocking=True)`; for tensors of your
own, `tensor.pin_memory()` once, outside of the loop. Then copy one batch ahead on a stream of its
own.

## When it is wrong
A batch that is made on the host in each step may have to be copied into pinned memory first, which
takes time of the host.

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
from distprof.terms import Severity


@rule(
    code="INP104",
    severity=Severity.INFO,
    since="0.1.0",
    needs=(SettingsResult, WaterfallResult, StepTimeResult),
    limits={
        "exposed_ratio": Limit(0.01, "share of the step that such copies alone may take"),
        "warning_ratio": Limit(0.05, "share of the step from which it is a warning"),
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
            f"For {step.share(cost)} nothing runs but copies from pageable host memory to the "
            f"device, {count:.3g} of them in each {step.word}{_loader(settings)}."
        ),
        fix=(
            "Pin host memory (pin_memory=True in the data loader, Tensor.pin_memory() once for "
            "tensors of your own) and copy with non_blocking=True."
        ),
        cost_ns_per_step=cost,
        ranks=tuple(
            rank.rank
            for rank in settings.feed
            if rank.exposed_pageable_ns >= limits["exposed_ratio"] * spans.get(rank.rank, 0) > 0
        ),
        evidence=("settings.feed", "waterfall.all"),
        severity=Severity.WARNING if step.ratio(cost) >= limits["warning_ratio"] else None,
        explains=("MEM101",),
    )


def _loader(settings: SettingsResult) -> str:
    """What the loaders say of it, if anything."""
    is_off = settings.loaders and not any(one.pin_memory for one in settings.loaders)
    return "; the data loader has pin_memory=False" if is_off else ""
