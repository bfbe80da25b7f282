"""# full-precision-gradients

## What it detects
DistributedDataParallel reduces gradients in 32 bits, and their transfer is exposed.

## Why it costs time
Twice the bytes take twice the time. Training does not need more than 16 bits on the wire if the
optimizer of each rank works in 32.

## Evidence needed
Element types and sizes of collectives (argument records of NCCL, or those of the Flight Recorder
for gloo), and torch's marks of DDP in the trace. The finding is a warning if the groups span nodes.
Within a node, or if the nodes are unknown, it is informational.

## How the cost is computed
Half of the exposed transfer of one reduction per update: mean over ranks and steps. The cost is
modelled, because it assumes that transfer is proportional to bytes. It excludes unnecessary
reductions (`accumulation-without-no-sync`). The time is part of what `low-overlap` and
`exposed-communication` count.

## How to fix
Register a communication hook: `model.register_comm_hook(None, default_hooks.bf16_compress_hook)`
halves the bytes (on gloo: `fp16_compress_hook`). `powerSGD_hook` sends far less, at the price of an
approximation. Compare the loss over a few hundred steps.

## When it is wrong
If buckets are bound by latency, half the bytes take more than half the time; the rule ignores
buckets below 1 MB for that reason. Some models need gradients in 32 bits (sums over thousands of
ranks, losses with rare large values).

## Sources
Formula sheet, "Volume per training step" (DDP) and "Anti-patterns" (full-precision gradient traffic
on a slow link). PyTorch documentation, "DDP Communication Hooks".
"""

from __future__ import annotations

from collections.abc import Iterator

from distprof.rules.base import Draft, Limit, Limits, rule
from distprof.sections.gradients.result import GradientsResult
from distprof.sections.gradients.rules._shared import (
    exposed_label,
    exposed_once_ns,
    gradient_groups,
    name_of,
)
from distprof.sections.shares import WIDER_TRANSFER, mean_step
from distprof.sections.time.result import StepTimeResult, WaterfallResult
from distprof.terms import Confidence, Severity

_WIDE = {"float32", "float64"}


@rule(
    code="COM111",
    severity=Severity.WARNING,
    since="0.1.0",
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
                f"Each update reduces {name_of(group)}: their {exposed_label(group)} takes "
                f"{step.share(exposed)}. With 16 bits it would take half."
            ),
            fix=(
                "Compress gradients on the wire: register_comm_hook with bf16_compress_hook (gloo: "
                "fp16_compress_hook), or powerSGD_hook on a slow network. Watch the loss."
            ),
            cost_ns_per_step=exposed // 2,
            confidence=Confidence.MODELLED,
            ranks=group.ranks,
            evidence=("gradients.groups", "waterfall.all"),
            severity=None if (group.num_nodes or 1) > 1 else Severity.INFO,
            explains=WIDER_TRANSFER,
        )
