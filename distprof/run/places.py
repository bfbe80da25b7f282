"""Where ranks of a job run, and which mesh axis a process group spans, by what run.json says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod

from distprof.artefacts.run_file import RunFile
from distprof.run.topology import ProcessGroup
from distprof.terms import MeshAxis

__all__ = ["MAX_WORLD_SIZE", "coordinates_of", "nodes_of_job", "with_axis", "world_size_of_job"]

MAX_WORLD_SIZE = 1 << 18  # more ranks than any job has; larger numbers are nonsense


def world_size_of_job(job: RunFile) -> int | None:
    """Ranks of the job, None where run.json does not say or says nonsense."""
    size = job.world_size
    return size if size is not None and 0 < size <= MAX_WORLD_SIZE else None


def nodes_of_job(job: RunFile) -> Mapping[str, tuple[int, ...]]:
    """Node name to its ranks; empty where run.json does not say on which node ranks run.

    A node is called like its host, or by its number where several nodes have one host name, as
    nodes that are emulated on one machine do.
    """
    ranks: dict[int, list[int]] = {}
    hosts: dict[int, set[str]] = {}
    for entry in job.ranks:
        if entry.node is not None:
            ranks.setdefault(entry.node, []).append(entry.rank)
            hosts.setdefault(entry.node, set()).add(entry.host)
    names = {node: next(iter(said)) if len(said) == 1 else "" for node, said in hosts.items()}
    used = list(names.values())
    return {
        (names[node] if used.count(names[node]) == 1 and names[node] else f"node{node}"): tuple(
            sorted(set(ranks[node]))
        )
        for node in sorted(ranks)
    }


def coordinates_of(job: RunFile) -> Mapping[int, Mapping[str, int]]:
    """Rank to its index along each mesh axis.

    Ranks that do not tell theirs get what the mesh's order implies: the last axis varies fastest.
    """
    told = {entry.rank: entry.coordinates for entry in job.ranks if entry.coordinates}
    size = world_size_of_job(job)
    if size is None or not job.mesh or prod(job.mesh.values()) != size:
        return told
    return {rank: told.get(rank) or _implied(rank, job.mesh) for rank in range(size)}


def with_axis(group: ProcessGroup, places: Mapping[int, Mapping[str, int]]) -> ProcessGroup:
    """The group with the axis along which its members lie, where that is one alone.

    What a group's description says comes first, unless it says no more than that it is the world.

    Args:
        group: Of the run's topology.
        places: Rank to its index along each mesh axis.
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


def _implied(rank: int, mesh: Mapping[str, int]) -> dict[str, int]:
    place: dict[str, int] = {}
    for axis in reversed(list(mesh)):
        rank, place[axis] = divmod(rank, mesh[axis])
    return place
