"""# batch-not-divisible

## What it detects
The batch of a step is no multiple of what all data-parallel ranks take at once, or is smaller than
their number.

## Why it costs time
Ranks would have unlike numbers of micro-batches, or none at all, and wait for each other in every
collective; most programs refuse it.

## Evidence needed
A configuration that `distprof plan --lint` reads, the number of GPUs, and the model's shape (from
the file or the command line).

## How the cost is computed
It is not: the job would not start, so no step is lost to it. The finding is *modelled*.

## How to fix
A batch that is dp times the micro-batch times the number of micro-batches. With fewer sequences
than data-parallel ranks, use fewer of them, and divide the model instead.

## Example
```text
batch-not-divisible: Batch not divisible: dp 64 × 3 a micro-batch × 1 is 192 sequences, the batch is
128.
```

## When it is wrong
Where the last micro-batch of a step may be smaller than the others.

## Sources
Formula sheet, "Anti-patterns" (64 samples on 128 GPUs).
"""

from __future__ import annotations

from collections.abc import Iterator

from distprof.rules.base import Draft, Limits, rule
from distprof.terms import Severity
from distprof.verbs.plan.configuration import ConfigurationResult
from distprof.verbs.plan.rules._objections import drafts

_FIX = (
    "Make the batch a multiple of dp times the micro-batch; with fewer sequences than dp, "
    "use fewer data-parallel ranks."
)


@rule(code="CFG108", severity=Severity.ERROR, since="0.1.0", needs=(ConfigurationResult,))
def check(configuration: ConfigurationResult, limits: Limits) -> Iterator[Draft]:  # noqa: ARG001 - all checks take limits
    """Yield one finding for each such objection."""
    yield from drafts(configuration, "batch not divisible", _FIX)
