"""Who takes part: ranks, nodes, process groups and mesh axes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from distprof.terms import MeshAxis

__all__ = ["ProcessGroup", "Topology"]

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
