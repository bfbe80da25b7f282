"""NCCL's logs: how ranks are connected, inside nodes and between them, and with which settings.

Source: the texts of NCCL 2.4 to 2.28 and RCCL. Nothing is timed but the initialisation.
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
    """Communicators of one size that span as many hosts."""

    num_ranks: int
    num_communicators: int
    num_members: int  # that wrote a log, all communicators together
    num_hosts: int | None  # of one communicator; None where members cannot be told apart
    num_channels: int | None
    num_nvls_channels: int | None
    init_ns: int | None  # slowest of all
    num_rings: int  # that the log holds completely
    crossings: float | None  # mean times that such a ring passes from one host to another
    tree_depth: int | None  # deepest tree that the log holds completely


class NcclTransport(Record, frozen=True, kw_only=True):
    """One way in which ranks are connected."""

    where: str  # between nodes, inside nodes
    transport: str
    has_gdr: bool
    num_lines: int  # one per channel, and per side where both write
    num_pairs: int
    num_processes: int


class NcclHost(Record, frozen=True, kw_only=True):
    """A host: its processes and network cards."""

    host: str
    num_processes: int
    ranks: tuple[int, ...]
    cards: tuple[str, ...]
    used_cards: tuple[str, ...]  # empty also where no connection leaves the host
    links: tuple[str, ...]  # of the cards, for example IB/SHARP, RoCE


class NcclSetting(Record, frozen=True, kw_only=True):
    """An environment variable of NCCL, with one value."""

    name: str
    value: str
    num_processes: int
    ranks: tuple[int, ...]
    hosts: tuple[str, ...]


class NcclChoices(Record, frozen=True, kw_only=True):
    """What NCCL chose for an operation, sizes from least to most; or its calls alone."""

    operation: str
    algorithm: str
    protocol: str
    min_bytes: int | None
    max_bytes: int | None
    num_calls: int


class NcclWarnings(Record, frozen=True, kw_only=True):
    """Warnings that differ in numbers only."""

    text: str
    about: str
    num_lines: int
    ranks: tuple[int, ...]
    hosts: tuple[str, ...]


class NcclResult(Result, frozen=True, kw_only=True):
    """What the logs tell."""

    is_missing: bool = False  # the job uses NCCL, and no log of it was read
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
