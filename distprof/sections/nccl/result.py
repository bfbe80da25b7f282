"""NCCL's logs: connections between ranks inside and between nodes, and NCCL's settings.

Source: the messages of NCCL 2.4 to 2.28 and RCCL. Only the initialisation is timed.
"""

from __future__ import annotations

from distprof.artefacts.record import Record
from distprof.sections.base import Result

BETWEEN = "between nodes"

INSIDE = "inside nodes"

NO_LOG = "no NCCL log was read: run with NCCL_DEBUG=INFO"


class NcclGroup(Record, frozen=True, kw_only=True):
    """Communicators of the same size that span the same number of hosts.

    Args:
        num_ranks: Ranks of one communicator.
        num_communicators: Communicators of this size and span.
        num_members: Members that wrote a log, all communicators together.
        num_hosts: Hosts that one communicator spans; null if members cannot be distinguished.
        num_channels: Channels; null if not printed.
        num_nvls_channels: Channels of NVLink SHARP; null if not printed.
        init_ns: Longest initialisation time; null if not printed.
        num_rings: Rings that the log holds completely.
        crossings: Mean number of times that a ring passes from one host to another; null without
            rings.
        tree_depth: Depth of the deepest tree that the log holds completely; null without one.
    """

    num_ranks: int
    num_communicators: int
    num_members: int
    num_hosts: int | None
    num_channels: int | None
    num_nvls_channels: int | None
    init_ns: int | None
    num_rings: int
    crossings: float | None
    tree_depth: int | None


class NcclTransport(Record, frozen=True, kw_only=True):
    """One kind of connection between ranks.

    Args:
        where: ``between nodes`` or ``inside nodes``.
        transport: NCCL's transport, for example ``P2P/CUMEM``, ``SHM``, ``NET/IB``.
        has_gdr: Whether the network card reads GPU memory directly (GPUDirect RDMA).
        num_lines: Log lines that report it: one per channel, or two if both sides write one.
        num_pairs: Pairs of ranks.
        num_processes: Processes that print it.
    """

    where: str
    transport: str
    has_gdr: bool
    num_lines: int
    num_pairs: int
    num_processes: int


class NcclHost(Record, frozen=True, kw_only=True):
    """A host: its processes and network cards.

    Args:
        host: Host name.
        num_processes: Processes on it that wrote a log.
        ranks: Their ranks, as far as known.
        cards: Network cards that NCCL found.
        used_cards: Cards that carry connections; also empty if no connection leaves the host.
        links: Link types of the cards, for example ``IB/SHARP`` or ``RoCE``.
        networks: Networks that its processes chose, for example ``IB`` or ``Socket``.
    """

    host: str
    num_processes: int
    ranks: tuple[int, ...]
    cards: tuple[str, ...]
    used_cards: tuple[str, ...]
    links: tuple[str, ...]
    networks: tuple[str, ...] = ()


class NcclSetting(Record, frozen=True, kw_only=True):
    """An environment variable of NCCL, with one value.

    Args:
        name: Variable, for example ``NCCL_IB_HCA``.
        value: Its value.
        num_processes: Processes that print this value.
        ranks: Their ranks, as far as known.
        hosts: Their hosts.
        num_printing: Processes that print any value of it. A process may print several, for example
            one per communicator. Null if unknown.
    """

    name: str
    value: str
    num_processes: int
    ranks: tuple[int, ...]
    hosts: tuple[str, ...]
    num_printing: int | None = None


class NcclChoices(Record, frozen=True, kw_only=True):
    """NCCL's algorithm and protocol for an operation and its range of sizes, or only its calls.

    Args:
        operation: Operation, for example ``AllReduce``.
        algorithm: Algorithm, for example ``RING`` or ``NVLS``; empty if only calls are known.
        protocol: Protocol, for example ``LL128`` or ``SIMPLE``; empty as above.
        min_bytes: Smallest size for which it was chosen; null if not printed.
        max_bytes: Largest such size; null as above.
        num_calls: Calls.
    """

    operation: str
    algorithm: str
    protocol: str
    min_bytes: int | None
    max_bytes: int | None
    num_calls: int


class NcclWarnings(Record, frozen=True, kw_only=True):
    """Warnings that differ only in numbers.

    Args:
        text: The warning, with numbers left out.
        about: Subject, for example the network; empty if unknown.
        num_lines: Lines with this warning.
        ranks: Ranks that print it, as far as known.
        hosts: Their hosts.
    """

    text: str
    about: str
    num_lines: int
    ranks: tuple[int, ...]
    hosts: tuple[str, ...]


class NcclResult(Result, frozen=True, kw_only=True):
    """Contents of NCCL's logs.

    Args:
        is_missing: Whether the job uses NCCL but no log of it was read.
        num_files: Log files that were read.
        num_jobs: Sets of processes that share neither a file nor a communicator: more than one
            means logs of several jobs, or groups of one job that never meet.
        num_processes: Processes that wrote them.
        num_hosts: Hosts of these processes.
        num_lines: Lines in the files.
        num_texts: Messages of NCCL among them.
        num_unknown: Of these, messages that distprof does not recognise.
        num_cut: Of these, messages truncated by output of another rank.
        unknown: Examples of unrecognised messages.
        versions: Versions of NCCL, with the processes that print them.
        networks: Networks in use, for example ``IB`` or ``Socket``.
        missing_networks: Networks for which NCCL found no device.
        paths: Types of paths between GPUs according to NCCL's graph search, for example ``NVL``,
            ``PIX``.
        groups: Communicators, identical ones folded into one row.
        transports: How ranks are connected.
        hosts: Hosts with their network cards.
        settings: Environment variables of NCCL, each with its values.
        remarks: What NCCL says it can or cannot use: GPUDirect RDMA by network card, access between
            GPUs by the link that connects them.
        choices: Algorithm and protocol by operation and size.
        warnings: Warnings, identical ones folded into one row.
    """

    is_missing: bool = False
    num_files: int = 0
    num_jobs: int = 0
    num_processes: int = 0
    num_hosts: int = 0
    num_lines: int = 0
    num_texts: int = 0
    num_unknown: int = 0
    num_cut: int = 0
    unknown: tuple[str, ...] = ()
    versions: tuple[NcclSetting, ...] = ()
    networks: tuple[str, ...] = ()
    missing_networks: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    groups: tuple[NcclGroup, ...] = ()
    transports: tuple[NcclTransport, ...] = ()
    hosts: tuple[NcclHost, ...] = ()
    settings: tuple[NcclSetting, ...] = ()
    remarks: tuple[NcclSetting, ...] = ()
    choices: tuple[NcclChoices, ...] = ()
    warnings: tuple[NcclWarnings, ...] = ()


_NAMED_HOSTS = 4


def network_name(name: str) -> str:
    """What NCCL calls ``Socket``, in the words of a reader."""
    return "TCP sockets" if name == "Socket" else name


def different_networks(result: NcclResult) -> str:
    """For example ``IB on x1, TCP sockets on x0``; empty if all hosts of a job chose the same.

    Both ends of a connection need the same network.
    """
    chosen: dict[tuple[str, ...], list[str]] = {}
    for host in result.hosts:
        if host.networks:
            chosen.setdefault(host.networks, []).append(host.host)
    are_jobs = result.num_jobs > 1 and bool(result.groups)
    if len(chosen) < 2 or are_jobs or result.transports:
        return ""
    return ", ".join(
        f"{' and '.join(map(network_name, names))} on {', '.join(hosts[:_NAMED_HOSTS])}"
        for names, hosts in chosen.items()
    )
