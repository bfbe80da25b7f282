"""# mesh-order

## What it detects
A mesh axis that needs high bandwidth crosses nodes while one that needs less stays inside a node:
the axes are in the wrong order.

## Why it costs time
The innermost axis of a mesh uses the links inside a node. Tensor parallelism needs them most, then
experts, context, stages and data parallelism: gradients can overlap with the backward pass,
activations cannot.

## Evidence needed
Nodes of the ranks, the mesh (a run directory, or axes in the descriptions of groups), and matched
collectives.

## How the cost is computed
Exposed transfer of the axis that crosses nodes: mean per rank and step, limited to all exposed
transfer. This is an upper bound, because the other axis then crosses nodes instead.

## How to fix
Order the mesh axes from least to most bandwidth: `init_device_mesh("cuda", (dp, tp),
mesh_dim_names=("dp", "tp"))` places `tp` on neighbouring ranks.

## When it is wrong
If the fast fabric spans nodes and distprof does not know it, set `[topology] gpus_per_domain`. If
the inner axis sends more, the rule stays silent, except for tensor parallelism, which is always
exposed.

## Sources
Formula sheet, "Choosing a strategy" (bandwidth needs in order: TP > EP > CP > PP > DP). PyTorch's
`init_device_mesh`; Megatron-LM's default order `tp-cp-ep-dp-pp`.
"""

from __future__ import annotations

from collections.abc import Iterator

from distprof.rules.base import Draft, Limit, Limits, rule
from distprof.sections.placement.result import PlacementResult
from distprof.sections.placement.rules._shared import exposed_ns, modelled_inside, placed, swappable
from distprof.sections.shares import WIDER_TRANSFER, mean_step
from distprof.sections.time.result import StepTimeResult, WaterfallResult
from distprof.terms import Confidence, Severity


@rule(
    code="NET108",
    severity=Severity.ERROR,
    since="0.1.0",
    limits={"min_step_ratio": Limit(0.02, "smallest share of the step that is worth reporting")},
)
def check(
    placement: PlacementResult,
    waterfall: WaterfallResult,
    step_time: StepTimeResult,
    limits: Limits,
) -> Iterator[Draft]:
    """Yield one finding per axis that crosses nodes."""
    placed(placement)
    pairs = swappable(placement)
    if not pairs:
        return
    step = mean_step(waterfall, step_time)
    for outer, inner in pairs:
        cost = exposed_ns([outer], step)
        if step.ratio(cost) < limits["min_step_ratio"]:
            continue
        where = "nodes" if outer.num_domains == outer.num_nodes else "scale-up domains"
        yield Draft(
            message=(
                f"Groups of {outer.axis} ({outer.size} ranks, {outer.stride} apart) span "
                f"{outer.num_domains} {where} while those of {inner.axis} ({inner.size} ranks) "
                f"stay inside one: the exposed transfer of {outer.axis} takes {step.share(cost)}."
                f"{modelled_inside(outer, placement)}"
            ),
            fix=(
                f"Swap the mesh axes, {inner.axis} outside and {outer.axis} inside: the last axis "
                "of a mesh connects neighbouring ranks."
            ),
            cost_ns_per_step=cost,
            confidence=Confidence.MODELLED,
            ranks=outer.ranks,
            evidence=("placement.axes", "run.mesh"),
            without=f"axis {outer.axis}",
            explains=WIDER_TRANSFER,
        )
