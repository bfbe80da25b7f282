"""# expert-exchange-across-nodes

## What it detects
The groups of expert all-to-alls span several nodes with several ranks on each, so every rank sends
to every rank of every other node.

## Why it costs time
Each token travels once for every expert that it chose, even if several of them are on one node.
This makes many small messages over the network, and the next computation waits for all of them. A
hierarchical all-to-all (DeepEP) sends each token once per node and forwards it inside the node,
with a fraction of the bytes and messages on the network.

## Evidence needed
Nodes of the ranks, all-to-alls of expert parallelism (its axis of the mesh, or routing), and
matched collectives, to separate transfer from waiting.

## How the cost is computed
Exposed transfer of those all-to-alls: mean per rank and step, limited to all exposed transfer. This
is an upper bound, because an exchange inside nodes also takes time.

## How to fix
Keep expert parallelism within a node (or scale-up domain) if the experts fit. Otherwise limit the
nodes per token in routing, and use a hierarchical all-to-all (DeepEP, or the framework's two-stage
exchange).

## When it is wrong
If the fast fabric spans nodes and distprof does not know it, set `[topology] gpus_per_domain`. If
experts need more memory than a node has, only the exchange can be improved.

## Sources
Formula sheet, "Volume per training step" (EP) and "Choosing a strategy". DeepSeek-V3's report
(arXiv 2412.19437), node-limited routing; DeepEP (github.com/deepseek-ai/DeepEP).
"""

from __future__ import annotations

from collections.abc import Iterator

from distprof.rules.base import Draft, Limit, Limits, rule
from distprof.sections.moe.result import MoeResult
from distprof.sections.placement.result import PlacementResult
from distprof.sections.placement.rules._shared import EXPOSED_BY_NATURE, crossing
from distprof.sections.shares import WIDER_TRANSFER, mean_step
from distprof.sections.time.result import StepTimeResult, WaterfallResult
from distprof.terms import Confidence, MeshAxis, Severity


@rule(
    code="COM109",
    severity=Severity.WARNING,
    since="0.1.0",
    limits={"min_step_ratio": Limit(0.1, "largest acceptable share of the step for this exchange")},
)
def check(
    placement: PlacementResult,
    moe: MoeResult,
    waterfall: WaterfallResult,
    step_time: StepTimeResult,
    limits: Limits,
) -> Iterator[Draft]:
    """Yield one finding per axis."""
    is_expert = bool(moe.layers or moe.exchanges)
    axes = crossing(placement, lambda name: _may_be_of_experts(name, is_expert=is_expert))
    found = [axis for axis in axes if axis.size >= 2 * axis.num_nodes]
    if not found:
        return
    step = mean_step(waterfall, step_time)
    for axis in found:
        cost = min(axis.exchange_ns_per_step or 0, step.exposed_transfer_ns)
        if step.ratio(cost) < limits["min_step_ratio"]:
            continue
        yield Draft(
            message=(
                f"All-to-alls of {axis.axis} ({axis.size} ranks, {axis.most_on_node} on each of "
                f"{axis.num_nodes} nodes) cross nodes: their exposed transfer takes "
                f"{step.share(cost)}."
            ),
            fix=(
                "Keep expert parallelism inside a node or scale-up domain if the experts fit. "
                "Otherwise limit the nodes that a token is routed to and exchange in two stages "
                "(DeepEP)."
            ),
            cost_ns_per_step=cost,
            confidence=Confidence.MODELLED,
            ranks=axis.ranks,
            evidence=("placement.axes", "placement.nodes"),
            without=f"axis {axis.axis}",
            explains=WIDER_TRANSFER,
        )


def _may_be_of_experts(axis: str, *, is_expert: bool) -> bool:
    """Whether all-to-alls of an axis may belong to experts."""
    if axis in EXPOSED_BY_NATURE or axis == MeshAxis.WORLD.value:
        return False
    return axis == MeshAxis.EP.value or is_expert
