"""Sensors of AMD GPUs: ``rocm-smi`` and ``amd-smi``, as CSV or JSON.

Names differ between tools, versions and formats. Each column of TELEMETRY therefore has a list of
names, best first. In JSON, a name is the path to a value, joined by dots.

Source: ROCm/rocm_smi_lib, ``python_smi_tools/rocm_smi.py`` (``printLog``, ``--json``, ``--csv``);
ROCm/amdsmi, ``amdsmi_cli/amdsmi_commands.py`` (``metric_gpu``, ``monitor``), ``amdsmi_logger.py``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from distprof.bounds import num_parts
from distprof.ingest.sensors.collect import (
    LAST_NS,
    MAX_NAME,
    Collector,
    Identity,
    bus_id,
    number,
    whole,
)
from distprof.run.logs import Clock
from distprof.units import NS_PER_S

MAX_PARTS = 5_000_000
_MIB = 1024.0**2
_COLUMNS: tuple[tuple[str, tuple[str, ...], float], ...] = (
    ("sm_clock_mhz", ("sclk clock speed:", "clock.gfx_0.clk", "gfx_0_clk", "gfx_clk"), 1),
    ("memory_clock_mhz", ("mclk clock speed:", "clock.mem_0.clk", "mem_0_clk", "mem_clock"), 1),
    (
        "power_w",
        (
            "Current Socket Graphics Package Power (W)",
            "Average Graphics Package Power (W)",
            "power.socket_power",
            "socket_power",
            "power_usage",
        ),
        1,
    ),
    (
        "temperature_c",
        (
            "Temperature (Sensor junction) (C)",
            "temperature.hotspot",
            "hotspot",
            "hotspot_temperature",
            "Temperature (Sensor edge) (C)",
        ),
        1,
    ),
    ("gpu_utilization_ratio", ("GPU use (%)", "usage.gfx_activity", "gfx_activity", "gfx"), 0.01),
    (
        "memory_utilization_ratio",
        (
            "GPU Memory Read/Write Activity (%)",
            "GPU memory use (%)",
            "usage.umc_activity",
            "umc_activity",
            "mem",
        ),
        0.01,
    ),
    ("memory_used_bytes", ("VRAM Total Used Memory (B)",), 1),
    ("memory_used_bytes", ("mem_usage.used_vram", "used_vram", "vram_used"), _MIB),
    ("ecc_uncorrected", ("ecc.total_uncorrectable_count", "total_uncorrectable_count"), 1),
)
_NAMES = {name for _, names, _ in _COLUMNS for name in names}
_BUS_NAMES = ("PCI Bus", "bus.bdf", "bdf")
_CARD = re.compile(r"card(\d{1,4})")
_SIGNS = ("GPU use (%)", "Graphics Package Power (W)", "Temperature (Sensor ", '"gfx_activity"')
_MAX_DEPTH = 6


def amd_header(line: str) -> list[str] | None:
    """Names of columns; None for a line that is not a header of these tools."""
    names = [cell.strip() for cell in line.split(",")]
    if names[0] not in ("device", "gpu", "timestamp") or len(names) > 1_000:
        return None
    is_device = names[0] == "device" or "gpu" in names[:2]
    return names if is_device and any(name in _NAMES for name in names) else None


def is_amd_json(start: str) -> bool:
    """Whether a file begins like JSON of these tools."""
    return start.lstrip()[:1] in ("{", "[") and any(sign in start for sign in _SIGNS)


_ROW = re.compile(
    r"(\d{1,3})\s.{0,60}?([\d.]{1,6})\s?°?[cC]\s+([\d.]{1,7})W\s.{0,60}?(?:(\d{1,5})Mhz\s.{0,80})?"
    r"\s\d{1,3}%\s+(\d{1,3})%\s*"
)


def take_amd_row(line: str, collector: Collector) -> bool:
    """Read a row of the table that ``rocm-smi`` prints; False for another line."""
    row = _ROW.fullmatch(line) if "W " in line and line[:1].isdigit() else None
    if row is None:
        return False
    temperature, power, clock, use = (number(cell or "") for cell in row.groups()[1:])
    values = {
        "temperature_c": temperature,
        "power_w": power,
        "sm_clock_mhz": clock,
        "gpu_utilization_ratio": None if use is None else use / 100,
    }
    collector.sample(Identity(index=whole(row[1])), None, values, origin="table")
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
        self._collector.sample(device, _time(fields.get("timestamp")), _values(fields))


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
            yield str(content["gpu"]), _time(content.get("timestamp")), content
        else:
            for name, values in content.items():
                if isinstance(values, dict) and _CARD.fullmatch(name):
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
    card = _CARD.fullmatch(name)
    index = whole(card[1] if card else name)
    if index is None:
        return None
    bus = next((bus_id(fields[key]) for key in _BUS_NAMES if key in fields), "")
    model = fields.get("Card Series", fields.get("Card series", ""))[:MAX_NAME]
    return Identity(index=index, bus_id=bus, name=model)


def _values(fields: Mapping[str, str]) -> dict[str, float | None]:
    values: dict[str, float | None] = {}
    for column, names, scale in _COLUMNS:
        cell = next(
            (fields[name] for name in names if name in fields and fields[name] != "N/A"), None
        )
        if cell is not None:
            value = number(re.sub(r"\s*MB$", "", cell.strip("()")))
            values[column] = None if value is None else value * scale
    return values


def _time(value: Any) -> tuple[int, Clock] | None:
    """A time in seconds since the epoch, in ns; None if it is not a valid time."""
    seconds = number(str(value)) if value is not None else None
    if seconds is None or not 0 < seconds * NS_PER_S < LAST_NS:
        return None
    return int(seconds * NS_PER_S), "epoch"
