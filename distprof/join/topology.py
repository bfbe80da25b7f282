"""Nodes, process groups, mesh axes and world size of a run, from the data of its ranks."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import permutations, product
from math import prod
from typing import TypeAlias

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from distprof.artefacts.record import grouped
from distprof.artefacts.run_file import RunFile
from distprof.run.run import Rank
from distprof.run.tables import DistinctRows
from distprof.run.topology import (
    MAX_WORLD_SIZE,
    NodeOrigin,
    ProcessGroup,
    Topology,
    axis_of,
    coordinates_of,
    is_unnamed,
    layout_of,
    nodes_of_job,
    with_axis,
    world_size_of_job,
)
from distprof.schema import Int64Array
from distprof.terms import CollectiveKind, MeshAxis

MAX_HOSTS = 1 << 16
_PART = re.compile(r"[^\[\],]+|\[[0-9,\-]+\]")
_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")
_COUNT = re.compile(r"(\d{1,6})(?:\(x(\d{1,6})\))?")
Nodes = Mapping[str, tuple[int, ...]]


def nodes_of_launcher(environment: Mapping[str, str], world_size: int | None) -> Nodes:
    """Node name to its ranks, from launchers' variables; empty if they are inconclusive.

    Launchers number ranks node by node unless a variable says otherwise.

    Source: the documentation of SLURM's ``srun``, torchrun, Kubeflow's training operator
    (``PET_…``) and Open MPI's ``mpirun``.
    """
    if world_size is None or world_size < 1:
        return {}
    return _of_slurm(environment, world_size) or _of_equal_nodes(environment, world_size)


def _of_slurm(env: Mapping[str, str], world_size: int) -> Nodes:
    """Nodes from SLURM's variables if each rank is a task; with torchrun, tasks are agents."""
    hosts = parse_hostlist(_first(env, "SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"))
    counts = parse_task_counts(_first(env, "SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"))
    if not hosts or len(hosts) != len(counts) or len(set(hosts)) != len(hosts):
        return {}
    distribution = env.get("SLURM_DISTRIBUTION", "block").lower().split(":")[0].split(",")[0]
    if sum(counts) != world_size:
        return {}
    # the host of each rank, node by node or in turns among the nodes that still have room
    tasks = [
        (turn, host) for host, count in zip(hosts, counts, strict=True) for turn in range(count)
    ]
    if distribution == "cyclic":
        tasks.sort(key=lambda task: task[0])
    elif distribution not in ("block", "pack", "nopack", "unknown", ""):
        return {}
    nodes: dict[str, list[int]] = {host: [] for host in hosts}
    for rank, (_, host) in enumerate(tasks):
        nodes[host].append(rank)
    return {host: tuple(ranks) for host, ranks in nodes.items()}


def _of_equal_nodes(env: Mapping[str, str], world_size: int) -> Nodes:
    """Nodes with as many ranks as this one, numbered node by node as torchrun and mpirun do."""
    if env.get("OMPI_MCA_rmaps_base_mapping_policy", "") not in ("", "slot", "core"):
        return {}
    text = _first(
        env, "LOCAL_WORLD_SIZE", "PET_NPROC_PER_NODE", "OMPI_COMM_WORLD_LOCAL_SIZE"
    ).strip()
    local = int(text) if text.isascii() and text.isdecimal() and len(text) < 7 else 0
    num_nodes = env.get("PET_NNODES", "").strip()
    if local < 1 or world_size % local:
        return {}
    if num_nodes.isdecimal() and num_nodes != str(world_size // local):
        return {}
    return _of_size(local, world_size)


def _of_size(local: int, world_size: int) -> Nodes:
    """Nodes of ``local`` ranks each, numbered node by node."""
    starts = range(0, world_size, local)
    return {f"node{n}": tuple(range(low, low + local)) for n, low in enumerate(starts)}


def parse_hostlist(text: str) -> tuple[str, ...]:
    """Hosts of an expression such as ``n[001-003,7],x``, in order; empty if it is invalid."""
    hosts: list[str] = []
    for part in re.split(r",(?![^\[]*\])", text.strip()):  # commas outside brackets
        pieces = _PART.findall(part)
        if not part or "".join(pieces) != part:
            return ()
        choices = [_numbers(piece) if piece[0] == "[" else (piece,) for piece in pieces]
        size = prod(map(len, choices))
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

    Nodes come from the first of these: the ranks in run.json, host names in the traces, the
    launcher's variables, GPU counts. Groups are those that the ranks list and those that
    collectives name.
    """
    world_size = world_size_of(ranks)
    if world_size is None and job is not None:
        world_size = world_size_of_job(job)
    nodes, origin = _nodes(ranks, world_size)
    groups = _groups(ranks, world_size)
    if job is not None:
        if named := nodes_of_job(job):
            nodes, origin = named, "run.json"
        elif origin != "host_name" and (launched := nodes_of_launcher(job.environment, world_size)):
            nodes, origin = launched, "launcher"
        places = coordinates_of(job)
        groups = tuple(with_axis(group, places) for group in groups)
    groups = with_inferred_axes(groups, ranks, world_size)
    return Topology(world_size=world_size, nodes=nodes, node_origin=origin, groups=groups)


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

    A group's name alone means the rank's group of that name, and nothing the world. Passing the
    same ``rows`` for all ranks is faster.
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
    members = _Same(parse_folded(folded) if folded else ())
    own = next((g for g in rank.groups if name and g.name == name), None)
    if not members.ranks and own is not None:
        members = _Same(own.ranks)
    if not members.ranks and not name and (size < 0 or size == world_size):
        # the group of all ranks, for collectives with an unknown group
        members = _all_ranks(world_size or 0)
        same = (g for g in rank.groups if world_size and _are_equal(_Same(g.ranks), members))
        return next(same, None) or _unnamed_world(members, world_size, rank.backend)
    if not members.ranks and size == world_size and world_size is not None:
        members = _all_ranks(world_size)
    if own is not None and _are_equal(_Same(own.ranks), members):
        return own
    return _named(name, description, members, size, rank.backend, world_size)


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
def _all_ranks(world_size: int) -> _Same:
    return _Same(tuple(range(world_size)))


@lru_cache(maxsize=1 << 12)
def _named(
    name: str, description: str, held: _Same, size: int, backend: str, world_size: int | None
) -> ProcessGroup:
    """A group that only collectives name, as one object for all its ranks."""
    members = held.ranks
    known_size = len(members) or (size if size >= 0 else None)
    axis = axis_of(description, members, known_size, world_size)
    return ProcessGroup(
        name=name,
        description=description,
        ranks=members,
        size=known_size,
        backend=backend,
        axis=axis,
    )


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
    """Each group once; fields unknown on one rank come from another."""
    merged: dict[GroupKey, ProcessGroup] = {}
    seen: dict[int, ProcessGroup] = {}  # by identity: a key is as long as the group is large
    rows = DistinctRows()
    for rank in ranks:
        for group in (*rank.groups, *groups_of_rows(rank, world_size, rows)[0]):
            if id(group) in seen:
                continue
            seen[id(group)] = group
            key = group_key(group)
            known = merged.setdefault(key, group)
            if known is not group:
                merged[key] = replace(
                    known,
                    description=known.description or group.description,
                    size=known.size if known.size is not None else group.size,
                    backend=known.backend or group.backend,
                    axis=known.axis or group.axis,
                )
    return tuple(merged.values())


def _nodes(ranks: Sequence[Rank], world_size: int | None) -> tuple[Nodes, NodeOrigin]:
    hosts = grouped([(rank.host, rank.rank) for rank in ranks if rank.host])
    if hosts:
        return {host: tuple(numbers) for host, numbers in hosts.items()}, "host_name"
    counts = {rank.device.count for rank in ranks if rank.device.count}
    if world_size is None or len(counts) != 1:
        return {}, "unknown"
    (count,) = counts
    if world_size <= count:
        return {"node0": tuple(range(world_size))}, "device_count"
    # a process that sees a single GPU may have more on its host, for example in its own container
    if count == 1 or world_size % count:
        return {}, "unknown"
    return _of_size(count, world_size), "device_count"


# Axes of groups without a description, from the collectives of their members in a step ------------

SCALARS_BYTES = 4_096
"""Upper limit for losses and norms, which are neither activations nor gradients."""

MIN_STEPS = 2
"""Least number of steps that must agree."""

_Key: TypeAlias = tuple[str, tuple[int, ...]]


class _Exchanges(msgspec.Struct, frozen=True):
    """Collectives of one rank in one group in one step, in order of time, without scalars."""

    group: ProcessGroup  # The group.
    start_ns: Int64Array  # Start of each collective.
    kind: NDArray[np.int8]  # CollectiveKind of each.
    num_bytes: Int64Array  # Bytes of each.

    def is_only(self, *kinds: CollectiveKind) -> bool:
        """Whether there are collectives, and all are of these kinds."""
        return len(self.kind) > 0 and bool(np.isin(self.kind, kinds).all())


def with_inferred_axes(
    groups: Sequence[ProcessGroup], ranks: Sequence[Rank], world_size: int | None
) -> tuple[ProcessGroup, ...]:
    """The groups, with an inferred axis for those without a description."""
    if not any(_is_unknown(group) for group in groups):
        return tuple(groups)
    axes_of_group: dict[_Key, set[MeshAxis | None]] = defaultdict(set)
    for rank in ranks:
        # the axis of each group that the rank communicates in, as far as its steps agree
        by_group: dict[_Key, list[MeshAxis | None]] = defaultdict(list)
        for exchanges in _steps(rank, world_size):
            for one in exchanges:
                if _is_unknown(one.group):
                    by_group[one.group.name, one.group.ranks].append(_axis(one, exchanges))
        for key, axes in by_group.items():
            axes_of_group[key].add(_common_axis(axes) if len(axes) >= MIN_STEPS else None)
    # groups of one layout span one axis, or it stays unknown
    of_layout: dict[tuple[int, ...], set[MeshAxis | None]] = defaultdict(set)
    for group in groups:
        key = (group.name, group.ranks)
        if _is_unknown(group) and key in axes_of_group:
            of_layout[layout_of(group)].add(_common_axis(axes_of_group[key]))
    inferred = {layout: _common_axis(found) for layout, found in of_layout.items()}
    return tuple(
        replace(group, axis=axis)
        if _is_unknown(group) and (axis := inferred.get(layout_of(group)))
        else group
        for group in groups
    )


def _is_unknown(group: ProcessGroup) -> bool:
    return group.axis is None and is_unnamed(group) and len(group.ranks) > 1


def _common_axis(axes: Iterable[MeshAxis | None]) -> MeshAxis | None:
    """The common axis; None if the axes differ or one is unknown."""
    found = set(axes)
    return found.pop() if len(found) == 1 else None


def _steps(rank: Rank, world_size: int | None) -> Iterator[list[_Exchanges]]:
    """The rank's collectives in each complete step, by group."""
    table = rank.collectives
    groups, code = groups_of_rows(rank, world_size)
    at = np.searchsorted(rank.steps["start_ns"], table["start_ns"], side="right") - 1
    counts = (table["bytes"] > SCALARS_BYTES) & (at >= 0)
    whole = np.flatnonzero(rank.steps["complete"])
    for step in whole.tolist():
        inside = counts & (at == step) & (table["start_ns"] < rank.steps["end_ns"][step])
        rows = np.flatnonzero(inside)
        columns = (table["start_ns"][rows], table["kind"][rows], table["bytes"][rows])
        yield [
            _Exchanges(groups[number], *(column[code[rows] == number] for column in columns))
            for number in np.unique(code[rows]).tolist()
        ]


def _axis(one: _Exchanges, exchanges: Sequence[_Exchanges]) -> MeshAxis | None:
    """The axis of a group in one step of a rank, from its own pattern or that of a second group."""
    scatters = np.flatnonzero(one.kind == CollectiveKind.REDUCE_SCATTER)
    if len(scatters) and one.is_only(CollectiveKind.REDUCE_SCATTER, CollectiveKind.ALL_GATHER):
        gathers = int(scatters[0])  # before the first reduce-scatter
        if gathers >= max(len(scatters), 2):
            return MeshAxis.DP_SHARD
        return MeshAxis.TP if gathers <= 1 < len(scatters) else None
    for activations, gradients in permutations(exchanges, 2):
        if one is not activations and one is not gradients:
            continue
        # one group sums activations, and the other gradients from the backward pass on
        shared = set(activations.group.ranks) & set(gradients.group.ranks)
        only = [each.is_only(CollectiveKind.ALL_REDUCE) for each in (activations, gradients)]
        sizes = activations.num_bytes
        if len(shared) == 1 and all(only) and len(sizes) > 1 and (sizes == sizes[0]).all():
            before = activations.start_ns < gradients.start_ns.min()
            if 2 * int(before.sum()) >= len(before):
                return MeshAxis.TP if one is activations else MeshAxis.DP
    return None
