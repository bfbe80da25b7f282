"""# accumulation-without-no-sync

## What it detects
DistributedDataParallel reduces the gradients of every micro-batch, although the optimizer updates
the weights only once every few micro-batches.

## Why it costs time
Adding up the gradients of micro-batches on each rank is free. Only their sum has to be reduced,
once before the update. With M micro-batches the network carries M times the necessary bytes.

## Evidence needed
Traces in which torch marks each forward (`DistributedDataParallel.forward`) and each update
(`Optimizer.step`), and the sizes of collectives. Reductions count as repeated if several forwards
before one update are each followed by the same number of buckets and bytes. With matched
collectives, the cost excludes waiting for late ranks. Without them, the finding is marked
*inferred*.

## How the cost is computed
Exposed transfer of all reductions but the last before each update, mean over ranks and steps. The
part that overlaps with backward costs nothing. The time is part of what `low-overlap` and
`exposed-communication` count.

## How to fix
Run forward and backward of all micro-batches but the last inside `with model.no_sync():`
(Hugging Face Accelerate: `accelerator.accumulate(model)`; Lightning does it automatically). The
forward has to be inside too. `static_graph=True` needs one step without `no_sync` first.

## When it is wrong
Memory may not suffice for complete gradients in addition to their buckets (`no_sync` keeps both).
Two backwards of different losses through the same module before one update, as in adversarial
training, look the same, and `no_sync` fits them as well.

## Sources
Formula sheet, "Volume per training step" (DDP) and "Anti-patterns" (accumulation without
`no_sync`). PyTorch documentation of `DistributedDataParallel.no_sync`.
"""

from __future__ import annotations

from collections.abc import Iterator

from distprof.rules.base import Draft, InsufficientEvidenceError, Limit, Limits, rule
from distprof.sections.gradients.result import GradientsResult
from distprof.sections.gradients.rules._shared import confidence_of, exposed_label, gradient_groups
from distprof.sections.shares import WIDER_TRANSFER, mean_step
from distprof.sections.time.result import StepTimeResult, WaterfallResult
from distprof.terms import Severity


@rule(
    code="COM110",
    severity=Severity.WARNING,
    since="0.1.0",
    limits={
        "times_reduced": Limit(
            1.5, "reductions of the same gradients per update from which they count as repeated"
        ),
        "min_step_ratio": Limit(
            0.01, "smallest share of the step in unnecessary reductions that is worth reporting"
        ),
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
        if group.times_reduced is None:
            raise InsufficientEvidenceError("the trace does not mark the updates of the optimizer")
        step = mean_step(waterfall, step_time)
        cost = group.redundant_ns_per_step
        if group.times_reduced < limits["times_reduced"]:
            continue
        if step.ratio(cost) < limits["min_step_ratio"]:
            continue
        yield Draft(
            message=(
                f"DDP reduces the gradients {group.times_reduced:.3g} times before each update "
                f"({group.micro_batches:.3g} micro-batches): {exposed_label(group)} of unnecessary "
                f"reductions takes {step.share(cost)}."
            ),
            fix=(
                "Run forward and backward of all micro-batches but the last under model.no_sync()."
            ),
            cost_ns_per_step=cost,
            confidence=confidence_of(group),
            ranks=group.ranks,
            evidence=("gradients.groups", "waterfall.all"),
            without="repeated gradients",
            explains=WIDER_TRANSFER,
        )
