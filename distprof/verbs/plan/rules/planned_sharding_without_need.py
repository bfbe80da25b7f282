"""# planned-sharding-without-need

## What it detects
The job shards weights although the whole model state fits into the memory of each GPU.

## Why it costs time
FSDP sends three times the size of the model per micro-batch, DDP twice per step. That is at least
1.5 times as much, and forward and backward may have to wait for it.

## Evidence needed
A configuration that `distprof plan --lint` reads, the number of GPUs, and the model's shape (from
the file or the command line). Layouts that cannot run for another reason are not judged.

## How the cost is computed
No cost is computed: communication that overlaps with computation costs no time. Compare both
layouts with `distprof plan --layout`.

## How to fix
Use DDP, or ZeRO-1 if the optimizer state takes most of the memory.

## When it is wrong
If larger micro-batches or less recomputation need the memory.

## Sources
Formula sheet, "Volume per training step" and "Anti-patterns" (FSDP where DDP would fit).
"""

from __future__ import annotations

from collections.abc import Iterator

from distprof.rules.base import Draft, Limit, Limits, rule
from distprof.terms import Confidence, Severity
from distprof.verbs.plan.configuration import ConfigurationResult


@rule(
    code="CFG115",
    severity=Severity.INFO,
    since="0.1.0",
    limits={"room_ratio": Limit(0.9, "share of usable memory that unsharded state may fill")},
    costs_time=False,
)
def check(configuration: ConfigurationResult, limits: Limits) -> Iterator[Draft]:
    """Yield one finding for the layout."""
    plain = configuration.plain_bytes
    if plain is None or plain > limits["room_ratio"] * configuration.usable_bytes:
        return
    yield Draft(
        message="The job shards weights although the whole model state fits into each GPU.",
        fix="Use ddp or zero-1: they send a third less.",
        confidence=Confidence.MODELLED,
        evidence=("configuration.plain_bytes", "configuration.usable_bytes"),
    )
