"""# more-stages-than-layers

## What it detects
A pipeline has more stages than the model has layers.

## Why it costs time
Some stages would hold nothing; programs refuse to start so, or ranks only pass on what they get.

## Evidence needed
A configuration that `distprof plan --lint` reads, the number of GPUs, and the model's shape (from
the file or the command line).

## How the cost is computed
It is not: the job would not start, so no step is lost to it. The finding is *modelled*.

## How to fix
Fewer pipeline ranks, or fewer stages a rank (interleaving).

## Example
```text
more-stages-than-layers: More stages than layers: 64 stages for 32 layers.
```

## When it is wrong
Where embedding and output are counted as layers of their own, two stages more may be filled.

## Sources
Formula sheet, "Pipeline bubble".
"""

from __future__ import annotations

from collections.abc import Iterator

from distprof.rules.base import Draft, Limits, rule
from distprof.terms import Severity
from distprof.verbs.plan.configuration import ConfigurationResult
from distprof.verbs.plan.rules._objections import drafts

_FIX = "Lower pp, or stages a rank."


@rule(code="CFG104", severity=Severity.ERROR, since="0.1.0", needs=(ConfigurationResult,))
def check(configuration: ConfigurationResult, limits: Limits) -> Iterator[Draft]:  # noqa: ARG001 - all checks take limits
    """Yield one finding for each such objection."""
    yield from drafts(configuration, "more stages than layers", _FIX)
