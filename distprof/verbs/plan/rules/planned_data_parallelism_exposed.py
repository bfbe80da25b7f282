"""# planned-data-parallelism-exposed

## What it detects
Exposed transfers of gradients and sharded parameters take more than 20 % of the estimated step.

## Why it costs time
Data-parallel communication overlaps with the forward and backward of a micro-batch. With few tokens
per rank, or a slow network, it takes longer than both, and the remainder adds to the step.

## Evidence needed
A configuration that `distprof plan --lint` reads, the number of GPUs, and the model's shape (from
the file or the command line). Layouts that cannot run for another reason are not judged.

## How the cost is computed
Modelled: exposed time of the data-parallel axes in the estimated step, from the volumes and the α-β
model of the formula sheet.

## How to fix
Use a larger batch, fewer data-parallel ranks (and more tp, pp or cp), accumulation, or hybrid
sharding within nodes.

## When it is wrong
If links reach more than `--link-efficiency`, or gradients are compressed.

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
    limits={
        "max_exposed_ratio": Limit(
            0.20, "share of the step that exposed data-parallel communication may take"
        )
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
            f"Data-parallel communication is exposed for {format_duration(exposed)} of "
            f"{format_duration(costs.step_ns)}: each rank computes too little to overlap it."
        ),
        fix="Use a larger batch, fewer data-parallel ranks, or hsdp within nodes.",
        cost_ns_per_step=exposed,
        confidence=Confidence.MODELLED,
        evidence=("configuration.estimate",),
    )
