"""# experts-not-divisible

## What it detects
The degree of expert parallelism divides the number of experts or of data-parallel ranks not evenly,
or the model has no experts.

## Why it costs time
Each rank of an expert group holds as many whole experts as the others, and groups are made of
data-parallel ranks. Otherwise programs stop while they build the model.

## Evidence needed
A configuration that `distprof plan --lint` reads, the number of GPUs, and the model's shape (from
the file or the command line).

## How the cost is computed
It is not: the job would not start, so no step is lost to it. The finding is *modelled*.

## How to fix
An ep that divides both the experts of a layer and dp.

## Example
```text
experts-not-divisible: Experts not divisible: ep 3 does not divide 8 experts.
```

## When it is wrong
Where a program places redundant copies of experts, their number counts rather than the model's.

## Sources
Formula sheet, "Mixture of experts".
"""

from __future__ import annotations

from collections.abc import Iterator

from distprof.rules.base import Draft, Limits, rule
from distprof.terms import Severity
from distprof.verbs.plan.configuration import ConfigurationResult
from distprof.verbs.plan.rules._objections import drafts

_FIX = "Choose an ep that divides both experts and dp."


@rule(code="CFG106", severity=Severity.ERROR, since="0.1.0", needs=(ConfigurationResult,))
def check(configuration: ConfigurationResult, limits: Limits) -> Iterator[Draft]:  # noqa: ARG001 - all checks take limits
    """Yield one finding for each such objection."""
    yield from drafts(configuration, "experts not divisible", _FIX)
