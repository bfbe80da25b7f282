"""# tensor-parallelism-beyond-node

## What it detects
Groups of tensor parallelism do not lie within one domain of fast links.

## Why it costs time
Tensor parallelism sends activations four times a layer and micro-batch, and computation waits for
each. Over a network that is ten times slower than NVLink most of the step is waiting.

## Evidence needed
A configuration that `distprof plan --lint` reads, the number of GPUs, and the model's shape (from
the file or the command line). GPUs of one fast domain are `--gpus-per-node`.

## How the cost is computed
It is not by itself: `distprof plan --layout` shows the exposed time of the tensor axis for this
layout and for others.

## How to fix
A tp of at most the GPUs of a node, and a divisor of them. What does not fit then is divided by
pipeline stages or sharding across nodes.

## Example
```text
tensor-parallelism-beyond-node: Tensor parallelism leaves the fast domain: tp 16 does not lie within
nodes of 8 GPUs.
```

## When it is wrong
Where the fast domain is larger than a host, as with NVL72: say so with `--gpus-per-node 72`.

## Sources
Formula sheet, "Choosing a strategy" and "Anti-patterns" (TP across nodes).
"""

from __future__ import annotations

from collections.abc import Iterator

from distprof.rules.base import Draft, Limits, rule
from distprof.terms import Severity
from distprof.verbs.plan.configuration import ConfigurationResult
from distprof.verbs.plan.rules._objections import drafts

_FIX = "Keep tp within a node; use pp or sharding across nodes."


@rule(code="CFG103", severity=Severity.WARNING, since="0.1.0", needs=(ConfigurationResult,))
def check(configuration: ConfigurationResult, limits: Limits) -> Iterator[Draft]:  # noqa: ARG001 - all checks take limits
    """Yield one finding for each such objection."""
    yield from drafts(configuration, "tensor parallelism leaves the fast domain", _FIX)
