"""Where ranks and process groups lie on nodes, scale-up domains and network cards.

Nodes are those of the run's topology; where no trace tells them, those of NCCL's log. A scale-up
domain is a set of GPUs that a fast fabric joins: by the configuration, else by the hardware sheet
(NVL72 spans hosts), else a node. Only what is placed for sure is counted: a group of which a
member's node is unknown is left out.

Source:
    Formula sheet, "Choosing a strategy" and "Anti-patterns".
"""

from __future__ import annotations

from distprof.schema import Record
from distprof.sections.base import Result

__all__ = ["CardPath", "PlacedAxis", "PlacedMachine", "PlacedNode", "PlacementResult"]


class CardPath(Record, frozen=True, kw_only=True):
    """One GPU of a machine.

    Args:
        host: Host name; empty where the machine stands for every node.
        gpu: As the driver calls it.
        path: Shortest path to a network card, for example ``PIX``; empty where none is known.
        nearest: Cards at its end.
        num_sharing: GPUs, this one among them, that have a nearest card of it as their own nearest.
        used: Cards that NCCL uses for it by its log; empty where no log tells.
        used_path: Longest path to one of those; empty where none is known.
        rank: Global rank on it, as far as a log of NCCL tells.
    """

    host: str
    gpu: str
    path: str
    nearest: tuple[str, ...]
    num_sharing: int
    used: tuple[str, ...] = ()
    used_path: str = ""
    rank: int | None = None


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
