"""Where ranks and process groups lie on nodes, scale-up domains and network cards.

Nodes are those of the run's topology; where no trace tells them, those of NCCL's log. A scale-up
domain is a set of GPUs that a fast fabric joins: by the configuration, else by the hardware sheet
(NVL72 spans hosts), else a node. Only what is placed for sure is counted: a group of which a
member's node is unknown is left out.

Source:
    Formula sheet, "Choosing a strategy" and "Anti-patterns".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from distprof.analyzers.collectives import CollectiveClass, CollectivesResult
from distprof.analyzers.group_nodes import Group, groups_by_axis, nodes_of, world_size_of
from distprof.analyzers.network_cards import CardPath, card_paths
from distprof.analyzers.result import Record, Result
from distprof.analyzers.scale_up import Domains, find_domains
from distprof.config import TopologyConfig
from distprof.hardware.sheet import Sheet
from distprof.run.run import Run
from distprof.terms import CollectiveKind

__all__ = ["PlacedAxis", "PlacedMachine", "PlacedNode", "PlacementResult", "analyze_placement"]

BLOCKED, CYCLIC, IRREGULAR = "blocked", "cyclic", "irregular"


class PlacedNode(Record, frozen=True, kw_only=True):
    """A node, its ranks, and the scale-up domains that they are in."""

    node: str
    ranks: tuple[int, ...]
    domains: tuple[str, ...]


class PlacedAxis(Record, frozen=True, kw_only=True):
    """Process groups of one axis and size, and where they lie.

    Times and bytes are means per rank and step over the collectives of the axis; None where no
    time line tells.

    Args:
        axis: Mesh axis, or the groups' name where none is known.
        size: Ranks of a group.
        num_groups: Groups of which every member's node is known.
        num_nodes: Nodes that a group spans, the most of all.
        least_nodes: The fewest of all.
        num_domains: Scale-up domains that a group spans, the most of all.
        least_domains: The fewest of all.
        most_on_node: Members of a group on one node, the most.
        least_on_node: The fewest, of nodes that hold any.
        stride: Distance between neighbouring members where it is the same throughout.
        nodes_if_blocked: Nodes that a group would span if each node held consecutive ranks, the
            most of all; None where not all ranks' nodes are known.
        could_fit: Whether a group, with the axes that lie between its members, is no larger than a
            domain; None where its members are not evenly apart.
        tier: Slowest kind of link that a group needs: ``inside a node``, ``inside a domain``
            (of several hosts) or ``between domains``.
        sent_bytes_per_step: What a rank sends.
        exposed_transfer_ns_per_step: Transfer that computation does not hide; several classes may
            be exposed at the same time.
        exchange_ns_per_step: Of that, all-to-all.
        ranks: Members of groups that span most domains.
    """

    axis: str
    size: int
    num_groups: int
    num_nodes: int
    least_nodes: int
    num_domains: int
    least_domains: int
    most_on_node: int
    least_on_node: int
    stride: int | None = None
    nodes_if_blocked: int | None = None
    could_fit: bool | None = None
    tier: str = ""
    sent_bytes_per_step: float | None = None
    exposed_transfer_ns_per_step: int | None = None
    exchange_ns_per_step: int | None = None
    ranks: tuple[int, ...] = ()


class PlacedMachine(Record, frozen=True, kw_only=True):
    """A machine by ``nvidia-smi topo -m``; ``host`` is empty where it stands for every node.

    Args:
        host: Its name.
        num_gpus: GPUs.
        islands: GPUs that NVLink joins, as numbers; one island of all is the usual machine.
        cards: Network cards.
    """

    host: str
    num_gpus: int
    islands: tuple[tuple[int, ...], ...]
    cards: tuple[str, ...]


class PlacementResult(Result, frozen=True, kw_only=True):
    """Nodes, domains, groups on them, and GPUs' paths to network cards.

    Args:
        origin: How nodes were found: ``run.json``, ``host_name``, ``launcher``, ``device_count``,
            ``NCCL's log``; empty where they are not known.
        domain_origin: How scale-up domains were found, for people; empty where not known.
        domain_size: Ranks of the largest domain; None where not known.
        num_domains: Domains.
        scale_up_bandwidth: Of the device by the hardware sheet, bytes per second and direction.
        order: How ranks are numbered over nodes: ``blocked`` node by node, ``cyclic`` in turn,
            ``irregular``; None where not all nodes are known, or there is one.
        is_whole: Whether every rank of the job is on a known node.
        nodes: In order of their first ranks.
        axes: Groups by axis and size, most sent bytes first.
        unplaced: Axes of which no group could be placed.
        machines: As the user showed them.
        cards: Paths of GPUs to network cards, where a machine is known.
    """

    origin: str = ""
    domain_origin: str = ""
    domain_size: int | None = None
    num_domains: int | None = None
    scale_up_bandwidth: float | None = None
    order: str | None = None
    is_whole: bool = False
    nodes: tuple[PlacedNode, ...] = ()
    axes: tuple[PlacedAxis, ...] = ()
    unplaced: tuple[str, ...] = ()
    machines: tuple[PlacedMachine, ...] = ()
    cards: tuple[CardPath, ...] = ()


def analyze_placement(
    run: Run,
    collectives: CollectivesResult,
    topology: TopologyConfig | None = None,
    sheet: Sheet | None = None,
) -> PlacementResult:
    """Place ranks and groups.

    Args:
        run: The recording.
        collectives: Its class table.
        topology: Domains as the user has them.
        sheet: Devices by name, with what the user added; None to know none.

    Returns:
        The result; ``unavailable`` says what is not known, and what was assumed.
    """
    nodes, origin = nodes_of(run)
    groups = groups_by_axis(run)
    machines = tuple(
        PlacedMachine(host=m.host, num_gpus=len(m.gpus), islands=m.islands, cards=m.cards)
        for m in run.machines
    )
    cards = card_paths(run, nodes)
    if not nodes:
        return PlacementResult(
            unplaced=tuple(sorted({name for name, _ in groups})),
            machines=machines,
            cards=cards,
            unavailable=("Which node ranks run on is not known.",),
        )
    domains = find_domains(run, nodes, topology or TopologyConfig(), sheet)
    places = _Places.of(nodes, domains, world_size_of(run))
    placed = (_placed(members, places, domains, collectives) for members in groups.values())
    axes = [axis for axis in placed if axis is not None]
    return PlacementResult(
        origin=origin,
        domain_origin=domains.origin,
        domain_size=domains.size,
        num_domains=len(domains.ranks),
        scale_up_bandwidth=domains.bandwidth,
        order=places.order,
        is_whole=places.is_whole,
        nodes=_placed_nodes(nodes, domains),
        axes=tuple(sorted(axes, key=lambda axis: (-(axis.sent_bytes_per_step or 0), axis.axis))),
        unplaced=tuple(sorted({name for name, _ in groups} - {axis.axis for axis in axes})),
        machines=machines,
        cards=cards,
        unavailable=(*domains.notes, *_split_machines(machines)),
    )


def _placed_nodes(nodes: Mapping[str, tuple[int, ...]], domains: Domains) -> tuple[PlacedNode, ...]:
    domain_of = domains.of_rank
    return tuple(
        PlacedNode(
            node=name,
            ranks=ranks,
            domains=tuple(dict.fromkeys(domain_of[rank] for rank in ranks)),
        )
        for name, ranks in nodes.items()
    )


def _split_machines(machines: Iterable[PlacedMachine]) -> Iterator[str]:
    """Machines whose GPUs NVLink does not join, one sentence each."""
    for machine in machines:
        if len(machine.islands) > 1:
            where = f" of {machine.host}" if machine.host else ""
            yield (
                f"NVLink does not join all GPUs{where}: {len(machine.islands)} parts of "
                f"{machine.num_gpus} GPUs are joined by PCIe."
            )


@dataclass(frozen=True, slots=True)
class _Places:
    """Nodes and domains of ranks as arrays, -1 where not known.

    Args:
        node: int32 per rank.
        domain: int32 per rank.
        blocked: Node per rank if nodes held consecutive ranks; None where not all are known.
        order: How ranks are numbered over nodes.
        is_whole: Whether every rank of the job has a node.
    """

    node: NDArray[np.int32]
    domain: NDArray[np.int32]
    blocked: NDArray[np.int32] | None
    order: str | None
    is_whole: bool

    @staticmethod
    def of(nodes: Mapping[str, Sequence[int]], domains: Domains, world_size: int | None) -> _Places:
        """Arrays as long as the highest rank needs."""
        length = max(max(ranks) for ranks in nodes.values()) + 1
        node = _array(nodes.values(), length)
        is_whole = length == world_size and bool((node >= 0).all())
        sizes = np.array([len(ranks) for ranks in nodes.values()])
        blocked = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes) if is_whole else None
        order = None if blocked is None or len(sizes) < 2 else _order(node, sizes, blocked)
        return _Places(node, _array(domains.ranks.values(), length), blocked, order, is_whole)


def _array(parts: Iterable[Sequence[int]], length: int) -> NDArray[np.int32]:
    """Index of the part that each rank is in."""
    found = np.full(length, -1, np.int32)
    for index, ranks in enumerate(parts):
        found[list(ranks)] = index
    return found


def _order(node: NDArray[np.int32], sizes: NDArray[np.int_], blocked: NDArray[np.int32]) -> str:
    if bool((node == blocked).all()):
        return BLOCKED
    in_turn = np.arange(len(node)) % len(sizes)
    return CYCLIC if bool((sizes == sizes[0]).all() and (node == in_turn).all()) else IRREGULAR


def _placed(
    groups: Sequence[Group], places: _Places, domains: Domains, collectives: CollectivesResult
) -> PlacedAxis | None:
    """Where groups of one axis and size lie; None where no group is known completely."""
    known = [
        members
        for group in groups
        if group.ranks[-1] < len(places.node)
        and ((members := np.array(group.ranks)) >= 0).all()
        and (places.node[members] >= 0).all()
    ]
    if not known:
        return None
    axis, size = groups[0].axis, groups[0].size
    counts = [np.unique(places.node[members], return_counts=True)[1] for members in known]
    spans = [len(np.unique(places.domain[members])) for members in known]
    widest = max(spans)
    stride = _stride(known)
    traffic = _traffic(collectives, axis, size)
    most_nodes = max(len(count) for count in counts)
    return PlacedAxis(
        axis=axis,
        size=size,
        num_groups=len(known),
        num_nodes=most_nodes,
        least_nodes=min(len(count) for count in counts),
        num_domains=widest,
        least_domains=min(spans),
        most_on_node=max(int(count.max()) for count in counts),
        least_on_node=min(int(count.min()) for count in counts),
        stride=stride,
        nodes_if_blocked=_most_blocked(known, places),
        could_fit=None if stride is None else size * stride <= domains.size,
        tier=_tier(most_nodes, widest),
        ranks=_ranks_of(
            members for members, span in zip(known, spans, strict=True) if span == widest
        ),
        sent_bytes_per_step=traffic.sent,
        exposed_transfer_ns_per_step=traffic.exposed,
        exchange_ns_per_step=traffic.exchange,
    )


def _stride(groups: Sequence[NDArray[np.int_]]) -> int | None:
    steps = np.unique(np.concatenate([np.diff(members) for members in groups]))
    return int(steps[0]) if len(steps) == 1 else None


def _most_blocked(groups: Sequence[NDArray[np.int_]], places: _Places) -> int | None:
    if places.blocked is None:
        return None
    return max(len(np.unique(places.blocked[members])) for members in groups)


def _tier(num_nodes: int, num_domains: int) -> str:
    if num_nodes == 1 and num_domains == 1:
        return "inside a node"
    return "inside a domain" if num_domains == 1 else "between domains"


def _ranks_of(groups: Iterable[NDArray[np.int_]]) -> tuple[int, ...]:
    return tuple(sorted({int(rank) for members in groups for rank in members}))


@dataclass(frozen=True, slots=True)
class _Traffic:
    """What collectives of an axis send and expose, per rank and step; None where not known."""

    sent: float | None
    exposed: int | None
    exchange: int | None


def _traffic(collectives: CollectivesResult, axis: str, size: int) -> _Traffic:
    classes = [
        record
        for record in collectives.classes
        if (record.axis or record.group) == axis and record.group_size in (size, None)
    ]
    sent = [c.sent_bytes_per_step for c in classes if c.sent_bytes_per_step is not None]
    timed = [c for c in classes if c.exposed_wait_ns_per_step is not None]
    exchange = [c for c in timed if c.kind == CollectiveKind.ALL_TO_ALL.label]
    return _Traffic(
        sent=sum(sent) if sent else None,
        exposed=sum(map(_exposed_transfer, timed)) if timed else None,
        exchange=sum(map(_exposed_transfer, exchange)) if timed else None,
    )


def _exposed_transfer(record: CollectiveClass) -> int:
    return (record.exposed_ns_per_step or 0) - (record.exposed_wait_ns_per_step or 0)
