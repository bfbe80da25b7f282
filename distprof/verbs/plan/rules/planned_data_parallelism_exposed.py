"""# planned-data-parallelism-exposed

## What it detects
Gradients and sharded parameters take so long to move that computation hides them not, for more than
a fifth of the estimated step.

## Why it costs time
Data parallelism hides behind forward and backward of a micro-batch. With few tokens per rank, or a
slow network, it takes longer than these, and the rest adds to the step.

## Evidence needed
A configuration that `distprof plan --lint` reads, the number of GPUs, and the model's shape (from
the file or the command line). Layouts that cannot run for another reason are not judged.

## How the cost is computed
Modelled: exposed time of the data-parallel axes in the estimated step, by volumes and α-β times of
the formula sheet.

## How to fix
A larger batch, fewer data-parallel ranks (and more of the model's dimensions), accumulation, or
hybrid sharding within nodes.

## When it is wrong
Where links reach more than `--link-efficiency`, or gradients are compressed.

## Sources
Formula sheet, "Volume per training step", "Computation and communication".
"""

from __future__ import annotations

from collections.abc import Iterator

from distprof.rules.base import Draft, Limit, Limits, rule
from distprof.terms import Confidence, Severity
from distprof.units import format_duration
from distprof.verbs.plan.configuration import ConfigurationResult


@rule(
    code="CFG113",
    severity=Severity.WARNING,
    since="0.1.0",
    needs=(ConfigurationResult,),
    limits={
        "max_exposed_ratio": Limit(0.20, "share of the step that data parallelism may be exposed")
    },
)
def check(configuration: ConfigurationResult, limits: Limits) -> Iterator[Draft]:
    """Yield one finding for the layout."""
    costs = configuration.estimate
    if costs is None:
        return
    exposed = sum(axis.exposed_ns for axis in costs.axes if axis.axis.startswith("dp"))
    if exposed <= limits["max_exposed_ratio"] * costs.step_ns:
        return
    yield Draft(
        message=(
            f"Data parallelism is exposed for {format_duration(exposed)} of "
            f"{format_duration(costs.step_ns)}: too little is computed per rank."
        ),
        fix="Use a larger batch, fewer data-parallel ranks, or hsdp within nodes.",
        cost_ns_per_step=exposed,
        confidence=Confidence.MODELLED,
        evidence=("configuration.estimate",),
    )
