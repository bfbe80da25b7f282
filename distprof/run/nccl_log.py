"""What NCCL's own logs tell of a job: communicators, rings, transports, settings, warnings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = [
    "NcclCard",
    "NcclChoice",
    "NcclCommunicator",
    "NcclEdge",
    "NcclLog",
    "NcclMember",
    "NcclProcess",
    "NcclWarning",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclProcess:
    """A process that wrote lines.

    Args:
        host: Host name as NCCL prints it.
        pid: Process id there.
        rank: Global rank; None where the log does not tell.
    """

    host: str
    pid: int
    rank: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclMember:
    """A rank of a communicator.

    Args:
        rank: In the communicator.
        process: Index of its process.
        device: Index of its GPU as the process counts them, None where not told.
        bus_id: PCI bus id, empty where not told.
        is_complete: Whether the log says that its initialisation ended.
    """

    rank: int
    process: int
    device: int | None = None
    bus_id: str = ""
    is_complete: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclCommunicator:
    """A communicator, or what is known of it.

    Args:
        name: Its id in the log (``commId``); of older versions, which print none, a number.
        num_ranks: Ranks that it has.
        members: Ranks that wrote of it, ascending.
        is_certain: Whether its members belong together for sure: ids say so, or there is only one
            communicator of that size.
        init_ns: Slowest initialisation that a member tells, None where none does.
        num_channels: For collectives, None where not told.
        num_nvls_channels: For NVLink SHARP, None where not told.
        rings: Ranks of each ring in order; only rings that the log holds completely.
        tree_depths: Of each tree that the log holds completely, steps from the root to the last.
        num_nodes: As NCCL counts them, None where not told.
    """

    name: str
    num_ranks: int
    members: tuple[NcclMember, ...] = ()
    is_certain: bool = True
    init_ns: int | None = None
    num_channels: int | None = None
    num_nvls_channels: int | None = None
    rings: tuple[tuple[int, ...], ...] = ()
    tree_depths: tuple[int, ...] = ()
    num_nodes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclEdge:
    """A connection between two ranks of a communicator, all its channels together.

    Args:
        communicator: Its index; None where that cannot be told.
        process: Index of the process that wrote of it.
        source: Rank that sends, in the communicator; None for a connection to a switch.
        target: Rank that receives; None for a connection to a switch.
        transport: For example ``P2P/CUMEM``, ``SHM``, ``NET/IB``, ``COLLNET/SHARP``.
        has_gdr: Whether the card reads and writes the GPU's memory itself.
        card: Index of the network card, None for other transports.
        direction: ``send`` or ``receive`` where both sides write of it, else empty.
        num_lines: Lines that tell of it, one per channel and side.
    """

    communicator: int | None
    process: int | None
    source: int | None
    target: int | None
    transport: str
    has_gdr: bool
    card: int | None
    direction: str
    num_lines: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclCard:
    """A network card that NCCL found.

    Args:
        host: Where.
        network: ``IB``, ``Socket`` or the plug-in's name.
        index: As transports name it.
        name: For example ``mlx5_0:1``.
        link: For example ``IB/SHARP``, ``RoCE``; empty for sockets.
    """

    host: str
    network: str
    index: int
    name: str
    link: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclChoice:
    """What NCCL chose for operations of one size, or calls of which no choice is logged.

    Args:
        operation: For example ``AllReduce``; empty where an old version does not say.
        num_bytes: Size; None for calls.
        algorithm: For example ``RING``; empty for calls.
        protocol: ``LL``, ``LL128`` or ``SIMPLE``; empty for calls.
        num_calls: Lines.
    """

    operation: str
    num_bytes: int | None
    algorithm: str
    protocol: str
    num_calls: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclWarning:
    """Warnings that differ in numbers only.

    Args:
        text: The first of them.
        about: ``teardown`` (processes end, harmless), ``fallback`` (NCCL goes on another way) or
            ``problem``.
        num_lines: How many.
        processes: Indexes of the processes.
    """

    text: str
    about: str
    num_lines: int
    processes: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclLog:
    """Everything that the logs tell.

    Args:
        files: Files read.
        processes: Processes that wrote.
        versions: Version to the indexes of the processes that say it; rank 0 only in old versions.
        settings: Name of an environment variable to value to indexes of processes.
        communicators: Communicators, in order of appearance.
        edges: Connections.
        cards: Network cards.
        missing_networks: Networks of which NCCL says that it found no device, to processes.
        networks: Networks that were chosen, to processes.
        links: Types of paths between GPUs by NCCL's graph search, for example ``NVL``, ``PIX``.
        choices: Algorithms and protocols.
        warnings: Warnings, most frequent first.
        num_lines: Lines read, of NCCL or not.
        num_bytes: Bytes read, unpacked.
        num_info: Texts marked INFO; a line may hold several where ranks wrote at once.
        num_warn: Texts marked WARN.
        num_unknown: Of these, texts that the reader does not know.
        num_cut: Of these, texts that other ranks' output cut off.
        unknown: Some of the unknown ones.
        notes: What was damaged or left out, one sentence each.
    """

    files: tuple[str, ...] = ()
    processes: tuple[NcclProcess, ...] = ()
    versions: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    settings: Mapping[str, Mapping[str, tuple[int, ...]]] = field(default_factory=dict)
    communicators: tuple[NcclCommunicator, ...] = ()
    edges: tuple[NcclEdge, ...] = ()
    cards: tuple[NcclCard, ...] = ()
    missing_networks: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    networks: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    links: tuple[str, ...] = ()
    choices: tuple[NcclChoice, ...] = ()
    warnings: tuple[NcclWarning, ...] = ()
    num_lines: int = 0
    num_bytes: int = 0
    num_info: int = 0
    num_warn: int = 0
    num_unknown: int = 0
    num_cut: int = 0
    unknown: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def world_size(self) -> int | None:
        """Ranks of the largest communicator; None without one."""
        return max((c.num_ranks for c in self.communicators), default=None)
