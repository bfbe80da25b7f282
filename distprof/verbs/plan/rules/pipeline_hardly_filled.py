"""# pipeline-hardly-filled

## What it detects
A pipeline has fewer micro-batches in a step than ranks.

## Why it costs time
At no time do all stages work: with M micro-batches on P ranks, (P − 1)/(M + P − 1) of the time is
bubble, more than half of it if M is below P.

## Evidence needed
A configuration that `distprof plan --lint` reads, the number of GPUs, and the model's shape (from
the file or the command line).

## How the cost is computed
It is not by itself: `distprof plan --layout` shows the bubble in time for this layout and for
others. Where a pipeline is filled but idles much, `planned-bubble` names the time.

## How to fix
Four micro-batches per rank or more: a smaller micro-batch, a larger batch, or fewer stages and more
sharding.

## Example
```text
pipeline-hardly-filled: Too few micro-batches: 1 micro-batches do not fill 16 stages.
```

## When it is wrong
Where the model fits in no other way and the batch cannot grow.

## Sources
Formula sheet, "Pipeline bubble" and "Anti-patterns" (16 stages with 4 micro-batches).
"""

from __future__ import annotations

from collections.abc import Iterator

from distprof.rules.base import Draft, Limits, rule
from distprof.terms import Severity
from distprof.verbs.plan.configuration import ConfigurationResult
from distprof.verbs.plan.rules._objections import drafts

_FIX = "Use 4 micro-batches per pipeline rank, by a smaller micro-batch or fewer stages."


@rule(code="CFG109", severity=Severity.WARNING, since="0.1.0", needs=(ConfigurationResult,))
def check(configuration: ConfigurationResult, limits: Limits) -> Iterator[Draft]:  # noqa: ARG001 - all checks take limits
    """Yield one finding for each such objection."""
    yield from drafts(configuration, "too few micro-batches", _FIX)
