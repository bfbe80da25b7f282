"""Parse one log message of NCCL 2.4 to 2.28 or RCCL. Only this module knows upstream spellings."""

from __future__ import annotations

import re
from collections.abc import Callable

import msgspec

from distprof.bounds import patterns_beside
from distprof.terms import NcclRemark
from distprof.units import NS_PER_S


class Marker(msgspec.Struct, frozen=True):
    """A message without further content."""

    name: str


KNOWN = Marker("known")
"""Known, but not needed in a report."""
UNKNOWN = Marker("unknown")
CUT = Marker("cut")
"""Begins like a known message, but is cut off."""


class Fact(msgspec.Struct, frozen=True):
    """What a process says of itself, and the network in use if the message names it."""

    of: str  # ``versions``, ``networks``, ``settings`` or ``remarks``.
    name: str  # Of a variable, or a :class:`~distprof.terms.NcclRemark`.
    value: str
    network: str = ""


class Connection(msgspec.Struct, frozen=True):
    """One channel from a rank to another; a rank is None for a switch."""

    source: int | None
    target: int | None
    direction: str
    transport: str
    card: int | None
    has_gdr: bool
    pointer: str


class Ring(msgspec.Struct, frozen=True):
    """The ranks of a ring in order."""

    channel: int
    ranks: tuple[int, ...]


class Trees(msgspec.Struct, frozen=True):
    """A rank's place in each tree: channel, rank, rank above it (-1 for the root)."""

    places: tuple[tuple[int, int, int], ...]


class Initialised(msgspec.Struct, frozen=True):
    """Start or end of a communicator on one rank; ``what`` is NCCL's term for the event."""

    pointer: str
    rank: int
    num_ranks: int
    device: int | None
    bus_id: str
    identity: str
    what: str


class Timing(msgspec.Struct, frozen=True):
    """Initialisation time of a rank."""

    rank: int
    num_ranks: int
    total_ns: int


class Cards(msgspec.Struct, frozen=True):
    """Cards of a network: index, name, link; empty if NCCL found no device."""

    network: str
    cards: tuple[tuple[int, str, str], ...]


class Channels(msgspec.Struct, frozen=True):
    """Number of channels of a communicator."""

    collective: int
    nvls: int | None


class Nodes(msgspec.Struct, frozen=True):
    """Number of nodes that a communicator spans."""

    pointer: str
    num_nodes: int


class Reach(msgspec.Struct, frozen=True):
    """Slowest path of a GPU to another, and fastest to a network card: GB/s and type of link.

    The type is empty for the speed of a card itself. A graph search names only a type, of GPUs.
    """

    peer: tuple[float, str] | None
    card: tuple[float, str] | None
    inside: str = ""
    rings: str = ""  # Channels that the search found for rings.


class Choice(msgspec.Struct, frozen=True):
    """One call of an operation, with its algorithm and protocol if the message names them."""

    operation: str
    num_bytes: int | None = None
    algorithm: str = ""
    protocol: str = ""


Event = (
    Marker | Fact | Connection | Ring | Trees | Initialised | Timing | Cards
    | Channels | Nodes | Reach | Choice
)  # fmt: skip

Reader = Callable[[str], Event | None]

_PATTERNS = patterns_beside(__package__, "messages.toml")
_LINE_BUFFER = 900
"""NCCL formats trees in a buffer of 1,024 characters and cuts longer messages."""

_ALGORITHMS = ("TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT")
_GDR = {"Enabled": NcclRemark.GDR_ON, "Disabled": NcclRemark.GDR_OFF}
_LINKS = {"NVLINK ": "NVLink", "": "PCIe"}
_PROTOCOLS = ("LL", "LL128", "SIMPLE")


def parse(text: str) -> Event:
    """The event of a text after ``NCCL INFO``, or from ``NCCL version`` on."""
    text = text.rstrip(" │┃║")  # of a terminal that is split into panes
    for begin, how in _READERS:
        if begin in text:
            event = how(text)
            if event is not None:
                return event
    if not text:
        return CUT
    if _PATTERNS["noise"].match(text):
        return KNOWN
    return CUT if _PATTERNS["beginnings"].match(text) else UNKNOWN


def _connection(text: str) -> Event | None:
    match = _PATTERNS["connection"].match(text)
    if match is None:
        return _switch(text)
    transport = _transport(match[5])
    if transport is None:
        return CUT
    return Connection(int(match[2]), int(match[3]), match[4] or "", *transport, match[6] or "")


def _switch(text: str) -> Event | None:
    match = _PATTERNS["switch"].match(text)
    transport = _transport(match[4]) if match else None
    if match is None or transport is None:
        return None
    rank, is_send = int(match[2]), match[3] == "send"
    source, target = (rank, None) if is_send else (None, rank)
    return Connection(source, target, match[3], *transport, "")


def _transport(text: str) -> tuple[str, int | None, bool] | None:
    """Name, card and use of GPUDirect of a transport; None if the text is not a transport."""
    net = _PATTERNS["net"].match(text)
    if net:
        return f"{net[1]}/{net[2]}", int(net[3]), "/GDRDMA" in net[4]
    if _PATTERNS["inside"].match(text) is None:
        return None
    return ("SHM" if text.startswith(("SHM", "direct")) else text), None, False


def _trees(text: str) -> Event | None:
    match = _PATTERNS["trees"].match(text)
    if match is None:
        return None
    places = tuple((int(m[1]), int(m[2]), int(m[3])) for m in _PATTERNS["tree"].finditer(text))
    is_cut = len(text) > _LINE_BUFFER and match[1] is None
    return Trees(places[:-1] if is_cut else places)


def _initialised(text: str) -> Event | None:
    match = _PATTERNS["init"].match(text)
    if match is None:
        return None
    pointer, rank, num_ranks, device, bus_id, identity, what = match.groups()
    if int(rank) >= int(num_ranks):
        return CUT
    return Initialised(
        pointer,
        int(rank),
        int(num_ranks),
        None if device is None else int(device),
        bus_id or "",
        identity or "",
        what,
    )


def _old_initialised(match: re.Match[str]) -> Event | None:
    rank, num_ranks = int(match[1]), int(match[2])
    return Initialised("", rank, num_ranks, None, "", "", "") if rank < num_ranks else None


def _cards(text: str) -> Event | None:
    none = _PATTERNS["no_cards"].match(text)
    if none:
        return Cards(none[1], ())
    match = _PATTERNS["cards"].match(text)
    if match is None:
        return None
    listed = match[2].partition("; OOB ")[0]
    if match[1] == "Socket":
        cards = tuple((int(i), n, "") for i, n in _PATTERNS["socket_card"].findall(listed))
    else:
        cards = tuple((int(i), n, link) for i, n, link in _PATTERNS["ib_card"].findall(listed))
    return Cards(match[1], cards) if cards else CUT


def _reach(match: re.Match[str]) -> Event | None:
    found = _PATTERNS["path"].findall(match[1])
    paths = [(what, float(speed), kind) for what, speed, kind in found]
    peers = [(speed, kind) for what, speed, kind in paths if what == "GPU" and kind != "LOC"]
    cards = [(speed, kind) for what, speed, kind in paths if what == "NET"]
    return Reach(min(peers, default=None), max(cards, default=None)) if paths else None


def _searched(match: re.Match[str]) -> Event:
    """What NCCL's graph search found, with the speed of each ring between nodes."""
    rings = f"{match[1]} × {float(match[2]):.3g} GB/s" if match[1] else ""
    return Reach(None, None, match[3], rings)


def _choice(match: re.Match[str]) -> Event:
    algorithm, protocol = _named(match[3], _ALGORITHMS), _named(match[4], _PROTOCOLS)
    return Choice(match[1] or "", int(match[2]), algorithm, protocol)


def _named(word: str, names: tuple[str, ...]) -> str:
    """The name of a choice, which newer versions print as a name and older ones as a number."""
    if word.isdecimal():
        return names[int(word)] if len(word) < 3 and int(word) < len(names) else word
    return word.upper()


def _remark(name: str, value: str, network: str | None = None) -> Fact:
    return Fact("remarks", name, value, network or "")


def _of(pattern: str, make: Callable[[re.Match[str]], Event | None]) -> Reader:
    """The reader of messages that the pattern of that name matches."""

    def read(text: str) -> Event | None:
        match = _PATTERNS[pattern].match(text)
        return make(match) if match else None

    return read


_READERS: tuple[tuple[str, Reader], ...] = (
    (" via ", _connection),
    ("GPU/", _of("from_gpu", _reach)),
    (": opCount ", _of("call", lambda m: Choice(m[1]))),
    ("Channel ", _of("ring", lambda m: Ring(int(m[1]), tuple(map(int, m[2].split()))))),
    ("Trees ", _trees),
    (" COMPLETE", _initialised),
    ("Init START", _initialised),
    (
        "Init timings",
        _of("timing", lambda m: Timing(int(m[1]), int(m[2]), round(float(m[3]) * NS_PER_S))),
    ),
    ("anks ", _of("old_init", _old_initialised)),
    *(
        (begin, _of("setting", lambda m: Fact("settings", m[1], m[2])))
        for begin in (" set by environment to ", "_IFNAME set to ", "_HCA set to ")
    ),
    ("GPU Direct RDMA ", _of("socket_gdr", lambda m: Cards("Socket", ((int(m[1]), m[2], ""),)))),
    ("GPU Direct RDMA ", _of("gdr", lambda m: _remark(_GDR[m[2]], m[4] or m[3], m[1]))),
    ("NET/OFI ", _of("ofi", lambda m: _remark(NcclRemark.PLUGIN, m[1] or f"filter {m[2]}"))),
    ("NET/OFI ", _of("ofi_failed", lambda _: Cards("Libfabric", ()))),
    ("NET/OFI ", _of("ofi_gdr", lambda _: _remark(NcclRemark.GDR_OFF, "Libfabric"))),
    ("libibverbs", _of("no_verbs", lambda m: _remark(NcclRemark.NO_VERBS, m[0]))),
    (" P2P ", _of("no_peers", lambda _: _remark(NcclRemark.PEER_OFF, "refused"))),
    ("P2P is disabled ", _of("peer_off", lambda m: _remark(NcclRemark.PEER_OFF, _LINKS[m[1]]))),
    ("NET/OFI S", _of("slow_provider", lambda m: Cards("Socket", ((0, m[1], ""),)))),
    ("NET/OFI S", _of("provider", lambda m: Cards("Libfabric", ((0, m[1], ""),)))),
    ("NET/", _cards),
    ("Using ", _of("network", lambda m: Fact("networks", "", m[1]))),
    ("coll channels", _of("channels", lambda m: Channels(int(m[1]), int(m[2]) if m[2] else None))),
    ("nNodes", _of("nodes", lambda m: Nodes(m[1], int(m[2])))),
    ("Pattern ", _of("paths", _searched)),
    ("max_link_", _of("no_speed", lambda m: _remark(NcclRemark.NO_SPEED, m[1]))),
    ("+ PCI[0", _of("no_rate", lambda m: _remark(NcclRemark.NO_RATE, m[1]))),
    ("+ ", _of("link", lambda m: Reach((float(m[2]), m[1]), None))),
    ("+ ", _of("card", lambda m: Reach(None, (float(m[1]), "")))),
    (" Bytes -> Algo", _of("choice", _choice)),
    ("CCL version", _of("version", lambda m: Fact("versions", "", m[1]))),
)
