"""# tp-across-nodes

## What it detects
Groups of tensor or context parallelism that span scale-up domains: their collectives cross the
network between nodes.

## Why it costs time
Tensor parallelism reduces activations four times a layer, and the next computation needs the
result: nothing can hide it. Over the network between nodes that takes an order of magnitude longer
than over NVLink. Context parallelism passes keys and values on in every attention.

## Evidence needed
Nodes of the ranks (a run directory, host names in traces, launchers' variables), the axis of the
mesh (`tp`, `cp`), and matched collectives, to tell transfer from waiting. Domains that span hosts
(NVL72) are known by the device's name or by `[topology]` in `distprof.toml`.

## How the cost is computed
Exposed transfer of the collectives of that axis, mean per rank and step, at most all that is
exposed (several can be at the same time): an upper bound, since transfer inside a domain takes time
too. What the same bytes take there is modelled by the hardware sheet, latency left out.

## How to fix
Keep T at or below the GPUs of a node, a divisor of them, and `tp` the innermost axis of the mesh;
use pipeline stages or sharded data parallelism between nodes. Context parallelism may cross nodes
where each block has enough attention to hide the next one's keys and values.

## When it is wrong
Where the fast fabric spans nodes and distprof does not know it: say so with `[topology]
gpus_per_domain`. Where each rank runs in a container with a host name of its own, although several
are on one host: the same.

## Sources
Formula sheet, "Choosing a strategy" (TP inside the NVLink domain) and "Anti-patterns" (TP across
nodes). Megatron-LM's paper on pipeline parallelism across nodes (arXiv 2104.04473), takeaway 1.
"""

from __future__ import annotations

from collections.abc import Iterator

from distprof.rules.base import Draft, Limit, Limits, rule
from distprof.sections.placement.result import PlacedAxis, PlacementResult
from distprof.sections.placement.rules._shared import (
    EXPOSED_BY_NATURE,
    crossing,
    exposed_ns,
    modelled_inside,
)
from distprof.sections.shares import WIDER_TRANSFER, mean_step
from distprof.sections.time.result import StepTimeResult, WaterfallResult
from distprof.terms import Confidence, MeshAxis, Severity


@rule(
    code="COM108",
    severity=Severity.ERROR,
    since="0.1.0",
    needs=(PlacementResult, WaterfallResult, StepTimeResult),
    limits={
        "min_step_ratio": Limit(0.05, "share of the step below which the cost is not worth naming")
    },
)
def check(
    placement: PlacementResult,
    waterfall: WaterfallResult,
    step_time: StepTimeResult,
    limits: Limits,
) -> Iterator[Draft]:
    """Yield one finding per axis."""
    found = crossing(placement, lambda name: name in EXPOSED_BY_NATURE)
    if not found:
        return
    step = mean_step(waterfall, step_time)
    for axis in found:
        cost = exposed_ns([axis], step)
        if step.ratio(cost) < limits["min_step_ratio"]:
            continue
        yield Draft(
            message=(
                f"Groups of {axis.axis} ({axis.size} ranks) span {_where(axis, placement)}: "
                f"{step.share(cost)} is their exposed transfer.{modelled_inside(axis, placement)}"
            ),
            fix=_fix(axis, placement),
            cost_ns_per_step=cost,
            confidence=Confidence.MODELLED,
            ranks=axis.ranks,
            evidence=("placement.axes", "placement.nodes"),
            without=f"axis {axis.axis}",
            explains=WIDER_TRANSFER,
            severity=None if axis.axis == MeshAxis.TP.value else Severity.WARNING,
        )


def _where(axis: PlacedAxis, placement: PlacementResult) -> str:
    if placement.domain_size == 1:
        return f"{axis.num_nodes} nodes of one rank each"
    if axis.num_domains == axis.num_nodes:
        return f"{axis.num_nodes} nodes"
    return f"{axis.num_domains} scale-up domains"


def _fix(axis: PlacedAxis, placement: PlacementResult) -> str:
    """By whether a group is too large for a domain, or lies badly in it."""
    room = placement.domain_size or 0
    if room == 1:
        return (
            "Use nodes of several GPUs. If these are containers on one host, say so under "
            "[topology] in distprof.toml."
        )
    if axis.size <= room:
        return (
            f"Make {axis.axis} the innermost axis of the mesh, with a size that divides the {room} "
            f"ranks of a node or domain, so that each group lies inside one."
        )
    if axis.axis == MeshAxis.CP.value:
        return (
            f"Keep {axis.axis} within the {room} ranks of a node or domain where sequences allow; "
            "between nodes, ring attention hides its messages only behind enough attention per "
            "block: longer sequences per rank."
        )
    return (
        f"Lower {axis.axis} to at most the {room} ranks of a node or domain, and use pipeline "
        "stages or sharded data parallelism between them."
    )
