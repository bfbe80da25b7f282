"""# mesh-order

## What it detects
An axis of the mesh that needs much bandwidth leaves its node, while one that needs less lies
inside: the axes are in the wrong order.

## Why it costs time
The innermost axis of a mesh gets the links inside a node. Tensor parallelism needs them most, then
experts, context, stages and data parallelism: gradients can hide behind the backward pass, and
activations cannot.

## Evidence needed
Nodes of the ranks, the mesh (a run directory, or axes in the descriptions of groups), and matched
collectives.

## How the cost is computed
Exposed transfer of the axis that leaves the node, mean per rank and step, at most all that is
exposed: an upper bound, since the other axis then crosses nodes instead.

## How to fix
Give the mesh its axes from least to most bandwidth: `init_device_mesh("cuda", (dp, tp),
mesh_dim_names=("dp", "tp"))` puts `tp` between neighbouring ranks.

## When it is wrong
Where the fast fabric spans nodes and distprof does not know it: say so with `[topology]
gpus_per_domain`. Where the inner axis sends more, the rule is silent, except for tensor
parallelism, which nothing hides.

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
    needs=(PlacementResult, WaterfallResult, StepTimeResult),
    limits={
        "min_step_ratio": Limit(0.02, "share of the step below which the cost is not worth naming")
    },
)
def check(
    placement: PlacementResult,
    waterfall: WaterfallResult,
    step_time: StepTimeResult,
    limits: Limits,
) -> Iterator[Draft]:
    """Yield one finding per axis that lies outside."""
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
                f"{outer.num_domains} {where} while those of {inner.axis} ({inner.size} ranks) lie "
                f"inside one: {step.share(cost)} is exposed transfer of {outer.axis}."
                f"{modelled_inside(outer, placement)}"
            ),
            fix=(
                f"Swap the axes of the mesh, {inner.axis} outside and {outer.axis} inside: the "
                "last axis of a mesh lies between neighbouring ranks."
            ),
            cost_ns_per_step=cost,
            confidence=Confidence.MODELLED,
            ranks=outer.ranks,
            evidence=("placement.axes", "run.mesh"),
            without=f"axis {outer.axis}",
            explains=WIDER_TRANSFER,
        )
