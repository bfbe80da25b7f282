"""Placement of ranks and process groups on nodes, scale-up domains and network cards.

Nodes come from the run's topology or, if no trace has them, from NCCL's log. A scale-up domain is a
set of GPUs that a fast fabric connects. It comes from the configuration or from the hardware sheet
(NVL72 spans hosts); otherwise it is a node. A group is left out if the node of any member is
unknown.

Source:
    Formula sheet, "Choosing a strategy" and "Anti-patterns".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from distprof.artefacts.record import made_from
from distprof.config import TopologyConfig
from distprof.hardware import Sheet
from distprof.run.evidence import Machines
from distprof.run.run import Run
from distprof.sections.collectives import CollectivesResult
from distprof.sections.placement import PlacedAxis, PlacedMachine, PlacedNode, PlacementResult
from distprof.sections.placement.nodes import (
    Domains,
    Group,
    card_paths,
    find_domains,
    groups_by_axis,
    machines_of,
    nodes_of,
    world_size_of,
)
from distprof.terms import CollectiveKind

BLOCKED, CYCLIC, IRREGULAR = "blocked", "cyclic", "irregular"


def analyze_placement(
    run: Run,
    collectives: CollectivesResult,
    topology: TopologyConfig | None = None,
    sheet: Sheet | None = None,
) -> PlacementResult:
    """Find the nodes and domains of ranks and groups."""
    nodes, origin = nodes_of(run)
    groups = groups_by_axis(run)
    machines = tuple(
        made_from(
            m, PlacedMachine, num_gpus=len(m.gpus), islands=m.islands, farthest_path=m.farthest_path
        )
        for m in machines_of(run)
    )
    cards = tuple(card_paths(run, nodes))
    shown = run.get(Machines)
    copies = shown.copies if shown else ()
    if not nodes:
        return PlacementResult(
            unplaced=tuple(sorted({name for name, _ in groups})),
            machines=machines,
            copies=copies,
            cards=cards,
            unavailable=("The nodes of the ranks are unknown.",),
        )
    domains = find_domains(run, nodes, topology or TopologyConfig(), sheet)
    places = _Places.of(nodes, domains, world_size_of(run))
    placed = (_placed(members, places, domains, collectives) for members in groups.values())
    axes = [axis for axis in placed if axis is not None]
    domain_of = domains.of_rank
    return PlacementResult(
        origin=origin,
        domain_origin=domains.origin,
        domain_size=domains.size,
        num_domains=len(domains.ranks),
        scale_up_bandwidth=domains.bandwidth,
        order=places.order,
        is_whole=places.is_whole,
        nodes=tuple(
            PlacedNode(
                node=name,
                ranks=ranks,
                domains=tuple(dict.fromkeys(domain_of[rank] for rank in ranks)),
            )
            for name, ranks in nodes.items()
        ),
        axes=tuple(sorted(axes, key=lambda axis: (-(axis.sent_bytes_per_step or 0), axis.axis))),
        unplaced=tuple(sorted({name for name, _ in groups} - {axis.axis for axis in axes})),
        machines=machines,
        copies=copies,
        cards=cards,
        unavailable=(*domains.notes, *_split_machines(machines)),
    )


def _split_machines(machines: Iterable[PlacedMachine]) -> Iterator[str]:
    """Machines whose GPUs are not all connected by NVLink, one sentence each."""
    for machine in machines:
        if len(machine.islands) > 1:
            where = f" of {machine.host}" if machine.host else ""
            yield (
                f"NVLink does not connect all {machine.num_gpus} GPUs{where}: PCIe connects "
                f"{len(machine.islands)} islands."
            )


class _Places(msgspec.Struct, frozen=True):
    """Nodes and domains of ranks as arrays; -1 if unknown."""

    node: NDArray[np.int32]  # int32 per rank.
    domain: NDArray[np.int32]  # int32 per rank.
    # Node per rank if each node held consecutive ranks; None unless every rank's node is known.
    blocked: NDArray[np.int32] | None
    order: str | None  # How ranks are numbered over nodes.
    is_whole: bool  # Whether every rank of the job has a node.

    @staticmethod
    def of(nodes: Mapping[str, Sequence[int]], domains: Domains, world_size: int | None) -> _Places:
        """Arrays with an entry for every rank up to the highest."""
        length = max(max(ranks) for ranks in nodes.values()) + 1
        node = _array(nodes.values(), length)
        is_whole = length == world_size and bool((node >= 0).all())
        sizes = np.array([len(ranks) for ranks in nodes.values()])
        blocked = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes) if is_whole else None
        order = None if blocked is None or len(sizes) < 2 else _order(node, sizes, blocked)
        return _Places(node, _array(domains.ranks.values(), length), blocked, order, is_whole)


def _array(parts: Iterable[Sequence[int]], length: int) -> NDArray[np.int32]:
    """For each rank, the index of the part that contains it; -1 if none does."""
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
    """Placement of groups of one axis and size; None if no group is known completely."""
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
    steps = np.unique(np.concatenate([np.diff(members) for members in known]))
    stride = int(steps[0]) if len(steps) == 1 else None
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
        nodes_if_blocked=None
        if places.blocked is None
        else max(len(np.unique(places.blocked[members])) for members in known),
        could_fit=None if stride is None else size * stride <= domains.size,
        tier=_tier(most_nodes, widest),
        ranks=tuple(
            sorted(
                {
                    int(rank)
                    for members, span in zip(known, spans, strict=True)
                    if span == widest
                    for rank in members
                }
            )
        ),
        **_traffic(collectives, axis, size),
    )


def _tier(num_nodes: int, num_domains: int) -> str:
    if num_nodes == 1 and num_domains == 1:
        return "inside a node"
    return "inside a domain" if num_domains == 1 else "between domains"


def _traffic(collectives: CollectivesResult, axis: str, size: int) -> dict[str, Any]:
    """Sent bytes and exposed time of an axis's collectives per rank and step; None if unknown."""
    classes = [
        record
        for record in collectives.classes
        if (record.axis or record.group) == axis and record.group_size in (size, None)
    ]
    sent = [c.sent_bytes_per_step for c in classes if c.sent_bytes_per_step is not None]
    timed = [c for c in classes if c.exposed_wait_ns_per_step is not None]
    exchange = [c for c in timed if c.kind == CollectiveKind.ALL_TO_ALL.label]
    exposed, exchanged = (
        sum(c.exposed_transfer_ns_per_step for c in some) if timed else None
        for some in (timed, exchange)
    )
    return {
        "sent_bytes_per_step": sum(sent) if sent else None,
        "exposed_transfer_ns_per_step": exposed,
        "exchange_ns_per_step": exchanged,
    }
