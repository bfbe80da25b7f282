"""# sequence-too-short-to-share

## What it detects
Context parallelism leaves less than 8,192 tokens of a sequence to each rank, or does not divide it
evenly.

## Why it costs time
Blocks of keys and values go round the ring while a rank computes attention with those it has. With
few tokens a block is computed sooner than the next arrives, and the ring is exposed in every layer.

## Evidence needed
A configuration that `distprof plan --lint` reads, the number of GPUs, and the model's shape (from
the file or the command line).

## How the cost is computed
It is not by itself: `distprof plan --layout` shows the exposed time of the context axis for this
layout and for others.

## How to fix
A smaller cp, or none: tensor parallelism within the node and sharding divide a model with short
sequences better.

## Example
```text
sequence-too-short-to-share: Sequence too short to share: cp 4 leaves 1,024 of 4,096 tokens to a
rank.
```

## When it is wrong
Where activations of a whole sequence do not fit otherwise, time is not what cp is for.

## Sources
Formula sheet, "Choosing a strategy" (context parallelism from 64 k tokens on).
"""

from __future__ import annotations

from collections.abc import Iterator

from distprof.rules.base import Draft, Limits, rule
from distprof.terms import Severity
from distprof.verbs.plan.configuration import ConfigurationResult
from distprof.verbs.plan.rules._objections import drafts

_FIX = "Context parallelism is for long sequences: use tp or sharding."


@rule(code="CFG105", severity=Severity.WARNING, since="0.1.0", needs=(ConfigurationResult,))
def check(configuration: ConfigurationResult, limits: Limits) -> Iterator[Draft]:  # noqa: ARG001 - all checks take limits
    """Yield one finding for each such objection."""
    yield from drafts(configuration, "sequence too short to share", _FIX)
