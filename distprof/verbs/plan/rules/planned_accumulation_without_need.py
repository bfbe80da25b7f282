"""# planned-accumulation-without-need

## What it detects
The job accumulates gradients over micro-batches although micro-batches of twice the size fit into
memory.

## Why it costs time
Twice as many micro-batches launch twice as many kernels of half the size. With sharded parameters,
they also gather the parameters twice as often.

## Evidence needed
A configuration that `distprof plan --lint` reads, the number of GPUs, and the model's shape (from
the file or the command line). Layouts that cannot run for another reason are not judged.

## How the cost is computed
No cost is computed: the gain from larger matrices depends on the kernels, which distprof does not
model.

## How to fix
Double the size of the micro-batches and halve their number.

## When it is wrong
If the memory is needed for something else: occasional long sequences, evaluation, fragmentation.

## Sources
Formula sheet, "Memory" and "Anti-patterns" (accumulation when the batch fits).
"""

from __future__ import annotations

from collections.abc import Iterator

from distprof.rules.base import Draft, Limit, Limits, rule
from distprof.terms import Confidence, Severity
from distprof.verbs.plan.configuration import ConfigurationResult


@rule(
    code="CFG114",
    severity=Severity.INFO,
    since="0.1.0",
    limits={
        "room_ratio": Limit(0.9, "share of usable memory that the larger micro-batch may fill")
    },
    costs_time=False,
)
def check(configuration: ConfigurationResult, limits: Limits) -> Iterator[Draft]:
    """Yield one finding for the layout."""
    larger, needed = configuration.larger, configuration.larger_bytes
    if larger is None or needed is None:
        return
    if needed > limits["room_ratio"] * configuration.usable_bytes:
        return
    yield Draft(
        message=f"Gradients are accumulated although micro-batches of {larger.micro_batch} fit.",
        fix="Double the size of the micro-batches and halve their number.",
        confidence=Confidence.MODELLED,
        evidence=("configuration.larger_bytes", "configuration.usable_bytes"),
    )
