"""Nodes, process groups and world size of a run, from the data of its ranks."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import product

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from distprof.artefacts.run_file import RunFile
from distprof.join.axes import with_inferred_axes
from distprof.run.run import Rank
from distprof.run.tables import DistinctRows
from distprof.run.topology import (
    MAX_WORLD_SIZE,
    NodeOrigin,
    ProcessGroup,
    Topology,
    axis_of,
    coordinates_of,
    nodes_of_job,
    with_axis,
    world_size_of_job,
)
from distprof.terms import MeshAxis

MAX_HOSTS = 1 << 16

_PART = re.compile(r"[^\[\],]+|\[[0-9,\-]+\]")

_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")

_COUNT = re.compile(r"(\d{1,6})(?:\(x(\d{1,6})\))?")

Nodes = Mapping[str, tuple[int, ...]]


def nodes_of_launcher(environment: Mapping[str, str], world_size: int | None) -> Nodes:
    """Node name to its ranks, from launchers' variables; empty if they are inconclusive.

    Used only if neither the ranks of a run directory nor host names in traces name the nodes.
    Launchers number ranks node by node by default. If a variable says otherwise, or the numbers do
    not add up, the nodes stay unknown.

    Source:
        The documentation of SLURM's ``srun`` (output environment variables, distribution, hostlist
        expressions), torchrun, Kubeflow's training operator (``PET_…``) and Open MPI's ``mpirun``.
    """
    if world_size is None or world_size < 1:
        return {}
    return _of_slurm(environment, world_size) or _of_equal_nodes(environment, world_size)


def parse_hostlist(text: str) -> tuple[str, ...]:
    """Hosts of an expression such as ``n[001-003,7],x``, in order; empty if it is invalid."""
    hosts: list[str] = []
    for part in _split_outside_brackets(text.strip()):
        pieces = _PART.findall(part)
        if not part or "".join(pieces) != part:
            return ()
        choices = [_numbers(piece) if piece[0] == "[" else (piece,) for piece in pieces]
        size = 1
        for choice in choices:
            size *= len(choice)
        if size == 0 or len(hosts) + size > MAX_HOSTS:
            return ()
        hosts += ["".join(combination) for combination in product(*choices)]
    return tuple(hosts)


def parse_task_counts(text: str) -> tuple[int, ...]:
    """Tasks per node from an expression such as ``8(x4),2``; empty if it is invalid."""
    counts: list[int] = []
    for part in text.strip().split(","):
        found = _COUNT.fullmatch(part)
        times = int(found[2] or 1) if found else 0
        if found is None or len(counts) + times > MAX_HOSTS:
            return ()
        counts += [int(found[1])] * times
    return tuple(counts)


def _of_slurm(env: Mapping[str, str], world_size: int) -> Nodes:
    """Nodes from SLURM's variables if each rank is a task; with torchrun, tasks are agents."""
    hosts = parse_hostlist(_first(env, "SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"))
    counts = parse_task_counts(_first(env, "SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"))
    if not hosts or len(hosts) != len(counts) or len(set(hosts)) != len(hosts):
        return {}
    if sum(counts) != world_size:
        return {}
    distribution = env.get("SLURM_DISTRIBUTION", "block").lower().split(":")[0].split(",")[0]
    if distribution in ("block", "pack", "nopack", "unknown", ""):
        return dict(zip(hosts, _blocks(counts), strict=True))
    if distribution == "cyclic":
        return dict(zip(hosts, _round_robin(counts), strict=True))
    return {}


def _of_equal_nodes(env: Mapping[str, str], world_size: int) -> Nodes:
    """Nodes with as many ranks as this one, numbered node by node as torchrun and mpirun do."""
    if env.get("OMPI_MCA_rmaps_base_mapping_policy", "") not in ("", "slot", "core"):
        return {}
    text = _first(
        env, "LOCAL_WORLD_SIZE", "PET_NPROC_PER_NODE", "OMPI_COMM_WORLD_LOCAL_SIZE"
    ).strip()
    local = int(text) if text.isascii() and text.isdecimal() and len(text) < 7 else 0
    if local < 1 or world_size % local:
        return {}
    nodes = world_size // local
    num_nodes = env.get("PET_NNODES", "").strip()
    if num_nodes.isdecimal() and num_nodes != str(nodes):
        return {}
    return {f"node{n}": ranks for n, ranks in enumerate(_blocks([local] * nodes))}


def _blocks(counts: Sequence[int]) -> list[tuple[int, ...]]:
    """Ranks numbered node by node."""
    found, start = [], 0
    for count in counts:
        found.append(tuple(range(start, start + count)))
        start += count
    return found


def _round_robin(counts: Sequence[int]) -> list[tuple[int, ...]]:
    """Ranks assigned round-robin to the nodes that still have room."""
    found: list[list[int]] = [[] for _ in counts]
    rank = 0
    for turn in range(max(counts, default=0)):
        for node, count in enumerate(counts):
            if turn < count:
                found[node].append(rank)
                rank += 1
    return [tuple(ranks) for ranks in found]


def _split_outside_brackets(text: str) -> Iterator[str]:
    """The parts between commas outside brackets."""
    depth = start = 0
    for position, char in enumerate(text):
        depth += (char == "[") - (char == "]")
        if char == "," and depth == 0:
            yield text[start:position]
            start = position + 1
    yield text[start:]


def _numbers(bracket: str) -> tuple[str, ...]:
    """``[001-003,7]`` as ``001``, ``002``, ``003``, ``7``; empty if it is not a list of ranges."""
    found: list[str] = []
    for part in bracket[1:-1].split(","):
        match = _RANGE.fullmatch(part)
        if match is None:
            return ()
        low, high = int(match[1]), int(match[2] or match[1])
        if high < low or len(found) + high - low >= MAX_HOSTS:
            return ()
        found += [str(number).zfill(len(match[1])) for number in range(low, high + 1)]
    return tuple(found)


def _first(env: Mapping[str, str], *names: str) -> str:
    return next((env[name] for name in names if env.get(name)), "")


# Topology -----------------------------------------------------------------------------------------

GroupKey = tuple[str, tuple[int, ...], int | None]


def build_topology(ranks: Sequence[Rank], job: RunFile | None = None) -> Topology:
    """Nodes and groups of a run, whose ranks ascend.

    Nodes come from the first available of these sources: the ranks in run.json, host names in the
    traces, the launcher's variables, GPU counts. The last two rely on launchers numbering ranks
    node by node. Without any source, the nodes are unknown.

    Groups are those that the ranks list and those that their collectives name. The same name with
    the same members is one group.
    """
    world_size = world_size_of(ranks)
    if world_size is None and job is not None:
        world_size = world_size_of_job(job)
    nodes, origin = _nodes(ranks, world_size)
    groups = _groups(ranks, world_size)
    if job is not None:
        nodes, origin = _nodes_from_job(job, world_size, origin) or (nodes, origin)
        places = coordinates_of(job)
        groups = tuple(with_axis(group, places) for group in groups)
    groups = with_inferred_axes(groups, ranks, world_size, groups_of_rows)
    return Topology(world_size=world_size, nodes=nodes, node_origin=origin, groups=groups)


def _nodes_from_job(
    job: RunFile, world_size: int | None, found: NodeOrigin
) -> tuple[Mapping[str, tuple[int, ...]], NodeOrigin] | None:
    """Nodes according to run.json: per rank, otherwise from the launcher's variables."""
    nodes = nodes_of_job(job)
    if nodes:
        return nodes, "run.json"
    if found == "host_name":
        return None
    launched = nodes_of_launcher(job.environment, world_size)
    return (launched, "launcher") if launched else None


def world_size_of(ranks: Sequence[Rank]) -> int | None:
    """World size that most ranks report, the larger one on a tie; None if no rank reports it."""
    counts = Counter(
        rank.world_size
        for rank in ranks
        if rank.world_size is not None and 0 < rank.world_size <= MAX_WORLD_SIZE
    )
    return max(counts, key=lambda size: (counts[size], size)) if counts else None


def group_key(group: ProcessGroup) -> GroupKey:
    """Key that identifies a group across ranks, as names alone are not unique."""
    return group.name, group.ranks, None if group.ranks else group.size


def groups_of_rows(
    rank: Rank, world_size: int | None, rows: DistinctRows | None = None
) -> tuple[tuple[ProcessGroup, ...], NDArray[np.int32]]:
    """The process groups of a rank's collectives, and for each row the index of its group.

    If the trace gives only a group's name, the members are those of the rank's group of that name.
    If it gives nothing, the group is assumed to be the world. Passing the same ``rows`` for all
    ranks is faster.
    """
    table = rank.collectives
    coded = [table.coded(name) for name in ("group", "group_desc", "group_ranks")]
    size = table["group_size"]
    first, code = (rows or DistinctRows()).of([size, *(column.codes for column in coded)])
    found = tuple(
        _group_of_row(
            rank,
            *(column.values[column.codes[row]] for column in coded),
            size=int(size[row]),
            world_size=world_size,
        )
        for row in first.tolist()
    )
    return found, code.astype(np.int32)


@lru_cache(maxsize=4096)
def parse_folded(text: str) -> tuple[int, ...]:
    """Ranks written as ranges such as ``0-3,8``; empty if the text is invalid."""
    ranks: set[int] = set()
    for part in text.split(","):
        low, dash, high = part.partition("-")
        if not (low.isdecimal() and (high.isdecimal() or not dash)):
            return ()
        first, last = int(low), int(high) if dash else int(low)
        if last - first >= MAX_WORLD_SIZE or len(ranks) >= MAX_WORLD_SIZE:
            return ()
        ranks.update(range(first, last + 1))
    return tuple(sorted(ranks))


def _group_of_row(
    rank: Rank, name: str, description: str, folded: str, *, size: int, world_size: int | None
) -> ProcessGroup:
    members = parse_folded(folded) if folded else ()
    own = next((g for g in rank.groups if name and g.name == name), None)
    if not members and own is not None:
        members = own.ranks
    if not members and not name and (size < 0 or size == world_size):
        return _world(rank, world_size)
    if not members and size == world_size and world_size is not None:
        members = _all_ranks(world_size)
    if own is not None and _are_equal(_Same(own.ranks), _Same(members)):
        return own
    return _named(name, description, _Same(members), size, rank.backend, world_size)


class _Same:
    """A tuple compared by identity, so that a cache lookup does not hash all ranks."""

    def __init__(self, ranks: tuple[int, ...]) -> None:
        self.ranks = ranks

    def __hash__(self) -> int:
        return id(self.ranks)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.ranks is other.ranks


@lru_cache(maxsize=1 << 12)
def _are_equal(first: _Same, second: _Same) -> bool:
    """Whether two groups have the same members; cached, as thousands of ranks compare the same."""
    return first.ranks == second.ranks


@lru_cache(maxsize=1 << 12)
def _all_ranks(world_size: int) -> tuple[int, ...]:
    return tuple(range(world_size))


@lru_cache(maxsize=1 << 12)
def _named(
    name: str, description: str, held: _Same, size: int, backend: str, world_size: int | None
) -> ProcessGroup:
    """A group that only collectives name, as one object for all its ranks."""
    members = held.ranks
    known_size = len(members) or (size if size >= 0 else None)
    return ProcessGroup(
        name=name,
        description=description,
        ranks=members,
        size=known_size,
        backend=backend,
        axis=axis_of(description, members, known_size, world_size),
    )


def _world(rank: Rank, world_size: int | None) -> ProcessGroup:
    """The group of all ranks, for collectives with an unknown group."""
    members = _all_ranks(world_size) if world_size else ()
    whole = _Same(members)
    listed = next((g for g in rank.groups if members and _are_equal(_Same(g.ranks), whole)), None)
    return listed or _unnamed_world(whole, world_size, rank.backend)


@lru_cache(maxsize=1 << 12)
def _unnamed_world(members: _Same, world_size: int | None, backend: str) -> ProcessGroup:
    return ProcessGroup(
        name="",
        description="",
        ranks=members.ranks,
        size=world_size,
        backend=backend,
        axis=MeshAxis.WORLD,
    )


def _groups(ranks: Sequence[Rank], world_size: int | None) -> tuple[ProcessGroup, ...]:
    merged: dict[GroupKey, ProcessGroup] = {}
    seen: dict[int, ProcessGroup] = {}  # by identity: a key is as long as the group is large
    rows = DistinctRows()
    for rank in ranks:
        for group in (*rank.groups, *groups_of_rows(rank, world_size, rows)[0]):
            if id(group) in seen:
                continue
            seen[id(group)] = group
            key = group_key(group)
            merged[key] = _merge(merged[key], group) if key in merged else group
    return tuple(merged.values())


def _merge(known: ProcessGroup, other: ProcessGroup) -> ProcessGroup:
    """One group from two ranks: fields unknown on one rank come from the other."""
    if known is other:
        return known
    return replace(
        known,
        description=known.description or other.description,
        size=known.size if known.size is not None else other.size,
        backend=known.backend or other.backend,
        axis=known.axis or other.axis,
    )


def _nodes(
    ranks: Sequence[Rank], world_size: int | None
) -> tuple[Mapping[str, tuple[int, ...]], NodeOrigin]:
    hosts: dict[str, list[int]] = {}
    for rank in ranks:
        if rank.host:
            hosts.setdefault(rank.host, []).append(rank.rank)
    if hosts:
        return {host: tuple(numbers) for host, numbers in hosts.items()}, "host_name"
    counts = {rank.device.count for rank in ranks if rank.device.count}
    if world_size is None or len(counts) != 1:
        return {}, "unknown"
    return _nodes_by_count(world_size, counts.pop())


def _nodes_by_count(
    world_size: int, count: int
) -> tuple[Mapping[str, tuple[int, ...]], NodeOrigin]:
    """Nodes of ``count`` ranks each, if the count is conclusive.

    The count of a process that sees a single GPU is not: its host may have more GPUs, for example
    with one container per rank.
    """
    if world_size <= count:
        return {"node0": tuple(range(world_size))}, "device_count"
    if count == 1 or world_size % count:
        return {}, "unknown"
    blocks = range(world_size // count)
    return {f"node{i}": tuple(range(i * count, (i + 1) * count)) for i in blocks}, "device_count"
