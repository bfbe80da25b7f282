"""# uneven-ranks-per-node

## What it detects
Nodes hold different numbers of ranks of one job.

## Why it costs time
More ranks share the network cards, CPU cores and memory of a fuller node, and collectives wait for
them. Algorithms that work node by node (trees, hierarchical and in-network reduction) need the same
number of ranks on each node; otherwise NCCL falls back to slower ones.

## Evidence needed
The node of every rank of the job.

## How the cost is computed
No cost: this run does not show how fast the job would be on even nodes.

## How to fix
Start the same number of ranks on each node: `--nproc-per-node`, `--ntasks-per-node`. Use a world
size that is a multiple of the ranks per node.

## When it is wrong
Nodes may differ on purpose, for example with different GPUs, with stages or experts placed
accordingly.

## Sources
NCCL's user guide (CollNet and NVLink SHARP need the same number of GPUs on each node). Formula
sheet, "Collectives" (hierarchical all-reduce over G nodes of g GPUs).
"""

from __future__ import annotations

from collections.abc import Iterator

from distprof.rules.base import Draft, Limits, rule
from distprof.sections.placement.result import PlacementResult
from distprof.sections.placement.rules._shared import crossing, placed
from distprof.terms import Confidence, Severity


@rule(
    code="NET110",
    severity=Severity.WARNING,
    since="0.1.0",
    costs_time=False,
)
def check(placement: PlacementResult, limits: Limits) -> Iterator[Draft]:  # noqa: ARG001
    """Yield one finding for the job, unless group-straddles-nodes is more specific."""
    placed(placement, lambda _: True)
    sizes = {node.node: len(node.ranks) for node in placement.nodes}
    if not placement.is_whole or len(set(sizes.values())) < 2:
        return
    if any(axis.could_fit and axis.exposed_transfer_ns_per_step for axis in crossing(placement)):
        return
    most = max(sizes, key=lambda node: sizes[node])
    least = min(sizes, key=lambda node: sizes[node])
    yield Draft(
        message=(
            f"The {sum(sizes.values())} ranks are spread unevenly over {len(sizes)} nodes: "
            f"{sizes[most]} on {most}, {sizes[least]} on {least}."
        ),
        fix="Start the same number of ranks on each node (--nproc-per-node, --ntasks-per-node).",
        confidence=Confidence.MEASURED,
        ranks=tuple(
            rank for node in placement.nodes if node.node in (most, least) for rank in node.ranks
        ),
        evidence=("placement.nodes",),
    )
