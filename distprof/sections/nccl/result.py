"""NCCL's logs: connections between ranks inside and between nodes, and NCCL's settings.

Source: the messages of NCCL 2.4 to 2.28 and RCCL. Only the initialisation is timed.
"""

from __future__ import annotations

from distprof.schema import Record
from distprof.sections.base import Result

__all__ = [
    "NcclChoices",
    "NcclGroup",
    "NcclHost",
    "NcclResult",
    "NcclSetting",
    "NcclTransport",
    "NcclWarnings",
]


class NcclGroup(Record, frozen=True, kw_only=True):
    """Communicators of one size that span the same number of hosts."""

    num_ranks: int
    num_communicators: int
    num_members: int  # that wrote a log, all communicators together
    num_hosts: int | None  # of one communicator; None if members cannot be distinguished
    num_channels: int | None
    num_nvls_channels: int | None
    init_ns: int | None  # slowest of all
    num_rings: int  # that the log holds completely
    crossings: float | None  # how often a complete ring passes from one host to another, mean
    tree_depth: int | None  # deepest tree that is complete in the log


class NcclTransport(Record, frozen=True, kw_only=True):
    """One kind of connection between ranks."""

    where: str  # between nodes, inside nodes
    transport: str
    has_gdr: bool
    num_lines: int  # one per channel, and per side if both sides log it
    num_pairs: int
    num_processes: int


class NcclHost(Record, frozen=True, kw_only=True):
    """A host: its processes and network cards."""

    host: str
    num_processes: int
    ranks: tuple[int, ...]
    cards: tuple[str, ...]
    used_cards: tuple[str, ...]  # also empty if no connection leaves the host
    links: tuple[str, ...]  # of the cards, for example IB/SHARP, RoCE


class NcclSetting(Record, frozen=True, kw_only=True):
    """An environment variable of NCCL, with one value."""

    name: str
    value: str
    num_processes: int
    ranks: tuple[int, ...]
    hosts: tuple[str, ...]


class NcclChoices(Record, frozen=True, kw_only=True):
    """NCCL's choices for an operation, with its smallest and largest size; or only its calls."""

    operation: str
    algorithm: str
    protocol: str
    min_bytes: int | None
    max_bytes: int | None
    num_calls: int


class NcclWarnings(Record, frozen=True, kw_only=True):
    """Warnings that differ only in numbers."""

    text: str
    about: str
    num_lines: int
    ranks: tuple[int, ...]
    hosts: tuple[str, ...]


class NcclResult(Result, frozen=True, kw_only=True):
    """Contents of NCCL's logs."""

    is_missing: bool = False  # the job uses NCCL, but no log was read
    num_files: int = 0
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
    choices: tuple[NcclChoices, ...] = ()
    warnings: tuple[NcclWarnings, ...] = ()
