"""GPUs and links by name: ``gpus.toml`` and ``links.toml``, and the user's additions.

``xids.toml`` has the errors of NVIDIA's driver by number.

::

    sheet = load_sheet()
    sheet.gpu("h100").bf16_flops      # 989e12, dense
    sheet.link("ndr").bandwidth       # 50e9 B/s, one direction

Source:
    Formula sheet, "Hardware".
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, TypeVar

import msgspec

from distprof.bounds import table_beside
from distprof.errors import UsageError

SCALE_UP_LATENCY_S = 1e-6
"""Latency of one step of an algorithm inside a fast domain such as NVLink."""

_GPU_KEYS = (
    "title",
    "bf16_tflops",
    "fp8_tflops",
    "memory_tb_per_s",
    "memory_gb",
    "scale_up_gb_per_s",
    "gpus_per_domain",
    "domain_spans_hosts",
)
_LINK_KEYS = ("title", "gb_per_s", "latency_us")
_BANDWIDTH = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([kMGT]?)(b|bit|B)(?:/s|ps)")
_PREFIX = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_Entry = TypeVar("_Entry")


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of GPU."""

    name: str  # Name on the command line.
    title: str  # Display name.
    bf16_flops: float  # Dense peak of bf16 (or fp16) matrix products, FLOP per second.
    fp8_flops: float | None  # Dense peak of fp8; None without fp8.
    memory_bandwidth: float  # Bytes per second of its memory.
    memory_bytes: float  # Size of its memory.
    # Bytes per second and direction to its neighbours in the fast domain.
    scale_up_bandwidth: float
    # Usual number of GPUs per fast domain; None if it has no fast domain, or if the number is
    # unknown.
    gpus_per_domain: int | None = None
    domain_spans_hosts: bool = False  # Whether a domain spans hosts, as in NVL72.


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of link between nodes."""

    name: str  # Name on the command line.
    title: str  # Display name.
    bandwidth: float  # Bytes per second of one port in one direction.
    latency_s: float  # Latency of one step of an algorithm.


class Sheet(msgspec.Struct, frozen=True, kw_only=True):
    """All GPUs and links, by name."""

    gpus: Mapping[str, Gpu]
    links: Mapping[str, Link]

    def gpu(self, name: str) -> Gpu:
        """The GPU called ``name``, in any case; a UsageError if unknown says how to add one."""
        return _found("GPU", name, self.gpus, "gpus", _GPU_KEYS)

    def link(self, name: str) -> Link:
        """The link called ``name``, in any case; a UsageError if unknown says how to add one."""
        return _found("link", name, self.links, "links", _LINK_KEYS)


def load_sheet(more: Mapping[str, Any] | None = None, source: str = "distprof.toml") -> Sheet:
    """The sheet of distprof, with the table ``[hardware]`` of a configuration over it."""
    added, shipped = dict(more or {}), _shipped()
    _refuse_unknown(added, ("gpus", "links"), f"{source}: [hardware]")
    for kind, tables in added.items():
        if not isinstance(tables, Mapping) or not all(
            isinstance(table, Mapping) for table in tables.values()
        ):
            raise UsageError(f"{source}: [hardware.{kind}] must contain one table per name")
        added[kind] = {str(name).lower(): table for name, table in tables.items()}
    gpus = {n: _gpu(n, t, f"{source}: GPU {n}") for n, t in added.get("gpus", {}).items()}
    links = {n: _link(n, t, f"{source}: link {n}") for n, t in added.get("links", {}).items()}
    return Sheet(gpus={**shipped.gpus, **gpus}, links={**shipped.links, **links})


def parse_bandwidth(text: str) -> float | None:
    """Bytes per second of ``50GB/s``, ``400Gb/s`` or ``400Gbps``; None if invalid or below 1."""
    match = _BANDWIDTH.fullmatch(text.strip())
    if match is None:
        return None
    value = float(match[1]) * _PREFIX[match[2]] / (1 if match[3] == "B" else 8)
    return value if value >= 1 else None


@cache
def _shipped() -> Sheet:
    gpus, links = (table_beside(__package__, f"{name}.toml") for name in ("gpus", "links"))
    return Sheet(
        gpus={name: _gpu(name, table, f"gpus.toml: {name}") for name, table in gpus.items()},
        links={name: _link(name, table, f"links.toml: {name}") for name, table in links.items()},
    )


def _gpu(name: str, table: Mapping[str, Any], where: str) -> Gpu:
    _refuse_unknown(table, _GPU_KEYS, where)
    fp8 = None if "fp8_tflops" not in table else 1e12 * _number(table, "fp8_tflops", where)
    size = _number(table, "gpus_per_domain", where) if "gpus_per_domain" in table else None
    if size is not None and size != int(size):
        raise UsageError(f"{where}: gpus_per_domain must be a whole number, not {size!r}")
    return Gpu(
        name=name,
        title=str(table.get("title", name)),
        bf16_flops=1e12 * _number(table, "bf16_tflops", where),
        fp8_flops=fp8,
        memory_bandwidth=1e12 * _number(table, "memory_tb_per_s", where),
        memory_bytes=1e9 * _number(table, "memory_gb", where),
        scale_up_bandwidth=1e9 * _number(table, "scale_up_gb_per_s", where),
        gpus_per_domain=None if size is None else int(size),
        domain_spans_hosts=bool(table.get("domain_spans_hosts", False)),
    )


def _link(name: str, table: Mapping[str, Any], where: str) -> Link:
    _refuse_unknown(table, _LINK_KEYS, where)
    return Link(
        name=name,
        title=str(table.get("title", name)),
        bandwidth=1e9 * _number(table, "gb_per_s", where),
        latency_s=1e-6 * _number(table, "latency_us", where),
    )


def _number(table: Mapping[str, Any], key: str, where: str) -> float:
    value = table.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 1e-6 <= value < 1e9:
        raise UsageError(f"{where}: {key} must be a number from 1e-6 to 1e9, not {value!r}")
    return float(value)


def _refuse_unknown(table: Mapping[str, Any], known: Iterable[str], where: str) -> None:
    unknown = [key for key in table if key not in known]
    if unknown:
        raise UsageError(f"{where}: unknown key {unknown[0]!r}; the keys are {', '.join(known)}")


def _found(
    what: str, name: str, known: Mapping[str, _Entry], table: str, keys: tuple[str, ...]
) -> _Entry:
    if found := known.get(name.strip().lower()):
        return found
    near = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.6)
    meant = f" (did you mean {near[0]}?)" if near else ""
    raise UsageError(
        f"no {what} {name!r}{meant}: choose from {', '.join(known)}, or add one in distprof.toml"
        f" under [hardware.{table}.{name.lower()}] with {', '.join(keys)}"
    )


_WORDS = re.compile(r"[a-z0-9]+")
_SLOWER_KINDS = frozenset({"pcie", "nvl", "fhhl", "dgxs", "mig", "max", "laptop"})
"""Words for other or cut-down chips of the same family, whose peaks differ from the SXM chip's."""


def recognise_gpu(sheet: Sheet, device: str) -> Gpu | None:
    """The sheet's entry for a GPU, for example ``NVIDIA H100 80GB HBM3``.

    All words of an entry's name must occur in the GPU's name; the entry with the most words wins. A
    PCIe, NVL or MIG variant differs from its SXM sibling and needs a separate entry that names it.
    None if no entry fits: a peak is never guessed.
    """
    words = _words_of(device)
    matching = [
        (len(name), gpu)
        for gpu in sheet.gpus.values()
        if (name := _words_of(gpu.name)) and name <= words and words & _SLOWER_KINDS <= name
    ]
    return max(matching, key=lambda each: each[0], default=(0, None))[1]


def _words_of(name: str) -> frozenset[str]:
    return frozenset(_WORDS.findall(name.lower()))


class XidMeaning(msgspec.Struct, frozen=True):
    """What an error of NVIDIA's driver means."""

    text: str  # Meaning as a clause.
    fix: str  # How to fix it.
    is_hardware: bool = True  # Whether the GPU is usually at fault, not the program.


@cache
def _xids() -> Mapping[int, XidMeaning]:
    known = table_beside(__package__, "xids.toml")
    fixes = known["fixes"]
    return {
        number: XidMeaning(one["text"], fixes.get(one["fix"], one["fix"]), not one.get("program"))
        for one in known["xid"]
        for number in one["numbers"]
    }


def xid_meaning(number: int) -> XidMeaning | None:
    """Return what the number of an XID means; None if it is not well known."""
    return _xids().get(number)
