"""# planned-bubble

## What it detects
A pipeline has enough micro-batches to fill it, but its theoretical bubble fraction exceeds 10 %.

## Why it costs time
Stages are idle while the pipeline fills and drains. The bubble fraction is (P − 1)/(v · M + P − 1)
with v stages per rank.

## Evidence needed
A configuration that `distprof plan --lint` reads, the number of GPUs, and the model's shape (from
the file or the command line). Layouts that cannot run for another reason are not judged.

## How the cost is computed
Modelled: the bubble of the estimated step. Fewer stages or more micro-batches recover part of it.

## How to fix
Use more micro-batches (a smaller micro-batch, a larger batch), several stages per rank
(interleaving), or fewer pipeline ranks.

## When it is wrong
With zero-bubble schedules or DualPipe, which distprof does not model.

## Sources
Formula sheet, "Pipeline bubble" and "Anti-patterns" (bubble above 10 %).
"""

from __future__ import annotations

from collections.abc import Iterator

from distprof.rules.base import Draft, Limit, Limits, rule
from distprof.terms import Confidence, Severity
from distprof.units import format_ratio
from distprof.verbs.plan.configuration import ConfigurationResult


@rule(
    code="CFG112",
    severity=Severity.WARNING,
    since="0.1.0",
    limits={"max_bubble_ratio": Limit(0.10, "share of the pipeline's time that may be bubble")},
)
def check(configuration: ConfigurationResult, limits: Limits) -> Iterator[Draft]:
    """Yield one finding for the layout."""
    costs = configuration.estimate
    if costs is None or costs.bubble_fraction <= limits["max_bubble_ratio"]:
        return
    layout = configuration.layout
    if layout.micro_batches < layout.pp:  # pipeline-hardly-filled reports it
        return
    yield Draft(
        message=(
            f"The pipeline's bubble fraction is {format_ratio(costs.bubble_fraction)} with "
            f"{layout.micro_batches} micro-batches on {layout.pp} ranks."
        ),
        fix="Use more micro-batches, several stages per rank, or fewer ranks.",
        cost_ns_per_step=costs.bubble_ns,
        confidence=Confidence.MODELLED,
        evidence=("configuration.estimate",),
    )
