"""``nvidia-smi dmon`` and ``dcgmi dmon``: columns of text under headers that repeat.

Source: ``nvidia-smi dmon --help`` (groups ``-s pucvmet``, times by ``-o DT``); short names of
DCGM's fields in ``dcgm_fields.c``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from distprof.ingest.kinds.sensors.collect import Collector, Identity
from distprof.ingest.kinds.sensors.values import mask_of, number, reasons_of, time_of, whole
from distprof.run.device_log import Clock
from distprof.run.records import NO_THROTTLING
from distprof.units import NS_PER_S

__all__ = ["Dmon", "dmon_header"]

_MB = 1e6
_MIB = 1024.0**2
_DAY_NS = 86_400 * NS_PER_S

# Header of nvidia-smi to the column of TELEMETRY, and what its numbers are counted in.
_SMI: dict[str, tuple[str, float]] = {
    "pwr": ("power_w", 1),
    "gtemp": ("temperature_c", 1),
    "temp": ("temperature_c", 1),
    "sm": ("gpu_utilization_ratio", 0.01),
    "mem": ("memory_utilization_ratio", 0.01),
    "mclk": ("memory_clock_mhz", 1),
    "pclk": ("sm_clock_mhz", 1),
    "fb": ("memory_used_bytes", _MIB),
    "dbecc": ("ecc_uncorrected", 1),
    "rxpci": ("pcie_rx_bytes_per_s", _MB),
    "txpci": ("pcie_tx_bytes_per_s", _MB),
}
_DCGM: dict[str, tuple[str, float]] = {
    "SMCLK": ("sm_clock_mhz", 1),
    "MMCLK": ("memory_clock_mhz", 1),
    "POWER": ("power_w", 1),
    "TMPTR": ("temperature_c", 1),
    "TOTEC": ("energy_j", 1e-3),
    "GPUTL": ("gpu_utilization_ratio", 0.01),
    "MCUTL": ("memory_utilization_ratio", 0.01),
    "FBUSD": ("memory_used_bytes", _MIB),
    "PCITX": ("pcie_tx_bytes_per_s", 1),
    "PCIRX": ("pcie_rx_bytes_per_s", 1),
    "EDVTL": ("ecc_uncorrected", 1),
}
_DCGM_REASONS = "DVCCTR"
# What "-s v" tells of clocks: policies that held the device back, in % of the period and as a flag.
_VIOLATIONS = {"pviol": "power_violation", "tviol": "thermal_violation"}
_TIME = re.compile(r"(\d\d):(\d\d):(\d\d)")
_DATE = re.compile(r"\d{8}")


def dmon_header(line: str) -> list[str] | None:
    """Names of columns; None for a line that is no header of names (that of units is none).

    Neither is that of ``nvidia-smi pmon``, whose rows are processes.
    """
    names = line.replace("#", " ", 1).split()
    if not names or len(names) > 200:
        return None
    if names[0].lower() == "entity":
        return ["Entity", *names[1:]]
    is_of_devices = "gpu" in names[:3] and "pid" not in names
    return (
        names
        if is_of_devices and any(name in _SMI or name in _VIOLATIONS for name in names)
        else None
    )


class Dmon:
    """Rows under one header.

    Args:
        names: Of the columns.
        collector: Where samples go.
    """

    def __init__(self, names: Sequence[str], collector: Collector) -> None:
        self._names = list(names)
        self._collector = collector
        self._is_dcgm = names[0] == "Entity"
        known = _DCGM if self._is_dcgm else _SMI
        self._numbers = [(i, *known[name]) for i, name in enumerate(names) if name in known]
        self._at = {name: i for i, name in enumerate(names)}
        self._violations = [
            (i, _VIOLATIONS[name]) for i, name in enumerate(names) if name in _VIOLATIONS
        ]
        self._day_ns = 0
        self._last_ns = 0

    def fits(self, names: Sequence[str]) -> bool:
        """Whether this header is the same again, as dmon repeats it."""
        return list(names) == self._names

    def take(self, line: str) -> None:
        """Read one row."""
        cells = line.split()
        if self._is_dcgm:
            if cells[:1] != ["GPU"]:  # of a switch, a link, an instance; or the line of units
                return
            cells = cells[1:]
        if len(cells) != len(self._names):
            self._collector.left_out["rows with too few or too many cells are left out"] += 1
            return
        index = whole(cells[0 if self._is_dcgm else self._at["gpu"]])
        when = self._when(cells)
        if index is None or (when is None and "Time" in self._at):
            self._collector.left_out["rows that cannot be read are left out"] += 1
            return
        values = {
            column: None if (value := number(cells[i])) is None else value * scale
            for i, column, scale in self._numbers
        }
        self._collector.sample(Identity(index=index), when, values, self._slowed_by(cells))

    def _when(self, cells: list[str]) -> tuple[int, Clock] | None:
        if "Time" not in self._at:
            return None
        time = cells[self._at["Time"]]
        if "Date" in self._at:
            date = cells[self._at["Date"]]
            if _DATE.fullmatch(date) is None:
                return None
            return time_of(f"{date[:4]}-{date[4:6]}-{date[6:]}T{time}")
        match = _TIME.fullmatch(time)
        if match is None:
            return None
        hours, minutes, seconds = map(int, match.groups())
        ns = (hours * 3600 + minutes * 60 + seconds) * NS_PER_S
        if ns + _DAY_NS // 2 < self._last_ns:  # past midnight
            self._day_ns += _DAY_NS
        self._last_ns = ns
        return self._day_ns + ns, "day"

    def _slowed_by(self, cells: list[str]) -> str:
        """Reasons joined by commas, empty where the row does not tell."""
        if _DCGM_REASONS in self._at and self._is_dcgm:
            bits = mask_of(cells[self._at[_DCGM_REASONS]])
            return "" if bits is None else reasons_of(bits)
        told = [(name, number(cells[i])) for i, name in self._violations]
        if all(value is None for _, value in told):
            return ""
        return ",".join(name for name, value in told if value) or NO_THROTTLING
