"""# ranks-not-all-used

## What it detects
The degrees of parallelism of a configuration multiply to another number than there are GPUs.

## Why it costs time
The launcher refuses it, or starts ranks that have no part in any group and hang in the first
collective.

## Evidence needed
A configuration that `distprof plan --lint` reads, the number of GPUs, and the model's shape (from
the file or the command line).

## How the cost is computed
It is not: the job would not start, so no step is lost to it. The finding is *modelled*.

## How to fix
Choose dp so that dp · tp · pp · cp is the number of GPUs; most programs do so by themselves if the
degree of data parallelism is left out.

## Example
```text
ranks-not-all-used: Ranks do not add up: dp 3 × tp 1 × pp 1 × cp 1 is 3 ranks, not 64.
```

## When it is wrong
Where the file is meant for another number of GPUs than was typed: `--gpus` wins over the file.

## Sources
Formula sheet, "Choosing a strategy".
"""

from __future__ import annotations

from collections.abc import Iterator

from distprof.rules.base import Draft, Limits, rule
from distprof.terms import Severity
from distprof.verbs.plan.configuration import ConfigurationResult
from distprof.verbs.plan.rules._objections import drafts

_FIX = "Make dp · tp · pp · cp the number of GPUs."


@rule(code="CFG101", severity=Severity.ERROR, since="0.1.0", needs=(ConfigurationResult,))
def check(configuration: ConfigurationResult, limits: Limits) -> Iterator[Draft]:  # noqa: ARG001 - all checks take limits
    """Yield one finding for each such objection."""
    yield from drafts(configuration, "ranks do not add up", _FIX)
