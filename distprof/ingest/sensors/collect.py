"""Parse cells of sensor files, find hosts in them, and collect samples in bounded memory."""

from __future__ import annotations

import math
import re
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from functools import cache, lru_cache
from typing import Any, Literal

import msgspec
import numpy as np
from msgspec.structs import asdict, replace

from distprof.artefacts.records import throttle_reasons
from distprof.bounds import patterns_beside, table_beside
from distprof.run.logs import (
    Clock,
    DeviceEvent,
    DeviceLinks,
    DeviceLog,
    DeviceSeries,
    DeviceState,
    Identity,
)
from distprof.run.records import NO_THROTTLING, TELEMETRY
from distprof.schema import ABSENT, Coded, Int64Array, Table
from distprof.units import NS_PER_S

_SAYS = patterns_beside(__package__, "collect.toml")
MAX_VALUE = float(1 << 53)  # larger numbers are not measurements, and floats would round them
LAST_NS = 1 << 62  # later times (from the year 2116) are invalid, and the sum of two would overflow


_SCALES = {"KiB": 1024.0, "MiB": 1024.0**2, "GiB": 1024.0**3, "kW": 1e3, "mW": 1e-3, "GHz": 1e3}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class _Names(msgspec.Struct, frozen=True):
    """Names of values in the output of the tools: ``columns.toml``."""

    columns: dict[str, dict[str, tuple[str, float]]]
    state: dict[str, tuple[str, ...]]


@cache
def _names() -> _Names:
    return msgspec.convert(table_beside(__package__, "columns.toml"), _Names)


def columns_of(tool: str) -> dict[str, tuple[str, float]]:
    """Names of a tool's values, best first, to the column of TELEMETRY and the scale."""
    return _names().columns[tool]


def state_names() -> dict[str, tuple[str, ...]]:
    """Names of what ``nvidia-smi`` says about the state of a GPU, in all its formats."""
    return _names().state


JOURNAL = '"__REALTIME_TIMESTAMP"'  # field in every entry of ``journalctl -o json``
_AMD = ("GPU use (%)", "Graphics Package Power (W)", "Temperature (Sensor ", '"gfx_activity"')


def is_amd_json(start: str) -> bool:
    """Whether a file begins like JSON of ``rocm-smi`` or ``amd-smi``."""
    return start.lstrip()[:1] in ("{", "[") and any(sign in start for sign in _AMD)


def number(cell: str) -> float | None:
    """The number of a cell such as ``77.71 W``, in W, MHz, bytes, or in its own unit; else None."""
    match = _SAYS["number"].match(cell)
    if match is None:
        return None
    value = float(match[1]) * _SCALES.get(match[2], 1.0)
    return value if math.isfinite(value) and abs(value) < MAX_VALUE else None


def whole(cell: str) -> int | None:
    """The number of a cell if it is a non-negative integer, else None."""
    value = number(cell)
    return int(value) if value is not None and value >= 0 and value == int(value) else None


@lru_cache(maxsize=1024)
def reasons_of(mask: str) -> str:
    """Throttling reasons in a bit mask such as ``0x04`` or ``4``, joined by commas; else empty."""
    text = mask.strip()
    try:
        bits = int(text, 16 if text[:2].lower() == "0x" else 10) if len(text) <= 20 else -1
    except ValueError:
        return ""
    return ",".join(throttle_reasons(bits)) or NO_THROTTLING if 0 <= bits < 1 << 64 else ""


@lru_cache(maxsize=4096)
def bus_id(text: str) -> str:
    """A PCI bus id in canonical form, ``00000000:9b:00.0``; empty if the text has none.

    The kernel writes ``PCI:0000:9b:00``, nvidia-smi ``00000000:9B:00.0``, NCCL ``9b000``.
    """
    if re.fullmatch(r"[0-9a-fA-F]{4,11}", text):
        bits = int(text, 16)
        return f"{bits >> 20:08x}:{bits >> 12 & 255:02x}:{bits >> 4 & 255:02x}.{bits & 15:x}"
    match = _SAYS["bus_id"].search(text)
    if match is None:
        return ""
    domain, bus, device, function = match.groups()
    return f"{int(domain or '0', 16):08x}:{bus}:{device}.{function or '0'}".lower()


@lru_cache(maxsize=64)
def time_of(text: str) -> tuple[int, Clock] | None:
    """A time such as ``2026/07/03 22:10:46.109`` in ns, and its clock.

    A time with a zone (``Z``, ``+02:00``) counts from the epoch, one without is local.
    """
    text = text.strip()
    match = _SAYS["slashed"].fullmatch(text)
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


def seconds_of(text: str) -> tuple[int, Clock] | None:
    """A time in seconds since the epoch, such as ``1751580646.109``, in ns; None if too late."""
    seconds, _, rest = text.partition(".")
    return since_epoch(int(seconds) * NS_PER_S + int(rest.ljust(9, "0")))


def since_epoch(ns: int) -> tuple[int, Clock] | None:
    """A time since the epoch with its clock; None if it is too late to be one."""
    return (ns, "epoch") if ns < LAST_NS else None


# Hosts --------------------------------------------------------------------------------------------

# Host name or task number that pdsh, clush and ``srun --label`` put before each line.
LABEL = re.compile(r"([A-Za-z0-9][\w.-]{0,80}): ?(?=[#|+<=\w ])")

# Host name between two rules above a block, as ``dshbak`` and ``clush -b`` write it.
NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,80}")
RULE = re.compile(r"-{4,80}")
# Line that ansible writes above a block: ``node-1 | CHANGED | rc=0 >>``.
MARKER = re.compile(r"([A-Za-z0-9][\w.-]{0,80}) \| [A-Z]{2,12}!? (?:\| rc=\d{1,3} )?[>=]>")


def host_named(line: str) -> str:
    """The host name in a heading above the output of a host; empty for other lines."""
    match = _SAYS["host"].fullmatch(line)
    if match is None:
        return ""
    is_name = bool(match["label"]) or any(c.isdigit() for c in match["host"])
    return match["host"] if is_name and not match["host"].isdecimal() else ""


# Samples of one file ------------------------------------------------------------------------------

MAX_SAMPLES = 20_000_000
MAX_DEVICES = 1 << 16  # more than the largest clusters have
MAX_LINKS = 100_000
MAX_EVENTS = 10_000
MAX_NAME = 200
_MAX_WORDS = 10_000
_LEAST_GAPS = 5


def gpus_at_once(times: Int64Array) -> int:
    """Rows per moment of a query of several GPUs; 1 if they are not grouped. Times ascend."""
    gaps = np.diff(times)
    if len(gaps) < _LEAST_GAPS or not (longest := float(np.percentile(gaps, 95))):
        return 1
    ends = np.flatnonzero(gaps > longest / 4)
    sizes = np.diff(ends, prepend=-1)
    is_regular = (
        len(sizes) > 2 and (sizes == sizes[0]).all() and len(times) - 1 - ends[-1] <= sizes[0]
    )
    return int(sizes[0]) if is_regular else 1


class Samples:
    """Samples of one GPU, as compact arrays. An empty column takes no memory."""

    def __init__(self) -> None:
        self._times = array("q")
        self._numbers: dict[str, array[float]] = {}
        self._reasons = array("i")
        self._words = {"": 0}

    def __len__(self) -> int:
        return len(self._times)

    def add(self, t_ns: int, values: Mapping[str, float | None], reasons: str = "") -> None:
        """Add a row. Columns that it does not name are unknown."""
        count = len(self._times)
        self._times.append(t_ns)
        for name, value in values.items():
            column = self._numbers.get(name)
            if column is None:
                column = self._numbers[name] = array("d")
            if len(column) < count:
                column.extend([np.nan] * (count - len(column)))
            column.append(np.nan if value is None or not 0 <= value < MAX_VALUE else value)
        if reasons:
            if len(self._words) >= _MAX_WORDS and reasons not in self._words:
                reasons = ""
            self._reasons.extend([0] * (count - len(self._reasons)))
            self._reasons.append(self._words.setdefault(reasons[:MAX_NAME], len(self._words)))

    def table(self) -> Table:
        """TELEMETRY, ascending in time."""
        count = len(self._times)
        codes = np.zeros(count, np.int32)
        codes[: len(self._reasons)] = self._reasons
        columns: dict[str, Any] = {
            "t_ns": np.array(self._times, dtype=np.int64),
            "throttle_reasons": Coded(codes, tuple(self._words)),
            "xid": Coded(np.zeros(count, np.int32), ("",)),
        }
        for column in TELEMETRY:
            if column.name not in columns:
                values = np.full(count, np.nan)
                known = self._numbers.get(column.name, ())
                values[: len(known)] = known
                if column.dtype == "int64":
                    numbers = np.rint(np.nan_to_num(values))
                    values = np.where(np.isnan(values), ABSENT, numbers).astype(np.int64)
                columns[column.name] = values
        table = Table(TELEMETRY, columns)
        order = np.argsort(columns["t_ns"], kind="stable")
        return table if (np.diff(columns["t_ns"]) >= 0).all() else table.take(order)


Origin = Literal["monitor", "query", "table"]
"""Source of samples: a monitor or a repeated query, ``nvidia-smi -q``, or the default table.

The last two are snapshots. If a file has several sources, the first in this order is used: it has
the same values with more digits, and a GPU in two sources would appear twice.
"""


class Collector(msgspec.Struct):
    """Collected content of one file."""

    file: str  # Name of the file, for display.
    written_ns: int | None = None  # When the file was last written, None if unknown.
    host: str = ""  # Host of all that names none.
    num_lines: int = 0
    # Whether it is a kernel log, in which the absence of errors is evidence.
    is_kernel_log: bool = False
    events: list[DeviceEvent] = msgspec.field(default_factory=list)
    links: list[DeviceLinks] = msgspec.field(default_factory=list)
    uuids: dict[str, str] = msgspec.field(default_factory=dict)
    left_out: Counter[str] = msgspec.field(default_factory=Counter)
    notes: list[str] = msgspec.field(default_factory=list)
    _counts: Counter[str] = msgspec.field(default_factory=Counter)
    _states: dict[tuple[str, str], DeviceState] = msgspec.field(default_factory=dict)
    _samples: dict[Origin, dict[tuple[Identity, Clock], Samples]] = msgspec.field(
        default_factory=lambda: {"monitor": {}, "query": {}, "table": {}}
    )

    def sample(
        self,
        device: Identity,
        when: tuple[int, Clock] | None,
        values: Mapping[str, float | None],
        reasons: str = "",
        origin: Origin = "monitor",
    ) -> None:
        """Add a sample; without a time, its number is used instead."""
        if self.host and not device.host:
            device = replace(device, host=self.host)
        clock: Clock = when[1] if when else "none"
        known = self._samples[origin]
        samples = known.get((device, clock))
        if self._counts["samples"] >= MAX_SAMPLES or (
            samples is None and len(known) >= MAX_DEVICES
        ):
            self.left_out["samples above the limit skipped"] += 1
            return
        if samples is None:
            samples = known[device, clock] = Samples()
        samples.add(when[0] if when else len(samples), values, reasons)
        self._counts["samples"] += 1

    def link(self, links: DeviceLinks) -> None:
        """Add the NVLinks of a GPU."""
        if len(self.links) < MAX_LINKS:
            self.links.append(replace(links, host=links.host or self.host))

    def state(self, state: DeviceState | None) -> None:
        """Add a GPU's state, if known: the last one counts, preferably one of a GPU in use."""
        if state is None:
            return
        state = replace(state, host=state.host or self.host)
        device = (state.host, state.uuid or state.bus_id or str(state.index))
        before = self._states.get(device)
        if before is None and len(self._states) >= MAX_DEVICES:
            self.left_out["GPU states above the limit skipped"] += 1
        elif before is None or state.is_in_use or not before.is_in_use:
            self._states[device] = state

    def event(self, event: DeviceEvent) -> None:
        """Add an error."""
        self._counts["events"] += 1
        if len(self.events) < MAX_EVENTS:
            self.events.append(replace(event, host=event.host or self.host))

    def _series(self, device: Identity, clock: Clock, samples: Samples) -> Iterator[DeviceSeries]:
        """The series of one GPU, or of each GPU of rows that name none."""
        table = samples.table()
        parts: dict[int | None, Table] = {device.index: table}
        if device.index is None and not (device.uuid or device.bus_id) and clock != "none":
            number = gpus_at_once(table["t_ns"])
            if number > 1:
                places = np.arange(len(table)) % number
                parts = {place: table.take(places == place) for place in range(number)}
                self.notes.append(
                    f"The rows of {self.file} name no GPU: distprof counts the {number} rows of "
                    "each moment as one per GPU, in this order."
                )
        for index, rows in parts.items():
            named = asdict(replace(device, index=index))
            yield DeviceSeries(file=self.file, clock=clock, table=rows, **named)

    def result(self) -> DeviceLog:
        """The log: of each file the samples of the first origin that has any, and notes."""
        found = next(filter(None, self._samples.values()), {})
        places = {host: i for i, host in enumerate(dict.fromkeys(one.host for one, _ in found))}
        series = tuple(
            one
            for (device, clock), samples in sorted(
                found.items(), key=lambda item: places[item[0][0].host]
            )
            for one in self._series(device, clock, samples)
        )
        notes = [*self.notes, *(f"{self.file}: {n:,} {what}." for what, n in self.left_out.items())]
        if self._counts["events"] > len(self.events):
            notes.append(
                f"{self.file} holds {self._counts['events']:,} errors; distprof keeps the first "
                f"{MAX_EVENTS:,}."
            )
        return DeviceLog(
            files=(self.file,),
            series=series,
            events=tuple(self.events),
            links=tuple(self.links),
            states=tuple(self._states.values()),
            kernel_logs=(self.file,) if self.is_kernel_log else (),
            num_lines=self.num_lines,
            written_ns={} if self.written_ns is None else {self.file: self.written_ns},
            notes=tuple(notes),
        )
