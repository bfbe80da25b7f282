"""# full-precision-gradients

## What it detects
DistributedDataParallel reduces gradients in 32 bits, and moving them is exposed.

## Why it costs time
Twice the bytes take twice the time. Gradients lose nothing that training needs when they are
rounded to 16 bits on the wire, as long as each rank's optimizer works in 32.

## Evidence needed
Element types and sizes of collectives (argument records of NCCL, or the Flight Recorder's for
gloo), torch's marks of DDP in the trace. A warning where the groups span nodes; within a node, or
where nodes are not known, a remark.

## How the cost is computed
Half of the exposed transfer of one reduction per update, a mean over ranks and steps: modelled,
because transfer is taken to be proportional to bytes. Reductions that are not needed at all
(`accumulation-without-no-sync`) are left out. The time is part of what `low-overlap` and
`exposed-communication` count.

## How to fix
A communication hook: `model.register_comm_hook(None, default_hooks.bf16_compress_hook)` halves the
bytes (on gloo: `fp16_compress_hook`), `powerSGD_hook` sends far less at the price of an
approximation. Compare the loss over some hundred steps.

## When it is wrong
Where buckets are bound by latency, half the bytes take more than half the time; buckets below 1 MB
are left out for that reason. Where a model is known to need gradients in 32 bits (sums over
thousands of ranks, losses with rare large values).

## Sources
Formula sheet, "Volume per training step" (DDP) and "Anti-patterns" (full-precision gradient traffic
on a slow link). PyTorch documentation, "DDP Communication Hooks".
"""

from __future__ import annotations

from collections.abc import Iterator

from distprof.rules.base import Draft, Limit, Limits, rule
from distprof.sections.gradients.result import GradientsResult
from distprof.sections.gradients.rules._shared import (
    exposed_once_ns,
    gradient_groups,
    name_of,
    what,
)
from distprof.sections.shares import WIDER_TRANSFER, mean_step
from distprof.sections.time.result import StepTimeResult, WaterfallResult
from distprof.terms import Confidence, Severity

_WIDE = {"float32", "float64"}


@rule(
    code="COM111",
    severity=Severity.WARNING,
    since="0.1.0",
    needs=(GradientsResult, WaterfallResult, StepTimeResult),
    limits={
        "min_step_ratio": Limit(0.05, "share of the step that 16 bits would save"),
        "min_bucket_bytes": Limit(1_000_000, "mean bucket below which latency dominates"),
    },
)
def check(
    gradients: GradientsResult,
    waterfall: WaterfallResult,
    step_time: StepTimeResult,
    limits: Limits,
) -> Iterator[Draft]:
    """Yield one finding per axis."""
    for group in gradient_groups(gradients):
        step = mean_step(waterfall, step_time)
        exposed = exposed_once_ns(group)
        if not group.dtypes or not set(group.dtypes) <= _WIDE:
            continue
        if group.bytes < limits["min_bucket_bytes"] * group.num_buckets:
            continue
        if step.ratio(exposed // 2) < limits["min_step_ratio"]:
            continue
        yield Draft(
            message=(
                f"{name_of(group)} are reduced per update: {step.share(exposed)} is their "
                f"{what(group)}, of which 16 bits would save half."
            ),
            fix=(
                "Compress gradients on the wire: register_comm_hook with bf16_compress_hook (gloo: "
                "fp16_compress_hook), or powerSGD_hook on a slow network; watch the loss."
            ),
            cost_ns_per_step=exposed // 2,
            confidence=Confidence.MODELLED,
            ranks=group.ranks,
            evidence=("gradients.groups", "waterfall.all"),
            severity=None if (group.num_nodes or 1) > 1 else Severity.INFO,
            explains=WIDER_TRANSFER,
        )
