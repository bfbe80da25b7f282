"""NCCL's logs: connections between ranks inside and between nodes, and NCCL's settings.

Source: the messages of NCCL 2.4 to 2.28 and RCCL. Only the initialisation is timed.
"""

from __future__ import annotations

import re

from distprof.artefacts.record import Record, grouped
from distprof.bounds import table_beside
from distprof.sections.base import Result

SAYS = table_beside(__package__, "says.toml")
"""Sentences of verdicts, by name."""

BETWEEN = "between nodes"
INSIDE = "inside nodes"
NO_LOG = "no NCCL log was read: run with NCCL_DEBUG=INFO"


class NcclGroup(Record, frozen=True, kw_only=True):
    """Communicators of the same size that span the same number of hosts."""

    num_ranks: int  # Ranks of one communicator.
    num_communicators: int  # Communicators of this size and span.
    num_members: int  # Members that wrote a log, all communicators together.
    # Hosts that one communicator spans; null if members cannot be distinguished.
    num_hosts: int | None
    num_channels: int | None  # Channels; null if not printed.
    num_nvls_channels: int | None  # Channels of NVLink SHARP; null if not printed.
    init_ns: int | None  # Longest initialisation time; null if not printed.
    num_rings: int  # Rings that the log holds completely.
    # Mean number of times that a ring passes from one host to another; null without rings.
    crossings: float | None
    # Depth of the deepest tree that the log holds completely; null without one.
    tree_depth: int | None


class NcclTransport(Record, frozen=True, kw_only=True):
    """One kind of connection between ranks."""

    where: str  # ``between nodes`` or ``inside nodes``.
    transport: str  # NCCL's transport, for example ``P2P/CUMEM``, ``SHM``, ``NET/IB``.
    has_gdr: bool  # Whether the network card reads GPU memory directly (GPUDirect RDMA).
    num_lines: int  # Log lines that report it: one per channel, or two if both sides write one.
    num_connections: int  # Channels between ranks, each counted once.
    num_pairs: int  # Pairs of ranks.
    num_processes: int  # Processes that print it.
    hosts: tuple[str, ...] = ()  # Their hosts.

    @property
    def is_rdma(self) -> bool:
        """Whether network cards move the data without the operating system."""
        return bool(re.match(r"NET/(?!.*(?:Socket$|FasTrak|TCPX))", self.transport))


def has_gdr_at_one_end(ways: list[NcclTransport]) -> bool:
    """Whether each connection has one end with GPUDirect RDMA and one without."""
    half = [way.num_lines for way in ways if way.has_gdr and not way.num_connections]
    return 0 < 2 * sum(half) == sum(way.num_lines for way in ways)


class NcclHost(Record, frozen=True, kw_only=True):
    """A host: its processes and network cards."""

    host: str  # Host name.
    num_processes: int  # Processes on it that wrote a log.
    ranks: tuple[int, ...]  # Their ranks, as far as known.
    cards: tuple[str, ...]  # Network cards that NCCL found.
    # Cards that carry connections; also empty if no connection leaves the host.
    used_cards: tuple[str, ...]
    links: tuple[str, ...]  # Link types of the cards, for example ``IB/SHARP`` or ``RoCE``.
    # Networks that its processes chose, for example ``IB`` or ``Socket``.
    networks: tuple[str, ...] = ()


class NcclSetting(Record, frozen=True, kw_only=True):
    """An environment variable of NCCL, with one value."""

    name: str  # Variable, for example ``NCCL_IB_HCA``.
    value: str  # Its value.
    num_processes: int  # Processes that print this value.
    ranks: tuple[int, ...]  # Their ranks, as far as known.
    hosts: tuple[str, ...]  # Their hosts.
    # Processes that print any value of it. A process may print several, for example one per
    # communicator. Null if unknown.
    num_printing: int | None = None


class NcclChoices(Record, frozen=True, kw_only=True):
    """NCCL's algorithm and protocol for an operation and its range of sizes, or only its calls."""

    operation: str  # Operation, for example ``AllReduce``.
    algorithm: str  # Algorithm, for example ``RING`` or ``NVLS``; empty if only calls are known.
    protocol: str  # Protocol, for example ``LL128`` or ``SIMPLE``; empty as above.
    min_bytes: int | None  # Smallest size for which it was chosen; null if not printed.
    max_bytes: int | None  # Largest such size; null as above.
    num_calls: int  # Calls.


class NcclWarnings(Record, frozen=True, kw_only=True):
    """Warnings that differ only in numbers."""

    text: str  # The warning, with numbers left out.
    about: str  # Subject, for example the network; empty if unknown.
    num_lines: int  # Lines with this warning.
    ranks: tuple[int, ...]  # Ranks that print it, as far as known.
    hosts: tuple[str, ...]  # Their hosts.


class NcclResult(Result, frozen=True, kw_only=True):
    """Contents of NCCL's logs."""

    is_missing: bool = False  # Whether the job uses NCCL but no log of it was read.
    num_files: int = 0  # Log files that were read.
    # Sets of processes that share neither a file nor a communicator: more than one means logs of
    # several jobs, or groups of one job that never meet.
    num_jobs: int = 0
    num_processes: int = 0  # Processes that wrote them.
    num_hosts: int = 0  # Hosts of these processes.
    num_lines: int = 0  # Lines in the files.
    num_texts: int = 0  # Messages of NCCL among them.
    num_unknown: int = 0  # Of these, messages that distprof does not recognise.
    num_cut: int = 0  # Of these, messages truncated by output of another rank.
    unknown: tuple[str, ...] = ()  # Examples of unrecognised messages.
    versions: tuple[NcclSetting, ...] = ()  # Versions of NCCL, with the processes that print them.
    networks: tuple[str, ...] = ()  # Networks in use, for example ``IB`` or ``Socket``.
    missing_networks: tuple[str, ...] = ()  # Networks for which NCCL found no device.
    # Types of paths between GPUs according to NCCL's graph search, for example ``NVL``, ``PIX``.
    paths: tuple[str, ...] = ()
    # Slowest path between GPUs in NCCL's topology: GB/s and type; null if not printed.
    peer_path: tuple[float, str] | None = None
    # Path of the GPU farthest from its nearest network card: GB/s and type; null if not printed.
    card_path: tuple[float, str] | None = None
    tested: str = ""  # What nccl-tests measured, if its output is in the same file.
    num_test_hosts: int | None = None  # Hosts that nccl-tests lists there, or a line names.
    groups: tuple[NcclGroup, ...] = ()  # Communicators, identical ones folded into one row.
    transports: tuple[NcclTransport, ...] = ()  # How ranks are connected.
    hosts: tuple[NcclHost, ...] = ()  # Hosts with their network cards.
    settings: tuple[NcclSetting, ...] = ()  # Environment variables of NCCL, each with its values.
    # What NCCL says it can or cannot use: GPUDirect RDMA by network card, access between GPUs by
    # the link that connects them.
    remarks: tuple[NcclSetting, ...] = ()
    choices: tuple[NcclChoices, ...] = ()  # Algorithm and protocol by operation and size.
    warnings: tuple[NcclWarnings, ...] = ()  # Warnings, identical ones folded into one row.

    @property
    def is_on_one_host(self) -> bool:
        """Whether the largest communicator is known to be on one host, which needs no network."""
        if not self.groups or self.num_jobs > 1:
            return self.num_test_hosts == 1 and self.num_hosts < 2
        largest = self.groups[0]
        is_whole = self.num_hosts == 1 and self.num_processes >= largest.num_ranks
        return largest.num_hosts in (1, *[None, largest.num_ranks] * is_whole)  # a rank without SHM

    @property
    def has_several_hosts(self) -> bool:
        """Whether a line shows more than one host: of NCCL, its communicators or nccl-tests."""
        shown = [group.num_hosts for group in self.groups if not self.is_on_one_host]
        return max(num or 0 for num in (self.num_hosts, self.num_test_hosts, *shown)) > 1


_NAMED_HOSTS = 4


def network_name(name: str) -> str:
    """What NCCL calls ``Socket``, in the words of a reader."""
    return "TCP sockets" if name == "Socket" else name


def is_of_one_host(card: str) -> bool:
    """Whether an interface connects only what runs on its host, for example Docker's bridge."""
    return re.match(SAYS["of_one_host"], card) is not None


def why_not_fast(result: NcclResult) -> str:
    """The log's reason why NCCL uses sockets; empty if it gives none."""
    said = [warning.text for warning in result.warnings]
    said += [f"{setting.name}={setting.value}" for setting in (*result.settings, *result.remarks)]
    said += [f"no IB by {text}" for text in said if "IB" in result.missing_networks]
    said += [f"no device of {network}" for network in result.missing_networks]
    said += [f"card {card}" for host in result.hosts for card in host.cards]
    rows = ((re.search(row, text), why) for row, why in SAYS["slow"].items() for text in said)
    return next((str(why).format(*found.groups()) for found, why in rows if found), "")


def over_cards(result: NcclResult) -> str:
    """For example `` over eth0 and eth1``; empty if no card of the chosen network is known."""
    cards = [*dict.fromkeys(card for h in result.hosts if h.networks for card in h.cards)]
    cards = [card for card in cards if not re.match(SAYS["slow_provider"], card)]
    named = cards if len(cards) <= _NAMED_HOSTS else [cards[0], f"{len(cards) - 1} more"]
    kinds = sorted({link.partition("/")[0] for host in result.hosts for link in host.links})
    kind = f" ({' and '.join(kinds)})" if "RoCE" in kinds else ""
    return f" over {' and '.join(named)}{kind}" if cards else ""


def different_networks(result: NcclResult) -> str:
    """For example ``IB on x1, TCP sockets on x0``; empty if all hosts of a job chose the same.

    Both ends of a connection need the same network.
    """
    chosen = grouped([(host.networks, host.host) for host in result.hosts if host.networks])
    are_jobs = result.num_jobs > 1 and bool(result.groups)
    if len(chosen) < 2 or are_jobs or result.transports:
        return ""
    return ", ".join(
        f"{' and '.join(map(network_name, names))} on {', '.join(hosts[:_NAMED_HOSTS])}"
        for names, hosts in chosen.items()
    )
