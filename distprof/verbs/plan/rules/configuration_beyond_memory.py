"""# configuration-beyond-memory

## What it detects
Weights, gradients, optimizer state and activations of a layout take more memory than a GPU may use.

## Why it costs time
The job runs out of memory in the first step, or later if only long sequences need too much.

## Evidence needed
A configuration that `distprof plan --lint` reads, the number of GPUs, and the model's shape (from
the file or the command line). Layouts that cannot run for another reason are not judged.

## How the cost is computed
No cost is computed: the job would not run, so no step loses time. The finding is *modelled*.

## How to fix
If the state alone does not fit, shard it (zero-1, FSDP), or divide the model by tp and pp. If the
state fits, use a smaller micro-batch, full recomputation, or more tp.

## When it is wrong
With offloading, 8-bit optimizers, fp8 weights or activations in CPU memory: distprof models none of
these. `--reserve` sets the share of memory that stays free.

## Sources
Formula sheet, "Memory".
"""

from __future__ import annotations

from collections.abc import Iterator

from distprof.rules.base import Draft, Limits, rule
from distprof.terms import Confidence, Severity
from distprof.units import format_bytes
from distprof.verbs.plan.configuration import ConfigurationResult


@rule(
    code="CFG111",
    severity=Severity.ERROR,
    since="0.1.0",
    costs_time=False,
)
def check(configuration: ConfigurationResult, limits: Limits) -> Iterator[Draft]:  # noqa: ARG001 - all checks take limits
    """Yield one finding for the layout."""
    memory, usable = configuration.memory, configuration.usable_bytes
    if memory is None or memory.total_bytes <= usable:
        return
    state = memory.weights_bytes + memory.gradients_bytes + memory.optimizer_bytes
    yield Draft(
        message=(
            f"Does not fit: {format_bytes(memory.total_bytes)} per GPU, of which "
            f"{format_bytes(state)} are model state. Only {format_bytes(usable)} are usable."
        ),
        fix=_fix(configuration, state),
        confidence=Confidence.MODELLED,
        evidence=("configuration.memory", "configuration.usable_bytes"),
    )


def _fix(configuration: ConfigurationResult, state_bytes: int) -> str:
    if state_bytes <= configuration.usable_bytes:
        return "Use a smaller micro-batch, full recomputation, or more tp."
    if configuration.layout.sharding == "ddp":
        return "Shard the state: use zero-1 or fsdp."
    return "Shard more of the state, or divide the model by tp and pp."
