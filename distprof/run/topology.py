"""Topology of a job: ranks, nodes, process groups and mesh axes, from traces or from run.json."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import cache, cached_property
from itertools import product
from math import prod
from typing import Literal
from weakref import WeakValueDictionary

import msgspec
from msgspec.structs import replace

from distprof.artefacts.record import grouped
from distprof.artefacts.run_file import RunFile
from distprof.bounds import table_beside
from distprof.terms import MeshAxis
from distprof.units import fold_ranks

DEFAULT_GROUPS = ("default_pg", "0", "")
"""Names that releases of torch give the group of all ranks."""

NodeOrigin = Literal["host_name", "device_count", "run.json", "launcher", "unknown"]


class ProcessGroup(msgspec.Struct, frozen=True, kw_only=True, weakref=True):
    """One process group of the job.

    Every member has a copy of its group, so a group of all ranks would take memory quadratic in the
    number of ranks. :func:`shared_group` keeps one object per group instead, also for ranks that
    come from other processes.
    """

    name: str  # PyTorch's name of the group; unique only together with ``ranks``.
    description: str  # PyTorch's description, often the mesh axis, for example ``mesh_tp``.
    # Global ranks of the members, ascending; empty if the trace does not list them.
    ranks: tuple[int, ...]
    size: int | None  # Number of members, None if the trace does not give it.
    backend: str  # For example ``nccl`` or ``gloo``; empty if unknown.
    # Mesh axis read from the description, the world, or inferred from the collectives of its
    # members; None if unknown.
    axis: MeshAxis | None

    def __reduce__(self) -> tuple[Callable[[bytes], ProcessGroup], tuple[bytes]]:
        return shared_group, (msgspec.json.encode(self),)


_groups: WeakValueDictionary[bytes, ProcessGroup] = WeakValueDictionary()


def shared_group(encoded: bytes) -> ProcessGroup:
    """The group that this JSON describes, as one object for equal text while it is in use."""
    known = _groups.get(encoded)
    if known is None:
        known = _groups[encoded] = msgspec.json.decode(encoded, type=ProcessGroup)
    return known


class Topology(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """Ranks, nodes and process groups of a run."""

    world_size: int | None  # Number of ranks of the job, None if no trace gives it.
    # Node name to its ranks; ranks whose node is unknown are in no node.
    nodes: Mapping[str, tuple[int, ...]]
    node_origin: NodeOrigin  # Source of the nodes.
    groups: tuple[ProcessGroup, ...]  # Process groups, each once.

    def node_of(self, rank: int) -> str | None:
        """Name of the node that ``rank`` runs on, None if unknown."""
        return self._node_by_rank.get(rank)

    def num_nodes_of(self, group: ProcessGroup) -> int | None:
        """Number of nodes that a group spans; None if a member's node is unknown."""
        nodes = {self.node_of(rank) for rank in group.ranks}
        return None if None in nodes else len(nodes) or None

    @cached_property
    def _node_by_rank(self) -> dict[int, str]:
        nodes = reversed(list(self.nodes.items()))  # a rank in several nodes is in the first
        return {rank: name for name, ranks in nodes for rank in ranks}


# Mesh axes from the names of groups ---------------------------------------------------------------


@cache
def _axes() -> list[tuple[re.Pattern[str], MeshAxis | None]]:
    """Descriptions of process groups, and the axes that they name; the first match decides."""
    groups = table_beside(__package__, "axes.toml")["groups"]
    return [(re.compile(g["match"]), MeshAxis(g["axis"]) if "axis" in g else None) for g in groups]


def axis_of(
    description: str, ranks: Sequence[int], size: int | None, world: int | None
) -> MeshAxis | None:
    """The mesh axis that a process group spans, described for example as ``mesh_tp``.

    It is the axis that the description names; the world if it names none and the group has every
    rank; None otherwise.
    """
    words = re.sub(r"[^a-z0-9]+", "_", description.lower())
    for pattern, axis in _axes():
        if pattern.search(words):
            return axis
    members = len(ranks) or size
    return MeshAxis.WORLD if members is not None and members == world else None


class GroupNames:
    """Names for groups without a description, from their members; groups of one layout share one.

    torch numbers groups without a description (``1``, ``2``, …), so every pair of tensor-parallel
    ranks has a different number. ``ranks 0-1 and 2-3`` names the members, and both groups at once.
    """

    def __init__(self, groups: Sequence[ProcessGroup]) -> None:
        unnamed = [group for group in groups if is_unnamed(group) and group.ranks]
        families = grouped([(layout_of(group), group) for group in unnamed])
        self._exact: dict[tuple[str, str], str] = {}
        by_name: dict[str, set[str]] = defaultdict(set)
        for family in families.values():
            first, *others = map(fold_ranks, sorted({group.ranks for group in family}))
            text = f"ranks {first}" + (f" and {others[0]}" if len(others) == 1 else "")
            if len(others) > 1:
                text += f", {others[0]} and {len(others) - 1} more"
            for group in family:
                self._exact[group.name, fold_ranks(group.ranks)] = text
                by_name[group.name].add(text)
        for group in groups:
            if not is_unnamed(group):
                by_name.pop(group.name, None)
        self._by_name = {name: next(iter(t)) for name, t in by_name.items() if len(t) == 1}

    def of(self, name: str, ranks: str) -> str:
        """The name of a group with these members, as ranges; empty if described or unknown."""
        return self._exact.get((name, ranks)) or (self._by_name.get(name, "") if name else "")


def layout_of(group: ProcessGroup) -> tuple[int, ...]:
    """The members, counted from the first of them."""
    return tuple(rank - group.ranks[0] for rank in group.ranks)


def is_unnamed(group: ProcessGroup) -> bool:
    """Whether a group other than the world has no description, so that its name is a number."""
    return group.axis is not MeshAxis.WORLD and group.description in ("", "undefined")


# The job according to run.json --------------------------------------------------------------------

MAX_WORLD_SIZE = 1 << 18  # more ranks than any job has; larger numbers are invalid


def world_size_of_job(job: RunFile) -> int | None:
    """World size of the job, None if run.json does not give a valid one."""
    size = job.world_size
    return size if size is not None and 0 < size <= MAX_WORLD_SIZE else None


def nodes_of_job(job: RunFile) -> Mapping[str, tuple[int, ...]]:
    """Node name to its ranks; empty if run.json does not give the node of any rank.

    A node has the name of its host, or its number if several nodes have the same host name, as
    nodes emulated on one machine do.
    """
    ranks: dict[int, set[int]] = defaultdict(set)
    hosts: dict[int, set[str]] = defaultdict(set)
    for entry in job.ranks:
        if entry.node is not None:
            ranks[entry.node].add(entry.rank)
            hosts[entry.node].add(entry.host)
    names = {node: next(iter(seen)) if len(seen) == 1 else "" for node, seen in hosts.items()}
    used = Counter(names.values())
    nodes = {}
    for node in sorted(ranks):
        is_unique = names[node] and used[names[node]] == 1
        nodes[names[node] if is_unique else f"node{node}"] = tuple(sorted(ranks[node]))
    return nodes


def coordinates_of(job: RunFile) -> Mapping[int, Mapping[str, int]]:
    """Rank to its index along each mesh axis.

    Ranks without recorded coordinates get those that the order of the mesh implies: the last axis
    varies fastest.
    """
    recorded = {entry.rank: entry.coordinates for entry in job.ranks if entry.coordinates}
    size = world_size_of_job(job)
    if size is None or not job.mesh or prod(job.mesh.values()) != size:
        return recorded
    return {
        rank: recorded.get(rank) or dict(zip(job.mesh, indices, strict=True))
        for rank, indices in enumerate(product(*map(range, job.mesh.values())))
    }


def with_axis(group: ProcessGroup, places: Mapping[int, Mapping[str, int]]) -> ProcessGroup:
    """The group with the mesh axis that its members differ in, if there is exactly one.

    An axis from the group's description takes precedence, unless it is only the world.
    """
    if group.axis not in (None, MeshAxis.WORLD) or len(group.ranks) < 2:
        return group
    if any(rank not in places for rank in group.ranks):
        return group
    first = places[group.ranks[0]]
    varying = {
        axis
        for rank in group.ranks
        for axis, index in places[rank].items()
        if index != first.get(axis)
    }
    known = {axis.value for axis in MeshAxis}
    if len(varying) != 1 or not varying <= known:
        return group
    return replace(group, axis=MeshAxis(varying.pop()))
