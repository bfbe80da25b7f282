"""# uneven-ranks-per-node

## What it detects
Nodes that hold different numbers of ranks of one job.

## Why it costs time
Ranks of a fuller node share its network cards, processors and memory among more, and collectives
wait for them. Algorithms that go node by node (trees, hierarchical and in-network reduction) need
the same number on each, and fall back to slower ones.

## Evidence needed
The node of every rank of the job.

## How the cost is computed
Not at all: how fast the job would be on even nodes cannot be read off this one.

## How to fix
Start the same number of ranks on each node: `--nproc-per-node`, `--ntasks-per-node`. A world size
that the ranks of a node divide.

## When it is wrong
Where nodes differ on purpose, for example with unlike GPUs, and stages or experts are placed for
it.

## Sources
NCCL's user guide (CollNet and NVLink SHARP need as many GPUs on each node). Formula sheet,
"Collectives" (hierarchical all-reduce over G nodes of g GPUs).
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
    needs=(PlacementResult,),
    costs_time=False,
)
def check(placement: PlacementResult, limits: Limits) -> Iterator[Draft]:  # noqa: ARG001
    """Yield one finding for the job, unless groups that straddle nodes say it more narrowly."""
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
            f"The {sum(sizes.values())} ranks are on {len(sizes)} nodes unevenly: "
            f"{sizes[most]} on {most}, {sizes[least]} on {least}."
        ),
        fix="Start the same number of ranks on each node (--nproc-per-node, --ntasks-per-node).",
        confidence=Confidence.MEASURED,
        ranks=tuple(
            rank for node in placement.nodes if node.node in (most, least) for rank in node.ranks
        ),
        evidence=("placement.nodes",),
    )
