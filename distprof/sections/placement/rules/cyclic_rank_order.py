"""# cyclic-rank-order

## What it detects
Ranks are assigned round-robin to the nodes (rank 0 on the first, rank 1 on the second, …), so
groups of neighbouring ranks span nodes.

## Why it costs time
A mesh places the axes that communicate most on neighbouring ranks. If neighbours are on different
nodes, exactly that traffic crosses the network, while the light traffic meant for the network stays
inside nodes.

## Evidence needed
The node of every rank of the job, members of process groups, and matched collectives.

## How the cost is computed
Exposed transfer of the axes that would span fewer nodes if ranks were numbered node by node: mean
per rank and step, limited to all exposed transfer. This is an upper bound.

## How to fix
Number ranks node by node: `srun --distribution=block`, `mpirun --map-by slot`. torchrun always does
this.

## When it is wrong
The mesh may be laid out for this order. The rule stays silent if an axis that sends more would span
more nodes after the change.

## Sources
SLURM, `srun --distribution`; Open MPI, `mpirun --map-by`. Formula sheet, "Anti-patterns".
"""

from __future__ import annotations

from collections.abc import Iterator

from distprof.rules.base import Draft, Limit, Limits, rule
from distprof.sections.placement.result import PlacementResult
from distprof.sections.placement.rules._shared import exposed_ns, out_of_turn, placed
from distprof.sections.shares import WIDER_TRANSFER, mean_step
from distprof.sections.time.result import StepTimeResult, WaterfallResult
from distprof.terms import Confidence, Severity


@rule(
    code="NET107",
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
    """Yield one finding for the job."""
    placed(placement)
    axes = out_of_turn(placement)
    if not axes:
        return
    step = mean_step(waterfall, step_time)
    cost = exposed_ns(axes, step)
    if step.ratio(cost) < limits["min_step_ratio"]:
        return
    worst = max(axes, key=lambda axis: axis.exposed_transfer_ns_per_step or 0)
    others = "" if len(axes) == 1 else f" (and of {len(axes) - 1} more axes)"
    yield Draft(
        message=(
            f"Ranks are assigned round-robin to {len(placement.nodes)} nodes, so groups of "
            f"{worst.axis} ({worst.size} ranks){others} span {worst.num_nodes} nodes instead of "
            f"{worst.nodes_if_blocked}: their exposed transfer takes {step.share(cost)}."
        ),
        fix=(
            "Number ranks node by node: srun --distribution=block, mpirun --map-by slot, torchrun."
        ),
        cost_ns_per_step=cost,
        confidence=Confidence.MODELLED,
        evidence=("placement.order", "placement.axes"),
        without=f"axis {worst.axis}",
        explains=WIDER_TRANSFER,
    )
