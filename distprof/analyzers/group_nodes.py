"""Nodes and groups of a run, from its topology or, where that is silent, from NCCL's log."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from distprof.analyzers.collectives import group_label
from distprof.run.nccl_log import NcclLog
from distprof.run.run import Run
from distprof.run.topology import ProcessGroup
from distprof.terms import MeshAxis

__all__ = ["Group", "groups_by_axis", "nodes_of", "world_size_of"]

_MAX_RANK = 1 << 18


def nodes_of(run: Run) -> tuple[dict[str, tuple[int, ...]], str]:
    """Nodes in order of their first ranks, and how they were found."""
    found: Mapping[str, Iterable[int]] = run.topology.nodes
    origin: str = run.topology.node_origin
    if not found and run.nccl is not None:
        found, origin = _nodes_of_log(run.nccl), "NCCL's log"
    usable = {
        name: tuple(sorted({rank for rank in ranks if 0 <= rank < _MAX_RANK}))
        for name, ranks in found.items()
    }
    ordered = {name: ranks for name, ranks in sorted(usable.items(), key=lambda n: n[1]) if ranks}
    return ordered, origin if ordered else ""


def _nodes_of_log(log: NcclLog) -> dict[str, list[int]]:
    """Host to ranks, by each process's rank: as the log's name says, or of the whole job."""
    nodes: dict[str, list[int]] = defaultdict(list)
    for process, rank in _ranks_of_log(log).items():
        nodes[log.processes[process].host].append(rank)
    return nodes


def _ranks_of_log(log: NcclLog) -> dict[int, int]:
    """Process to global rank; of logs that do not tell, the rank in the largest communicator."""
    told = {i: p.rank for i, p in enumerate(log.processes) if p.rank is not None}
    if told:
        return told
    largest = max(log.communicators, key=lambda one: one.num_ranks, default=None)
    if largest is None or not largest.is_certain:
        return {}
    return {m.process: m.rank for m in largest.members if 0 <= m.process < len(log.processes)}


def world_size_of(run: Run) -> int | None:
    """Ranks of the job, None where nothing tells."""
    return run.topology.world_size or (run.nccl.world_size if run.nccl is not None else None)


@dataclass(frozen=True, slots=True)
class Group:
    """A process group: its axis or name, and its members."""

    axis: str
    size: int
    ranks: tuple[int, ...]


def _groups(run: Run) -> list[Group]:
    """Groups of the traces; without any, communicators of NCCL's log."""
    groups = [Group(_label(g), len(g.ranks), g.ranks) for g in run.topology.groups if g.ranks]
    return groups if groups or run.nccl is None else _groups_of_log(run.nccl)


def _groups_of_log(log: NcclLog) -> list[Group]:
    """Communicators of which every member is known."""
    rank_of = _ranks_of_log(log)
    groups = []
    for one in log.communicators:
        ranks = tuple(sorted(rank_of[m.process] for m in one.members if m.process in rank_of))
        if one.is_certain and len(ranks) == one.num_ranks:
            groups.append(Group(_log_label(ranks, log.world_size), len(ranks), ranks))
    return groups


def _log_label(ranks: Sequence[int], world_size: int | None) -> str:
    """NCCL knows no axes: communicators are told apart by which ranks they join."""
    if len(ranks) == world_size:
        return MeshAxis.WORLD.value
    steps = set(np.diff(ranks).tolist())
    if len(steps) != 1:
        return "communicators of other ranks"
    return f"communicators of ranks {steps.pop()} apart"


def _label(group: ProcessGroup) -> str:
    return group.axis.value if group.axis else group_label(group.name, group.description)


def groups_by_axis(run: Run) -> dict[tuple[str, int], list[Group]]:
    """Groups of two or more ranks by axis and size, each set of members once."""
    found: dict[tuple[str, int], dict[tuple[int, ...], Group]] = defaultdict(dict)
    for group in _groups(run):
        if group.size > 1:
            found[group.axis, group.size][group.ranks] = group
    return {key: list(members.values()) for key, members in found.items()}
