"""# micro-batches-not-interleavable

## What it detects
Several stages a rank are asked for, but micro-batches come in no multiple of the pipeline's ranks,
or there is no pipeline.

## Why it costs time
Interleaved schedules go through groups of as many micro-batches as there are ranks. Otherwise
programs refuse to start.

## Evidence needed
A configuration that `distprof plan --lint` reads, the number of GPUs, and the model's shape (from
the file or the command line).

## How the cost is computed
It is not: the job would not start, so no step is lost to it. The finding is *modelled*.

## How to fix
Micro-batches in multiples of pp, or one stage a rank.

## Example
```text
micro-batches-not-interleavable: Micro-batches not divisible: 2 micro-batches on 1 ranks cannot
interleave.
```

## When it is wrong
Schedules that take any number (torch's looped breadth-first, zero bubble with groups of its own)
are not told apart here.

## Sources
Formula sheet, "Pipeline bubble" (interleaved).
"""

from __future__ import annotations

from collections.abc import Iterator

from distprof.rules.base import Draft, Limits, rule
from distprof.terms import Severity
from distprof.verbs.plan.configuration import ConfigurationResult
from distprof.verbs.plan.rules._objections import drafts

_FIX = "Interleaving needs micro-batches in multiples of pp."


@rule(code="CFG110", severity=Severity.ERROR, since="0.1.0", needs=(ConfigurationResult,))
def check(configuration: ConfigurationResult, limits: Limits) -> Iterator[Draft]:  # noqa: ARG001 - all checks take limits
    """Yield one finding for each such objection."""
    yield from drafts(configuration, "micro-batches not divisible", _FIX)
