"""# heads-not-divisible

## What it detects
The degree of tensor parallelism divides neither the attention heads, nor suits the heads of keys
and values.

## Why it costs time
Each rank computes whole heads. Where they do not divide the program stops while it builds the
model, after the job has waited for its GPUs.

## Evidence needed
A configuration that `distprof plan --lint` reads, the number of GPUs, and the model's shape (from
the file or the command line).

## How the cost is computed
It is not: the job would not start, so no step is lost to it. The finding is *modelled*.

## How to fix
A tp that divides the heads; with grouped queries one that divides the heads of keys and values, or
is a multiple of their number.

## Example
```text
heads-not-divisible: Heads not divisible: tp 64 does not divide 32 heads.
```

## When it is wrong
Where a program pads heads, or repeats those of keys and values by itself.

## Sources
Formula sheet, "Choosing a strategy" (T divides heads) and "Anti-patterns".
"""

from __future__ import annotations

from collections.abc import Iterator

from distprof.rules.base import Draft, Limits, rule
from distprof.terms import Severity
from distprof.verbs.plan.configuration import ConfigurationResult
from distprof.verbs.plan.rules._objections import drafts

_FIX = "Choose a tp that divides the heads."


@rule(code="CFG102", severity=Severity.ERROR, since="0.1.0", needs=(ConfigurationResult,))
def check(configuration: ConfigurationResult, limits: Limits) -> Iterator[Draft]:  # noqa: ARG001 - all checks take limits
    """Yield one finding for each such objection."""
    yield from drafts(configuration, "heads not divisible", _FIX)
