"""# group-straddles-nodes

## What it detects
Process groups that would fit into one node span two because their size does not divide the ranks of
a node.

## Why it costs time
A collective is as fast as its slowest link. A group with most members on one node and the rest on
the next moves everything over the network, while other groups of the same axis do not. The other
groups wait for it wherever both meet.

## Evidence needed
Nodes of the ranks and members of process groups, from traces, a run directory or NCCL's log. With a
timeline, matched collectives.

## How the cost is computed
Exposed transfer of the collectives of that axis: mean per rank and step, limited to all exposed
transfer. This is an upper bound. No cost without a timeline.

## How to fix
Choose an axis size that divides the ranks of a node, or run a multiple of it on each node.

## When it is wrong
If the fast fabric spans nodes and distprof does not know it, set `[topology] gpus_per_domain`.

## Sources
Formula sheet, "Anti-patterns" (process groups that straddle nodes though they would fit in one).
"""

from __future__ import annotations

from collections.abc import Iterator

from distprof.rules.base import Draft, Limit, Limits, rule
from distprof.sections.placement.result import PlacedAxis, PlacementResult
from distprof.sections.placement.rules._shared import (
    EXPOSED_BY_NATURE,
    crossing,
    exposed_ns,
    placed,
)
from distprof.sections.shares import WIDER_TRANSFER, mean_step_if_timed
from distprof.sections.time.result import StepTimeResult, WaterfallResult
from distprof.terms import Confidence, Severity

_OTHER_ORDERS = ("cyclic", "irregular")


@rule(
    code="NET106",
    severity=Severity.WARNING,
    since="0.1.0",
    limits={"min_step_ratio": Limit(0.02, "smallest share of the step that is worth reporting")},
)
def check(
    placement: PlacementResult,
    waterfall: WaterfallResult,
    step_time: StepTimeResult,
    limits: Limits,
) -> Iterator[Draft]:
    """Yield one finding per axis."""
    if placement.order in _OTHER_ORDERS:
        placed(placement)
        return  # the mesh may be laid out for this order
    for axis in crossing(placement):
        if axis.axis in EXPOSED_BY_NATURE or not axis.could_fit:
            continue
        step = mean_step_if_timed(waterfall, step_time)
        cost = None if step is None else exposed_ns([axis], step)
        if step is not None and step.ratio(cost or 0) < limits["min_step_ratio"]:
            continue
        share = "" if step is None else f": their exposed transfer takes {step.share(cost or 0)}"
        yield Draft(
            message=(
                f"Groups of {axis.axis} ({_apart(axis)}) would fit into a node or domain of "
                f"{placement.domain_size} ranks, but some span {axis.num_domains}{share}."
            ),
            fix=(
                "Choose a size that divides the ranks of a node, or start a multiple of it on each "
                "node."
            ),
            cost_ns_per_step=cost,
            confidence=Confidence.MODELLED if cost is not None else Confidence.INFERRED,
            severity=None if cost is not None else Severity.INFO,
            ranks=axis.ranks,
            evidence=("placement.axes", "placement.nodes"),
            without=f"axis {axis.axis}",
            explains=WIDER_TRANSFER,
        )


def _apart(axis: PlacedAxis) -> str:
    if axis.stride == 1:
        return f"{axis.size} ranks next to each other"
    return f"{axis.size} ranks, {axis.stride} apart"
