"""Who takes part: ranks, nodes, process groups and mesh axes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from distprof.terms import MeshAxis

__all__ = ["ProcessGroup", "Topology", "axis_of"]

NodeOrigin = Literal["host_name", "device_count", "run.json", "launcher", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessGroup:
    """One process group of the job.

    Args:
        name: PyTorch's name of it; unique only together with ``ranks``.
        description: PyTorch's description, often the mesh axis, for example ``mesh_tp``.
        ranks: Global ranks of the members, ascending; empty where the trace does not say.
        size: Number of members, None where the trace does not say.
        backend: For example ``nccl`` or ``gloo``; empty when unknown.
        axis: Mesh axis read from the description, or the world; None when unknown.
    """

    name: str
    description: str
    ranks: tuple[int, ...]
    size: int | None
    backend: str
    axis: MeshAxis | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """Ranks, nodes and process groups of a run.

    Args:
        world_size: Ranks of the whole job, None when no trace says.
        nodes: Node name to its ranks; ranks whose node is unknown are in no node.
        node_origin: How nodes were found.
        groups: Process groups, each once.
    """

    world_size: int | None
    nodes: Mapping[str, tuple[int, ...]]
    node_origin: NodeOrigin
    groups: tuple[ProcessGroup, ...]

    def node_of(self, rank: int) -> str | None:
        """Name of the node that ``rank`` runs on, None when unknown."""
        return next((name for name, ranks in self.nodes.items() if rank in ranks), None)


# What a Kineto file says about its rank, its groups, its device and its software -----------------

# Descriptions of process groups to mesh axes; the first match decides. Megatron-LM's names end in
# _GROUP, DeviceMesh's begin with mesh_; vLLM and SGLang use the bare axis.
_AXES: tuple[tuple[re.Pattern[str], MeshAxis | None], ...] = tuple(
    (re.compile(pattern), axis)
    for pattern, axis in (
        (r"expert_model_parallel|expert_parallel|(^|_)ep($|_)", MeshAxis.EP),
        (r"expert_data_parallel|data_modulo_expert", MeshAxis.DP),
        (r"expert_tensor", MeshAxis.TP),
        (r"tensor_and_data|tensor_and_context|embedding", None),
        (r"tensor_model_parallel|tensor_parallel|(^|_)tp($|_)", MeshAxis.TP),
        (r"pipeline_model_parallel|pipeline_parallel|(^|_)pp($|_)", MeshAxis.PP),
        (r"(^|_)model_parallel", None),  # tensor and pipeline together
        (
            r"dp_replicate|(^|_)replicate|inter_.*data_parallel|inter_distributed",
            MeshAxis.DP_REPLICATE,
        ),
        (r"dp_shard|(^|_)fsdp|(^|_)shard($|_)|intra_.*data_parallel", MeshAxis.DP_SHARD),
        (r"(^|_)dp($|_)|data_parallel|(^|_)ddp($|_)", MeshAxis.DP),
        (r"context_parallel|(^|_)cp($|_)|ulysses", MeshAxis.CP),
        (r"^world|default_pg", MeshAxis.WORLD),
    )
)


def axis_of(
    description: str, ranks: Sequence[int], size: int | None, world: int | None
) -> MeshAxis | None:
    """The mesh axis that a process group spans.

    Args:
        description: PyTorch's description of the group, for example ``mesh_tp``.
        ranks: Its members, empty when unknown.
        size: Number of members, None when unknown.
        world: World size, None when unknown.

    Returns:
        The axis that the description names; the world where it names none and the group holds
        every rank; None otherwise.
    """
    words = re.sub(r"[^a-z0-9]+", "_", description.lower())
    for pattern, axis in _AXES:
        if pattern.search(words):
            return axis
    members = len(ranks) or size
    return MeshAxis.WORLD if members is not None and members == world else None
