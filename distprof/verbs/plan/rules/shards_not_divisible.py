"""# shards-not-divisible

## What it detects
Hybrid sharding divides the model by a number that does not divide the data-parallel ranks.

## Why it costs time
A mesh of replicas times shards has no such shape: the program stops while it builds the mesh.

## Evidence needed
A configuration that `distprof plan --lint` reads, the number of GPUs, and the model's shape (from
the file or the command line).

## How the cost is computed
It is not: the job would not start, so no step is lost to it. The finding is *modelled*.

## How to fix
Shards that divide dp · cp; as many as a node has GPUs keeps gathering inside nodes.

## Example
```text
shards-not-divisible: Shards not divisible: 7 shards do not divide 64 data-parallel ranks.
```

## When it is wrong
Hardly ever: replicas of unlike sizes are not known to any program read here.

## Sources
Formula sheet, "Volume per training step" (HSDP).
"""

from __future__ import annotations

from collections.abc import Iterator

from distprof.rules.base import Draft, Limits, rule
from distprof.terms import Severity
from distprof.verbs.plan.configuration import ConfigurationResult
from distprof.verbs.plan.rules._objections import drafts

_FIX = "Choose shards that divide dp · cp."


@rule(code="CFG107", severity=Severity.ERROR, since="0.1.0", needs=(ConfigurationResult,))
def check(configuration: ConfigurationResult, limits: Limits) -> Iterator[Draft]:  # noqa: ARG001 - all checks take limits
    """Yield one finding for each such objection."""
    yield from drafts(configuration, "shards not divisible", _FIX)
