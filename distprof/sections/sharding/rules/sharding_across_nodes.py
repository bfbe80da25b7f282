"""# sharding-across-nodes

## What it detects
Parameters are sharded over all nodes at once (flat FSDP): every all-gather and reduce-scatter of
the sharding axis crosses the network although several ranks of a group share a node.

## Why it costs time
Gathering parameters twice and scattering gradients once per step moves three times the model
through the slowest link. Sharded inside each node and replicated across nodes (HSDP), the same
traffic stays on the node's fast links, and only the gradients of each shard cross the network.

## Evidence needed
Nodes of the ranks (host names in the traces, or a run directory), the sharding axis of the mesh
(`dp_shard`), and matched collectives, to separate transfer from waiting.

## How the cost is computed
Exposed transfer of the collectives of that axis (several may be exposed at the same time): mean per
rank and step, limited to all exposed transfer. This is an upper bound, because gathering inside the
node and reducing between nodes also take time. The message models the traffic between nodes with
HSDP: flat sharding sends 3(P−1)/P · N bytes per rank, and hybrid sharding 2(G−1)/G · N/g for the
all-reduce of a shard over G nodes of g ranks.

## How to fix
Pass a mesh with two axes to `fully_shard`: `init_device_mesh("cuda", (nodes, ranks_per_node),
mesh_dim_names=("dp_replicate", "dp_shard"))`. Reference run: `distprof run fsdp --replicas NODES`.

## When it is wrong
A replica may not fit into one node's memory: HSDP holds 16N/g bytes of model state per rank instead
of 16N/P. The network may be as fast as the links inside a node.

## Sources
Formula sheet, "Volume per training step" (FSDP, HSDP) and "Anti-patterns" (flat sharding across
nodes). PyTorch documentation of `fully_shard` (meshes of two dimensions).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from distprof.rules.base import Draft, InsufficientEvidenceError, Limit, Limits, rule
from distprof.sections.collectives.result import CollectiveClass, CollectivesResult
from distprof.sections.shares import WIDER_TRANSFER, mean_step
from distprof.sections.time.result import StepTimeResult, WaterfallResult
from distprof.terms import CollectiveKind, Confidence, MeshAxis, Severity
from distprof.units import format_bytes

_SHARDING = (MeshAxis.DP_SHARD.value,)


@rule(
    code="COM106",
    severity=Severity.WARNING,
    since="0.1.0",
    limits={"min_step_ratio": Limit(0.05, "smallest share of the step that is worth reporting")},
)
def check(
    collectives: CollectivesResult,
    waterfall: WaterfallResult,
    step_time: StepTimeResult,
    limits: Limits,
) -> Iterator[Draft]:
    """Yield one finding for the sharding axis."""
    sharding = [c for c in collectives.classes if c.axis in _SHARDING]
    if not sharding:
        return
    if all(record.num_nodes is None for record in sharding):
        raise InsufficientEvidenceError("the nodes of the ranks are unknown")
    flat = [record for record in sharding if _spans_nodes(record)]
    if not flat or len(flat) < len(sharding):
        return
    if all(record.exposed_wait_ns_per_step is None for record in flat):
        raise InsufficientEvidenceError(
            "waiting and transfer of the sharding axis cannot be separated"
        )
    step = mean_step(waterfall, step_time)
    exposed = sum(
        record.exposed_transfer_ns_per_step for record in flat
    )  # classes may be exposed at the same time
    cost = min(exposed, step.exposed_transfer_ns)
    if step.ratio(cost) < limits["min_step_ratio"]:
        return
    nodes, size = flat[0].num_nodes or 0, flat[0].group_size or 0
    yield Draft(
        message=(
            f"The groups of {flat[0].axis} span {nodes} nodes with {size // nodes} ranks on each: "
            f"their exposed transfer takes {step.share(cost)}.{_instead(flat, nodes, size)}"
        ),
        fix=(
            "Shard inside each node and replicate across nodes (HSDP): a mesh of dp_replicate × "
            "dp_shard for fully_shard, if a replica fits into a node's memory."
        ),
        cost_ns_per_step=cost,
        confidence=Confidence.MODELLED,
        evidence=("collectives.classes", "run.nodes"),
        without=f"axis {flat[0].axis}",
        explains=WIDER_TRANSFER,
    )


def _spans_nodes(record: CollectiveClass) -> bool:
    """Whether a group spans nodes with several ranks on each."""
    nodes, size = record.num_nodes, record.group_size
    return nodes is not None and size is not None and nodes > 1 and size >= 2 * nodes


def _instead(flat: Sequence[CollectiveClass], nodes: int, size: int) -> str:
    """Traffic between nodes now and with HSDP (formula sheet, "Volume per training step")."""
    sent = [record.sent_bytes_per_step for record in flat]
    scattered = [
        record.sent_bytes_per_step
        for record in flat
        if record.kind == CollectiveKind.REDUCE_SCATTER.label
    ]
    if not scattered or None in sent:
        return ""
    now = sum(value for value in sent if value is not None)
    model = sum(value for value in scattered if value is not None) * size / (size - 1)
    then = 2 * (nodes - 1) / nodes * model * nodes / size
    return (
        f" Sharded inside nodes, a rank would send about {format_bytes(then)} between nodes per "
        f"step. Now it sends {format_bytes(now)} in groups that span nodes."
    )
