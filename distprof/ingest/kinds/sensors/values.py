"""Cells of sensor files to numbers: units, what is not known, reasons, bus ids, times."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime
from functools import lru_cache

from distprof.artefacts.throttling import throttle_reasons
from distprof.run.device_log import Clock
from distprof.run.records import NO_THROTTLING
from distprof.units import NS_PER_S

__all__ = ["LAST_NS", "bus_id", "mask_of", "number", "reasons_of", "time_of", "whole"]

MAX_VALUE = float(1 << 53)
"""Larger numbers are no measurements, and floats would round them."""

LAST_NS = 1 << 62
"""Later times (of the year 2116) are none, and sums of two would not fit."""

_NUMBER = re.compile(r"\s*([+-]?\d{1,20}(?:\.\d{0,12})?(?:[eE][+-]?\d{1,2})?)\s*(\S{0,6})")
_BUS_ID = re.compile(
    r"(?:([0-9a-fA-F]{4,8}):)?([0-9a-fA-F]{2}):([0-9a-fA-F]{2})(?:\.([0-7]))?(?![0-9a-fA-F:])"
)
_SCALES = {
    "KiB": 1024.0,
    "MiB": 1024.0**2,
    "GiB": 1024.0**3,
    "kW": 1e3,
    "mW": 1e-3,
    "GHz": 1e3,
}
_SLASHED = re.compile(r"(\d{4})/(\d\d)/(\d\d) (\d\d:\d\d:\d\d(?:\.\d{1,6})?)(.*)")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def number(cell: str) -> float | None:
    """The number of a cell such as ``77.71 W``, in W, MHz, bytes, or as it stands.

    Returns:
        None for ``[N/A]``, ``[Not Supported]``, ``-``, and whatever else is no number that a
        sensor can give.
    """
    match = _NUMBER.match(cell)
    if match is None:
        return None
    value = float(match[1]) * _SCALES.get(match[2], 1.0)
    return value if math.isfinite(value) and abs(value) < MAX_VALUE else None


def whole(cell: str) -> int | None:
    """The number of a cell as a whole one that is not negative; None where it is none."""
    value = number(cell)
    return int(value) if value is not None and value >= 0 and value == int(value) else None


def mask_of(cell: str) -> int | None:
    """Bits such as ``0x0000000000000004`` or ``4``."""
    text = cell.strip()
    try:
        bits = int(text, 16 if text[:2].lower() == "0x" else 10) if len(text) <= 20 else -1
    except ValueError:
        return None
    return bits if 0 <= bits < 1 << 64 else None


@lru_cache(maxsize=1024)
def reasons_of(bits: int) -> str:
    """Names of the reasons that slow a device down, joined by commas."""
    return ",".join(throttle_reasons(bits)) or NO_THROTTLING


@lru_cache(maxsize=4096)
def bus_id(text: str) -> str:
    """A PCI bus id in one spelling, ``00000000:9b:00.0``; empty where the text has none.

    The kernel writes ``PCI:0000:9b:00``, nvidia-smi ``00000000:9B:00.0``, NCCL ``9b000``.
    """
    if re.fullmatch(r"[0-9a-fA-F]{4,11}", text):
        bits = int(text, 16)
        return f"{bits >> 20:08x}:{bits >> 12 & 255:02x}:{bits >> 4 & 255:02x}.{bits & 15:x}"
    match = _BUS_ID.search(text)
    if match is None:
        return ""
    domain, bus, device, function = match.groups()
    return f"{int(domain or '0', 16):08x}:{bus}:{device}.{function or '0'}".lower()


@lru_cache(maxsize=64)
def time_of(text: str) -> tuple[int, Clock] | None:
    """A time such as ``2026/07/03 22:10:46.109`` in ns, and what clock it is of.

    One with a zone (``Z``, ``+02:00``) is of the epoch, one without is local.
    """
    text = text.strip()
    match = _SLASHED.fullmatch(text)
    if match is not None:
        year, month, day, rest, zone = match.groups()
        text = f"{year}-{month}-{day}T{rest}{zone.strip()}"
    elif not text[:1].isdigit():
        return None
    try:
        moment = datetime.fromisoformat(text.replace(",", ".", 1))
    except ValueError:
        return None
    clock: Clock = "local" if moment.tzinfo is None else "epoch"
    since = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - _EPOCH
    ns = (since.days * 86_400 + since.seconds) * NS_PER_S + since.microseconds * 1_000
    return (ns, clock) if 0 <= ns < LAST_NS else None
