"""Placement of ranks and process groups on nodes, scale-up domains and network cards.

Nodes come from the run's topology or, if no trace has them, from NCCL's log. A scale-up domain is a
set of GPUs that a fast fabric connects. It comes from the configuration or from the hardware sheet
(NVL72 spans hosts); otherwise it is a node. A group is left out if the node of any member is
unknown.

Source:
    Formula sheet, "Choosing a strategy" and "Anti-patterns".
"""

from __future__ import annotations

from distprof.artefacts.record import Record
from distprof.sections.base import Result

ACROSS_SOCKETS = "SYS"
"""The longest path over PCIe, as the driver spells it (:data:`distprof.run.evidence.PATHS`)."""


class CardPath(Record, frozen=True, kw_only=True):
    """One GPU of a machine.

    Args:
        host: Host name; empty if the machine represents every node.
        gpu: The driver's name for it.
        path: Shortest path to a network card, for example ``PIX``; empty if unknown.
        nearest: Cards at the end of the shortest path.
        num_sharing: GPUs, including this one, that share a nearest card with it.
        used: Cards that NCCL uses for it, from its log; empty if unknown.
        used_path: Longest path to one of those; empty if unknown.
        rank: Global rank on it, if an NCCL log shows it.
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
    """A node, its ranks, and the scale-up domains that they are in.

    Args:
        node: Node.
        ranks: Its ranks.
        domains: Scale-up domains that they are in; empty where unknown.
    """

    node: str
    ranks: tuple[int, ...]
    domains: tuple[str, ...]


class PlacedAxis(Record, frozen=True, kw_only=True):
    """Process groups of one axis and size, and their placement.

    Times and bytes are means per rank and step over the collectives of the axis; None without a
    timeline.

    Args:
        axis: Mesh axis, or the groups' name if the axis is unknown.
        size: Ranks of a group.
        num_groups: Groups with a known node for every member.
        num_nodes: Most nodes that a group spans.
        least_nodes: Fewest nodes that a group spans.
        num_domains: Most scale-up domains that a group spans.
        least_domains: Fewest scale-up domains that a group spans.
        most_on_node: Most members of a group on one node.
        least_on_node: Fewest members of a group on a node that holds any.
        stride: Distance between neighbouring members; None if it varies.
        nodes_if_blocked: Most nodes that a group would span if each node held consecutive ranks;
            None unless all ranks' nodes are known.
        could_fit: Whether a group, with the axes between its members, fits into a domain; None if
            its members are not evenly spaced.
        tier: Slowest kind of link that a group needs: ``inside a node``, ``inside a domain``
            (of several hosts) or ``between domains``.
        sent_bytes_per_step: Bytes that a rank sends.
        exposed_transfer_ns_per_step: Exposed transfer; several classes may be exposed at the same
            time.
        exchange_ns_per_step: Part of it that is all-to-all.
        ranks: Members of the groups that span the most domains.
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
    """A machine from ``nvidia-smi topo -m``; ``host`` is empty if it represents every node.

    Args:
        host: Its name.
        num_gpus: GPUs.
        islands: Sets of GPU numbers connected by NVLink; most machines are a single island.
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
            ``NCCL's log``; empty if unknown.
        domain_origin: How scale-up domains were found, as text; empty if unknown.
        domain_size: Ranks of the largest domain; None if unknown.
        num_domains: Number of domains.
        scale_up_bandwidth: Scale-up bandwidth of the GPU from the hardware sheet, bytes per second
            and direction.
        order: How ranks are numbered over nodes: ``blocked`` (node by node), ``cyclic``
            (round-robin) or ``irregular``; None if a node is unknown or there is only one.
        is_whole: Whether every rank of the job is on a known node.
        nodes: Nodes in order of their first ranks.
        axes: Groups by axis and size, most sent bytes first.
        unplaced: Axes without a placed group.
        machines: The machines that the user provided.
        cards: Paths of GPUs to network cards, for known machines.
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
