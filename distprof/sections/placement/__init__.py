"""Placement of ranks and process groups on nodes, scale-up domains and network cards."""

from __future__ import annotations

from distprof.artefacts.fabric_file import GpuCopies
from distprof.artefacts.record import Record
from distprof.sections.base import Result

ACROSS_SOCKETS = "SYS"
"""The longest path over PCIe, as the driver spells it (:data:`distprof.run.evidence.PATHS`)."""


class CardPath(Record, frozen=True, kw_only=True):
    """One GPU of a machine."""

    host: str  # Host name; empty if the machine represents every node.
    gpu: str  # The driver's name for it.
    path: str  # Shortest path to a network card, for example ``PIX``; empty if unknown.
    nearest: tuple[str, ...]  # Cards at the end of the shortest path.
    num_sharing: int  # GPUs, including this one, that share a nearest card with it.
    used: tuple[str, ...] = ()  # Cards that NCCL uses for it, from its log; empty if unknown.
    used_path: str = ""  # Longest path to one of those; empty if unknown.
    rank: int | None = None  # Global rank on it, if an NCCL log shows it.


class PlacedNode(Record, frozen=True, kw_only=True):
    """A node, its ranks, and the scale-up domains that they are in."""

    node: str  # Node.
    ranks: tuple[int, ...]  # Its ranks.
    domains: tuple[str, ...]  # Scale-up domains that they are in; empty where unknown.


class PlacedAxis(Record, frozen=True, kw_only=True):
    """Process groups of one axis and size, and their placement.

    Times and bytes are means per rank and step over the collectives of the axis; None without a
    timeline.
    """

    axis: str  # Mesh axis, or the groups' name if the axis is unknown.
    size: int  # Ranks of a group.
    num_groups: int  # Groups with a known node for every member.
    num_nodes: int  # Most nodes that a group spans.
    least_nodes: int  # Fewest nodes that a group spans.
    num_domains: int  # Most scale-up domains that a group spans.
    least_domains: int  # Fewest scale-up domains that a group spans.
    most_on_node: int  # Most members of a group on one node.
    least_on_node: int  # Fewest members of a group on a node that holds any.
    stride: int | None = None  # Distance between neighbouring members; None if it varies.
    # Most nodes that a group would span if each node held consecutive ranks; None unless all ranks'
    # nodes are known.
    nodes_if_blocked: int | None = None
    # Whether a group, with the axes between its members, fits into a domain; None if its members
    # are not evenly spaced.
    could_fit: bool | None = None
    # Slowest kind of link that a group needs: ``inside a node``, ``inside a domain`` (of several
    # hosts) or ``between domains``.
    tier: str = ""
    sent_bytes_per_step: float | None = None  # Bytes that a rank sends.
    # Exposed transfer; several classes may be exposed at the same time.
    exposed_transfer_ns_per_step: int | None = None
    exchange_ns_per_step: int | None = None  # Part of it that is all-to-all.
    ranks: tuple[int, ...] = ()  # Members of the groups that span the most domains.


class PlacedMachine(Record, frozen=True, kw_only=True):
    """A machine from ``nvidia-smi topo -m``; ``host`` is empty if it represents every node."""

    host: str  # Its name.
    num_gpus: int  # GPUs.
    # Sets of GPU numbers connected by NVLink; most machines are a single island.
    islands: tuple[tuple[int, ...], ...]
    cards: tuple[str, ...]  # Network cards.
    # The longest path over PCIe between two GPUs, for example ``SYS``; empty without any.
    farthest_path: str = ""
    num_cut: int = 0  # GPUs whose rows in the matrix are cut off; they are not among the others.


class PlacementResult(Result, frozen=True, kw_only=True):
    """Nodes, domains, groups on them, and GPUs' paths to network cards."""

    # How nodes were found: ``run.json``, ``host_name``, ``launcher``, ``device_count``, ``NCCL's
    # log``; empty if unknown.
    origin: str = ""
    domain_origin: str = ""  # How scale-up domains were found, as text; empty if unknown.
    domain_size: int | None = None  # Ranks of the largest domain; None if unknown.
    num_domains: int | None = None  # Number of domains.
    # Scale-up bandwidth of the GPU from the hardware sheet, bytes per second and direction.
    scale_up_bandwidth: float | None = None
    # How ranks are numbered over nodes: ``blocked`` (node by node), ``cyclic`` (round-robin) or
    # ``irregular``; None if a node is unknown or there is only one.
    order: str | None = None
    is_whole: bool = False  # Whether every rank of the job is on a known node.
    nodes: tuple[PlacedNode, ...] = ()  # Nodes in order of their first ranks.
    axes: tuple[PlacedAxis, ...] = ()  # Groups by axis and size, most sent bytes first.
    unplaced: tuple[str, ...] = ()  # Axes without a placed group.
    machines: tuple[PlacedMachine, ...] = ()  # The machines that the user provided.
    copies: tuple[GpuCopies, ...] = ()  # Copies between GPUs that the user measured.
    cards: tuple[CardPath, ...] = ()  # Paths of GPUs to network cards, for known machines.
