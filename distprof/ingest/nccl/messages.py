"""Parse one log message of NCCL 2.4 to 2.28 or RCCL. Only this module knows upstream spellings."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache

import msgspec

from distprof.bounds import table_beside
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


class Version(msgspec.Struct, frozen=True):
    """``NCCL version 2.18.5+cuda12.2``."""

    text: str


class Setting(msgspec.Struct, frozen=True):
    """``NCCL_ALGO set by environment to RING``."""

    name: str
    value: str


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


class Network(msgspec.Struct, frozen=True):
    """The network that NCCL chose."""

    name: str


class Channels(msgspec.Struct, frozen=True):
    """Number of channels of a communicator."""

    collective: int
    nvls: int | None


class Nodes(msgspec.Struct, frozen=True):
    """Number of nodes that a communicator spans."""

    pointer: str
    num_nodes: int


class PathTypes(msgspec.Struct, frozen=True):
    """Type of links inside a node in one graph search."""

    inside: str


class Reach(msgspec.Struct, frozen=True):
    """Slowest path of a GPU to another, and fastest to a network card: GB/s and type of link.

    The type is empty for the speed of a card itself.
    """

    peer: tuple[float, str] | None
    card: tuple[float, str] | None


class Remark(msgspec.Struct, frozen=True):
    """What NCCL can or cannot use, and of what it says so."""

    name: str
    value: str


class Choice(msgspec.Struct, frozen=True):
    """The algorithm and protocol of one operation."""

    operation: str
    num_bytes: int
    algorithm: str
    protocol: str


class Call(msgspec.Struct, frozen=True):
    """One call of an operation."""

    operation: str


Event = (
    Marker | Version | Setting | Connection | Ring | Trees | Initialised | Timing | Cards | Network
    | Channels | Nodes | PathTypes | Reach | Remark | Choice | Call
)  # fmt: skip

Reader = Callable[[str], Event | None]

_N = r"(\d{1,9})"
_CONNECTION = re.compile(
    rf"(?:Channel|Ring) {_N}(?:/\d{{1,9}})? : {_N}(?:\[[0-9a-f]+\])? -> {_N}(?:\[[0-9a-f]+\])?"
    r" (?:\[(send|receive)\] )?via (.+?)(?: comm (0x[0-9a-f]+) nRanks \d+)?$"
)
_SWITCH = re.compile(rf"CollNet {_N}(?:/\d{{1,9}})? : {_N} \[(send|receive)\] via (.+)$")
_NET = re.compile(rf"(NET|COLLNET)/([^/]{{1,60}})/{_N}(?:\(\d+\))?((?:/[\w]+)*)$")
_INSIDE = re.compile(r"(?:P2P|SHM|MNNVL|NVLS)(?:/[\w+ ]+(?:\[[0-9a-f]+\])?)*$")
_DIRECT_SHM = re.compile(r"direct shared memory$")
_RING = re.compile(rf"Channel {_N}/\d{{1,9}}(?: :)?((?: +\d{{1,9}})+)$")
_TREE = re.compile(
    r"\[(\d{1,9})\] (?:-?\d{1,9}/)*-?\d{1,9}->(\d{1,9})->(-?\d{1,9})(?:\|[-\d/>]{1,200})?(?= |$)"
)
_TREES = re.compile(r"Trees (?:\[\d{1,9}\] [-\d/>|]{1,300} ?)+(?:\[\d{0,9}\]?)?(comm 0x.{0,200})?$")
_LINE_BUFFER = 900
"""NCCL formats trees in a buffer of 1,024 characters and cuts longer messages."""
_INIT = re.compile(
    rf"(?:\w+ )?comm (0x[0-9a-f]+) rank {_N} n[rR]anks {_N}(?: cudaDev {_N})?(?: nvmlDev \d+)?"
    r"(?: busId ([0-9a-f]+))?(?: commId (0x[0-9a-f]+))?(?: localSize.{0,80}?)?"
    r" - ((?:Init|Destroy|Abort) \w+)$"
)
_TIMING = re.compile(
    rf"Init timings(?: - \w+)?: rank {_N} nranks {_N} total (\d{{1,9}}\.\d{{1,9}}) \(.+\)$"
)
_OLD_INIT = re.compile(
    rf"(?:\w+ )?(?:comm 0x[0-9a-f]+ )?rank {_N} n[rR]anks {_N}(?: cudaDev \d+)?(?: nvmlDev \d+)?"
    r"(?: b\w{0,5}(?: [0-9a-f]{0,8})?)?$"
)
"""As NCCL 2.3 writes it, or cut off."""

_SETTING = re.compile(r"(\w{3,80}) set (?:by environment )?to (.{0,2000}?)\.?$")
_CARDS = re.compile(r"NET/(\w{1,40}) ?: Using (\[\d+\].+)$")
_IB_CARD = re.compile(r"\[(\d{1,6})\]([^\s/\[\]]{1,100})/([\w/]{1,40})")
_SOCKET_CARD = re.compile(r"\[(\d{1,6})\]([^\s:\[\]]{1,40}):\S+")
_NO_CARDS = re.compile(r"NET/(\w{1,40}) ?: No device found\.?$")
_NETWORK = re.compile(r"Using (?:network|internal Network) (.{1,60})$")
_CHANNELS = re.compile(
    rf"{_N} coll channels,(?: \d+ collnet channels,)?(?: {_N} nvls channels,)? \d+ p2p channels,"
    r" \d+ p2p channels per peer$"
)
_NODES = re.compile(rf"comm (0x[0-9a-f]+) rank \d+ nRanks \d+ nNodes {_N} .*MNNVL \d+$")
_PATHS = re.compile(r"Pattern \d+, crossNic \d+, nChannels \d+.* type (\w+)/(\w+)")
_FROM_GPU = re.compile(r"GPU/[\w-]{1,40} ?:(.{1,8000})")
_PATH = re.compile(r"(GPU|NET)/[\w-]{1,40} \(\d{1,3}/(\d{1,5}(?:\.\d{1,9})?)/(\w{2,5})\)")
_LINK = re.compile(r"[ +]*\+ ?(NVL|XGMI|C2C)\[(\d{1,5}(?:\.\d{1,9})?)\] - (?:GPU|NVS)/")
_CARD = re.compile(r"[ +]*\+ ?NET\[[\d.]+\] - NET/\S{1,40} \([^\s()]{1,60}/(\d{1,5}\.\d{1,9})\)")
_GDR = re.compile(
    r"(?:NET/\w{1,40} ?: )?GPU Direct RDMA (Enabled|Disabled) for (?:GPU \S{1,40} / )?"
    r"HCA (\S{1,60})(?: '([^']{1,60})')?"
)
_PEER_FAILED = re.compile(rf"Could not enable P2P between dev {_N}\(=\w+\) and dev {_N}\b")
_PEER_OFF = re.compile(rf"P2P is disabled between ((?:NVLINK )?)connected GPUs {_N} and {_N}\b")
_CHOICE = re.compile(r"(?:(\w+): )?(\d{1,18}) Bytes -> Algo (\w+) proto (\w+)\b")
_CALL = re.compile(
    r"(\w+): opCount [0-9a-f]+ .*comm (?:0x)?[0-9a-f]+ .*stream=? ?(?:0x)?[0-9a-f()nil]+"
)
_VERSION = re.compile(r"(?:NCCL|RCCL) version ?:? (\d[\w.]*(?:[+-][\w.:]+)?)")
_ALGORITHMS = ("TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT")
_PROTOCOLS = ("LL", "LL128", "SIMPLE")


def parse(text: str) -> Event:
    """The event of a text after ``NCCL INFO``, or from ``NCCL version`` on."""
    for begin, how in _READERS:
        if begin in text:
            event = how(text)
            if event is not None:
                return event
    if not text:
        return CUT
    begins = _beginnings()
    if begins["noise"].match(text):
        return KNOWN
    return CUT if begins["beginnings"].match(text) else UNKNOWN


def _connection(text: str) -> Event | None:
    match = _CONNECTION.match(text)
    if match is None:
        return _switch(text)
    transport = _transport(match[5])
    if transport is None:
        return CUT
    name, card, has_gdr = transport
    return Connection(
        int(match[2]), int(match[3]), match[4] or "", name, card, has_gdr, match[6] or ""
    )


def _switch(text: str) -> Event | None:
    match = _SWITCH.match(text)
    transport = _transport(match[4]) if match else None
    if match is None or transport is None:
        return None
    rank, is_send = int(match[2]), match[3] == "send"
    name, card, has_gdr = transport
    source, target = (rank, None) if is_send else (None, rank)
    return Connection(source, target, match[3], name, card, has_gdr, "")


def _transport(text: str) -> tuple[str, int | None, bool] | None:
    """Name, card and use of GPUDirect of a transport; None if the text is not a transport."""
    net = _NET.match(text)
    if net:
        return f"{net[1]}/{net[2]}", int(net[3]), "/GDRDMA" in net[4]
    if _DIRECT_SHM.match(text):
        return "SHM", None, False
    if _INSIDE.match(text) is None:
        return None
    return ("SHM" if text.startswith("SHM") else text), None, False


def _trees(text: str) -> Event | None:
    match = _TREES.match(text)
    if match is None:
        return None
    places = tuple((int(m[1]), int(m[2]), int(m[3])) for m in _TREE.finditer(text))
    is_cut = len(text) > _LINE_BUFFER and match[1] is None
    return Trees(places[:-1] if is_cut else places)


def _initialised(text: str) -> Event | None:
    match = _INIT.match(text)
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


def _timing(match: re.Match[str]) -> Event:
    whole, _, part = match[3].partition(".")
    total_ns = int(whole) * NS_PER_S + int(part[:9].ljust(9, "0"))
    return Timing(int(match[1]), int(match[2]), total_ns)


def _cards(text: str) -> Event | None:
    none = _NO_CARDS.match(text)
    if none:
        return Cards(none[1], ())
    match = _CARDS.match(text)
    if match is None:
        return None
    listed = match[2].partition("; OOB ")[0]
    if match[1] == "Socket":
        cards = tuple((int(i), n, "") for i, n in _SOCKET_CARD.findall(listed))
    else:
        cards = tuple((int(i), n, link) for i, n, link in _IB_CARD.findall(listed))
    return Cards(match[1], cards) if cards else CUT


def _reach(match: re.Match[str]) -> Event | None:
    paths = [(what, float(speed), kind) for what, speed, kind in _PATH.findall(match[1])]
    peers = [(speed, kind) for what, speed, kind in paths if what == "GPU" and kind != "LOC"]
    cards = [(speed, kind) for what, speed, kind in paths if what == "NET"]
    return Reach(min(peers, default=None), max(cards, default=None)) if paths else None


def _named(word: str, names: tuple[str, ...]) -> str:
    """The name of a choice, which newer versions print as a name and older ones as a number."""
    if word.isdecimal():
        return names[int(word)] if len(word) < 3 and int(word) < len(names) else word
    return word.upper()


def _of(pattern: re.Pattern[str], make: Callable[[re.Match[str]], Event | None]) -> Reader:
    """The reader of messages that a pattern matches as a whole."""

    def read(text: str) -> Event | None:
        match = pattern.match(text)
        return make(match) if match else None

    return read


_READERS: tuple[tuple[str, Reader], ...] = (
    (" via ", _connection),
    ("GPU/", _of(_FROM_GPU, _reach)),
    (": opCount ", _of(_CALL, lambda m: Call(m[1]))),
    ("Channel ", _of(_RING, lambda m: Ring(int(m[1]), tuple(map(int, m[2].split()))))),
    ("Trees ", _trees),
    (" COMPLETE", _initialised),
    ("Init START", _initialised),
    ("Init timings", _of(_TIMING, _timing)),
    (
        "anks ",
        _of(
            _OLD_INIT,
            lambda m: (
                Initialised("", int(m[1]), int(m[2]), None, "", "", "")
                if int(m[1]) < int(m[2])
                else None
            ),
        ),
    ),
    *(
        (begin, _of(_SETTING, lambda m: Setting(m[1], m[2])))
        for begin in (" set by environment to ", "_IFNAME set to ", "_HCA set to ")
    ),
    (
        "GPU Direct RDMA ",
        _of(
            _GDR,
            lambda m: Remark(
                NcclRemark.GDR_ON if m[1] == "Enabled" else NcclRemark.GDR_OFF, m[3] or m[2]
            ),
        ),
    ),
    (
        "Could not enable P2P between ",
        _of(_PEER_FAILED, lambda _: Remark(NcclRemark.PEER_OFF, "refused")),
    ),
    (
        "P2P is disabled between ",
        _of(_PEER_OFF, lambda m: Remark(NcclRemark.PEER_OFF, "NVLink" if m[1] else "PCIe")),
    ),
    ("NET/", _cards),
    ("Using network ", _of(_NETWORK, lambda m: Network(m[1]))),
    ("Using internal Network ", _of(_NETWORK, lambda m: Network(m[1]))),
    ("coll channels", _of(_CHANNELS, lambda m: Channels(int(m[1]), int(m[2]) if m[2] else None))),
    ("nNodes", _of(_NODES, lambda m: Nodes(m[1], int(m[2])))),
    ("Pattern ", _of(_PATHS, lambda m: PathTypes(m[1]))),
    ("+ ", _of(_LINK, lambda m: Reach((float(m[2]), m[1]), None))),
    ("+ ", _of(_CARD, lambda m: Reach(None, (float(m[1]), "")))),
    (
        " Bytes -> Algo",
        _of(
            _CHOICE,
            lambda m: Choice(
                m[1] or "", int(m[2]), _named(m[3], _ALGORITHMS), _named(m[4], _PROTOCOLS)
            ),
        ),
    ),
    ("CCL version", _of(_VERSION, lambda m: Version(m[1]))),
)


@cache
def _beginnings() -> dict[str, re.Pattern[str]]:
    """Of messages that are not needed (``noise``), and of known ones: ``messages.toml``."""
    return {
        name: re.compile("|".join(each))
        for name, each in table_beside(__package__, "messages.toml").items()
    }
