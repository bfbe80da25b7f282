"""# tp-across-nodes

## What it detects
Tensor- or context-parallel groups span scale-up domains, so their collectives cross the network
between nodes.

## Why it costs time
Tensor parallelism reduces activations four times per layer, and the next computation needs the
result, so the transfer is exposed. The network between nodes takes an order of magnitude longer
than NVLink. Context parallelism passes keys and values between ranks in every attention layer.

## Evidence needed
Nodes of the ranks (a run directory, host names in traces, launchers' variables), the axis of the
mesh (`tp`, `cp`), and matched collectives, to separate transfer from waiting. Domains that span
hosts (NVL72) are known from the GPU name or from `[topology]` in `distprof.toml`.

## How the cost is computed
Exposed transfer of the collectives of that axis (several may be exposed at the same time): mean per
rank and step, limited to all exposed transfer. This is an upper bound, because transfer inside a
domain also takes time. The message also models the time of the same bytes inside a domain from the
hardware sheet, without latency.

## How to fix
Choose T as a divisor of the GPUs of a node, and make `tp` the innermost axis of the mesh. Use
pipeline stages or sharded data parallelism between nodes. Context parallelism may cross nodes if
the attention of each block is long enough to overlap with the transfer of the next block's keys and
values.

## When it is wrong
If the fast fabric spans nodes and distprof does not know it, set `[topology] gpus_per_domain`. Do
the same if several ranks on one host run in containers with different host names.

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
    limits={"min_step_ratio": Limit(0.05, "smallest share of the step that is worth reporting")},
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
                f"their exposed transfer takes {step.share(cost)}."
                f"{modelled_inside(axis, placement)}"
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
    """A fix for a group that is too large for a domain, or badly placed in it."""
    room = placement.domain_size or 0
    if room == 1:
        return (
            "Use nodes with several GPUs. If these are containers on one host, set [topology] in "
            "distprof.toml."
        )
    if axis.size <= room:
        return (
            f"Make {axis.axis} the innermost axis of the mesh, with a size that divides the {room} "
            f"ranks of a node or domain, so that each group stays inside one."
        )
    if axis.axis == MeshAxis.CP.value:
        return (
            f"Keep {axis.axis} within the {room} ranks of a node or domain where sequences allow. "
            "Between nodes, ring attention overlaps its messages only if each block has enough "
            "attention: use longer sequences per rank."
        )
    return (
        f"Lower {axis.axis} to at most the {room} ranks of a node or domain, and use pipeline "
        "stages or sharded data parallelism between them."
    )
