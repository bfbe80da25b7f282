"""Sensor files that are tables: ``nvidia-smi dmon``, ``--query-gpu``, ``dcgmi dmon``, AMD's tools.

The monitors write columns of text under headers that repeat. A query writes CSV, and its header
names the columns. ``rocm-smi`` and ``amd-smi`` write CSV or JSON, with other names in each version;
in JSON, a name is the path to a value, joined by dots.

Source: ``nvidia-smi dmon --help`` (groups ``-s pucvmet``, times by ``-o DT``); short names of
DCGM's fields in ``dcgm_fields.c``; ``nvidia-smi --help-query-gpu`` (names before and after driver
535, which renamed ``clocks_throttle_reasons`` to ``clocks_event_reasons``); ROCm/rocm_smi_lib,
``python_smi_tools/rocm_smi.py`` (``printLog``); ROCm/amdsmi, ``amdsmi_cli/amdsmi_commands.py``
(``metric_gpu``, ``monitor``), ``amdsmi_logger.py``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from distprof.bounds import num_parts, patterns_beside
from distprof.ingest.sensors.collect import (
    MAX_NAME,
    Collector,
    bus_id,
    columns_of,
    number,
    reasons_of,
    since_epoch,
    time_of,
    whole,
)
from distprof.ingest.sensors.smi import state_columns, state_of
from distprof.run.logs import Clock, Identity
from distprof.run.records import NO_THROTTLING
from distprof.units import NS_PER_S

_SAYS = patterns_beside(__package__, "tables.toml")
_DAY_NS = 86_400 * NS_PER_S

_DCGM_REASONS = "DVCCTR"

# Clock violations in the output of "-s v": power in % of the period, thermal as a flag.
_VIOLATIONS = {"pviol": "power_violation", "tviol": "thermal_violation"}


def dmon_header(line: str) -> list[str] | None:
    """Names of columns; None for any other line, such as units or the header of ``pmon``."""
    names = line.replace("#", " ", 1).split()
    if not names or len(names) > 200:
        return None
    if names[0].lower() == "entity":
        return ["Entity", *names[1:]]
    is_of_devices = "gpu" in names[:3] and "pid" not in names
    return (
        names
        if is_of_devices
        and any(name in columns_of("smi_dmon") or name in _VIOLATIONS for name in names)
        else None
    )


class Dmon:
    """Reader of the rows under one header of a monitor."""

    def __init__(self, names: Sequence[str], collector: Collector) -> None:
        self._names = list(names)
        self._collector = collector
        self._is_dcgm = names[0] == "Entity"
        known = columns_of("dcgm_dmon" if self._is_dcgm else "smi_dmon")
        self._numbers = [(i, *known[name]) for i, name in enumerate(names) if name in known]
        self._at = {name: i for i, name in enumerate(names)}
        self._violations = [
            (i, _VIOLATIONS[name]) for i, name in enumerate(names) if name in _VIOLATIONS
        ]
        self._day_ns = 0
        self._last_ns = 0

    def fits(self, names: Sequence[str]) -> bool:
        """Whether a header is a repetition of this one, as dmon writes them."""
        return list(names) == self._names

    def take(self, line: str) -> None:
        """Read one row."""
        cells = line.split()
        if self._is_dcgm:
            if cells[:1] != ["GPU"]:  # a switch, a link, a MIG instance, or the line of units
                return
            cells = cells[1:]
        if len(cells) != len(self._names):
            self._collector.left_out["rows with too few or too many cells skipped"] += 1
            return
        index = whole(cells[0 if self._is_dcgm else self._at["gpu"]])
        when = self._when(cells)
        if index is None or (when is None and "Time" in self._at):
            self._collector.left_out["unreadable rows skipped"] += 1
            return
        values = {
            column: None if (value := number(cells[i])) is None else value * scale
            for i, column, scale in self._numbers
        }
        self._collector.sample(Identity(index=index), when, values, self._throttle_reasons(cells))

    def _when(self, cells: list[str]) -> tuple[int, Clock] | None:
        if "Time" not in self._at:
            return None
        time = cells[self._at["Time"]]
        if "Date" in self._at:
            date = cells[self._at["Date"]]
            if _SAYS["date"].fullmatch(date) is None:
                return None
            return time_of(f"{date[:4]}-{date[4:6]}-{date[6:]}T{time}")
        match = _SAYS["time"].fullmatch(time)
        if match is None:
            return None
        hours, minutes, seconds = map(int, match.groups())
        ns = (hours * 3600 + minutes * 60 + seconds) * NS_PER_S
        if ns + _DAY_NS // 2 < self._last_ns:  # past midnight
            self._day_ns += _DAY_NS
        self._last_ns = ns
        return self._day_ns + ns, "day"

    def _throttle_reasons(self, cells: list[str]) -> str:
        """Throttling reasons joined by commas, empty if unknown."""
        if _DCGM_REASONS in self._at and self._is_dcgm:
            return reasons_of(cells[self._at[_DCGM_REASONS]])
        violations = [(name, number(cells[i])) for i, name in self._violations]
        if all(value is None for _, value in violations):
            return ""
        return ",".join(name for name, value in violations if value) or NO_THROTTLING


# ``nvidia-smi --query-gpu=… --format=csv`` --------------------------------------------------------

_REASONS = ("clocks_event_reasons.", "clocks_throttle_reasons.")
_NO_REASON = ("supported", "active", "gpu_idle")


def header_of(line: str) -> list[str] | None:
    """Names of columns; None for a line that is not the header of a query."""
    cells = line.split(",")
    fields = [_SAYS["field"].fullmatch(cell) for cell in cells]
    if not all(fields) or len(cells) > 1_000:
        return None
    names = [match[1] for match in fields if match]
    return names if has_sensors(names) or names[0] == "timestamp" else None


def has_sensors(names: Sequence[str]) -> bool:
    """Whether any of the columns is a sensor or part of a GPU's state."""
    named = any(name in columns_of("query") or name.startswith(_REASONS) for name in names)
    return named or bool(state_columns(names))


def is_headless(line: str) -> bool:
    """Whether a line looks like a row of a query, whose columns are unknown without a header."""
    cells = line.split(",")
    is_timed = len(cells) > 2 and _SAYS["row_time"].fullmatch(cells[0].strip()) is not None
    return is_timed or sum(_SAYS["unit_cell"].fullmatch(cell) is not None for cell in cells) >= 2


_MAX_CACHED = 100_000
_MAX_STATES = 4_096


class _Number(msgspec.Struct, frozen=True):
    """A column of numbers: its position, and the unit of numbers without one."""

    position: int
    column: str
    scale: float
    cells: dict[str, float | None] = msgspec.field(default_factory=dict)

    def value(self, cell: str) -> float | None:
        if cell not in self.cells:
            if len(self.cells) >= _MAX_CACHED:
                self.cells.clear()
            value = number(cell)
            self.cells[cell] = value if value is None or "iB" in cell else value * self.scale
        return self.cells[cell]


class QueryCsv:
    """Reader of the rows under one header of a query."""

    def __init__(self, names: Sequence[str], collector: Collector) -> None:
        self._count = len(names)
        self._collector = collector
        at = {name: i for i, name in reversed(list(enumerate(names)))}
        numbers: dict[str, _Number] = {}
        for name, (column, scale) in columns_of("query").items():
            if name in at:
                numbers.setdefault(column, _Number(at[name], column, scale))
        self._numbers = list(numbers.values())
        self._time = at.get("timestamp")
        self._mask = next((at[f"{p}active"] for p in _REASONS if f"{p}active" in at), None)
        self._flags = [
            (i, name.rpartition(".")[2])
            for i, name in enumerate(names)
            if name.startswith(_REASONS) and name.rpartition(".")[2] not in _NO_REASON
        ]
        self._index = at.get("index")
        self._texts = {
            "uuid": next((at[n] for n in ("uuid", "gpu_uuid") if n in at), None),
            "bus_id": next((at[n] for n in ("pci.bus_id", "gpu_bus_id") if n in at), None),
            "name": next((at[n] for n in ("name", "gpu_name") if n in at), None),
            "host": at.get("hostname"),
        }
        self.has_sensors = bool(self._numbers or self._mask is not None or self._flags)
        self._states = state_columns(names)
        self._last_states: dict[Identity, tuple[str, ...]] = {}
        self._devices: dict[tuple[str, ...], Identity] = {}
        positions = [p for p in (self._index, *self._texts.values()) if p is not None]
        self._identity: Callable[[list[str]], tuple[str, ...]] = lambda cells: tuple(
            cells[p] for p in positions
        )
        if self.has_sensors and not any(
            p is not None for p in (self._index, self._texts["uuid"], self._texts["bus_id"])
        ):
            collector.notes.append(
                f"{collector.file} does not say which GPU a row belongs to: add index or uuid to "
                "--query-gpu."
            )

    def take(self, line: str) -> None:
        """Read one row; a row with too few or too many cells is counted and left out."""
        if not (self.has_sensors or self._states):
            return
        cells = line.split(",")
        if len(cells) != self._count:
            self._collector.left_out["rows with too few or too many cells skipped"] += 1
            return
        when = None
        if self._time is not None:
            when = time_of(cells[self._time])
            if when is None:
                self._collector.left_out["rows without a readable time skipped"] += 1
                return
        values = {n.column: n.value(cells[n.position]) for n in self._numbers}
        key = self._identity(cells)
        if key not in self._devices:
            if len(self._devices) > 50_000:
                self._devices.clear()
            texts = {name: _text(cells[p]) for name, p in self._texts.items() if p is not None}
            index = None if self._index is None else whole(cells[self._index])
            bus = bus_id(texts.pop("bus_id", ""))
            self._devices[key] = Identity(index=index, bus_id=bus, **texts)
        device = self._devices[key]
        self._collector.sample(device, when, values, self._throttle_reasons(cells))
        if self._states:
            self._take_state(device, cells)

    def _take_state(self, device: Identity, cells: list[str]) -> None:
        """Add the GPU's state if the row changes it, which hardly any row does."""
        state_cells = tuple(cells[i] for i, _ in self._states)
        if self._last_states.get(device) == state_cells:
            return
        if len(self._last_states) < _MAX_STATES:
            self._last_states[device] = state_cells
        facts = {name: cells[i] for i, name in self._states}
        self._collector.state(state_of(facts, device, self._collector.file))

    def _throttle_reasons(self, cells: list[str]) -> str:
        """Throttling reasons joined by commas, empty if unknown."""
        if self._mask is not None:
            named = reasons_of(cells[self._mask])
            if named:
                return named
        flags = {name: cells[position].strip() for position, name in self._flags}
        if not any(value in ("Active", "Not Active") for value in flags.values()):
            return ""
        return ",".join(n for n, value in flags.items() if value == "Active") or NO_THROTTLING


def _text(cell: str) -> str:
    """Text of a cell, empty for ``[N/A]`` and similar values."""
    text = cell.strip()[:200]
    return "" if text.startswith("[") or text in ("N/A", "") else text


MAX_PARTS = 5_000_000
_BUS_NAMES = ("PCI Bus", "bus.bdf", "bdf")
_MAX_DEPTH = 6


def amd_header(line: str) -> list[str] | None:
    """Names of columns; None for a line that is not a header of these tools."""
    names = [cell.strip() for cell in line.split(",")]
    if names[0] not in ("device", "gpu", "timestamp") or len(names) > 1_000:
        return None
    is_device = names[0] == "device" or "gpu" in names[:2]
    return names if is_device and any(name in columns_of("amd") for name in names) else None


_OF_ROWS = {
    "temperature": ("temperature_c", 1.0),
    "power": ("power_w", 1.0),
    "clock": ("sm_clock_mhz", 1.0),
    "use": ("gpu_utilization_ratio", 0.01),
    "memory": ("memory_used_bytes", float(1 << 20)),
}


def take_printed_row(line: str, collector: Collector) -> bool:
    """Read a row of what ``rocm-smi`` or ``gpustat`` prints; False for another line."""
    which = "row" if "hz " in line and "%" in line else "gpustat" if "'C" in line else ""
    row = _SAYS[which].fullmatch(line) if which else None
    if row is None:
        return False
    cells = {what: number(cell or "") for what, cell in row.groupdict().items() if what in _OF_ROWS}
    scales = {_OF_ROWS[what]: cell for what, cell in cells.items()}
    values = {of[0]: None if cell is None else cell * of[1] for of, cell in scales.items()}
    collector.sample(Identity(index=whole(row["index"])), None, values, origin="table")
    return True


class AmdCsv:
    """Reader of the rows under one header."""

    def __init__(self, names: list[str], collector: Collector) -> None:
        self._names, self._collector = names, collector

    def take(self, line: str) -> None:
        """Read one row."""
        cells = line.split(",")
        if len(cells) != len(self._names):
            self._collector.left_out["rows with too few or too many cells skipped"] += 1
            return
        fields = {name: cell.strip() for name, cell in zip(self._names, cells, strict=True)}
        device = _identity(fields.get("device", fields.get("gpu", "")), fields)
        if device is None:
            if fields.get("device") != "system":
                self._collector.left_out["unreadable rows skipped"] += 1
            return
        self._collector.sample(device, _seconds(fields.get("timestamp")), _values(fields))


def take_amd_json(text: str, collector: Collector) -> None:
    """Read a whole file with one or several objects or lists."""
    if num_parts(text.encode("utf-8", "replace")) > MAX_PARTS:
        raise ValueError(f"more than {MAX_PARTS:,} values")
    for part in re.split(r"(?<=[\]}])\s*\n(?=[\[{])", text.strip()):
        try:
            content: Any = msgspec.json.decode(part)
        except (msgspec.DecodeError, RecursionError) as error:
            raise ValueError(f"{error}") from error
        for name, when, values in _devices(content):
            flat = dict(_flat(values))
            device = _identity(name, flat)
            if device is not None:
                collector.sample(device, when, _values(flat))


def _devices(content: Any) -> Iterator[tuple[str, tuple[int, Clock] | None, Mapping[str, Any]]]:
    """Name, time and values of each GPU, in any of the known nestings."""
    if isinstance(content, list):
        for one in content:
            yield from _devices(one)
    elif isinstance(content, dict):
        inside = content.get("gpu_data", content.get("values"))
        if isinstance(inside, list):
            yield from _devices(inside)
        elif "gpu" in content:
            yield str(content["gpu"]), _seconds(content.get("timestamp")), content
        else:
            for name, values in content.items():
                if isinstance(values, dict) and _SAYS["card"].fullmatch(name):
                    yield name, None, values


def _flat(fields: Mapping[str, Any], before: str = "", depth: int = 0) -> Iterator[tuple[str, str]]:
    """Paths to values, as text with their unit; ``{"value": 1, "unit": "W"}`` is one value."""
    for name, value in fields.items():
        path = f"{before}{name}"
        if isinstance(value, dict):
            if "value" in value:
                yield path, f"{value['value']} {value.get('unit', '')}"
            elif depth < _MAX_DEPTH:
                yield from _flat(value, f"{path}.", depth + 1)
        elif isinstance(value, str | int | float):
            yield path, str(value)


def _identity(name: str, fields: Mapping[str, str]) -> Identity | None:
    """The GPU; None for other entries, such as ``system``."""
    card = _SAYS["card"].fullmatch(name)
    index = whole(card[1] if card else name)
    if index is None:
        return None
    bus = next((bus_id(fields[key]) for key in _BUS_NAMES if key in fields), "")
    model = fields.get("Card Series", fields.get("Card series", ""))[:MAX_NAME]
    return Identity(index=index, bus_id=bus, name=model)


def _values(fields: Mapping[str, str]) -> dict[str, float | None]:
    values: dict[str, float | None] = {}
    for name, (column, scale) in columns_of("amd").items():
        if column not in values and fields.get(name, "N/A") != "N/A":
            value = number(re.sub(r"\s*MB$", "", fields[name].strip("()")))
            values[column] = None if value is None else value * scale
    return values


def _seconds(value: Any) -> tuple[int, Clock] | None:
    """A time in seconds since the epoch, in ns; None if it is not a valid time."""
    seconds = number(str(value)) or 0.0
    return since_epoch(int(seconds * NS_PER_S)) if seconds > 0 else None
