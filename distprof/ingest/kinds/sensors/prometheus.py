"""What DCGM's exporter serves: one scrape, or many one after another.

A scrape ends where a metric of a device comes again. Its time is what the lines say (milliseconds
since the epoch, as Prometheus writes them), or a comment with a number before it, in seconds since
the epoch: ``date +'# %s.%N'``.

Source: field names of DCGM (``DCGM_FI_DEV_…``), Prometheus' text format.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from distprof.ingest.kinds.sensors.collect import Collector, Identity
from distprof.ingest.kinds.sensors.values import LAST_NS, bus_id, number, reasons_of, whole
from distprof.run.device_log import Clock, DeviceEvent
from distprof.units import NS_PER_MS, NS_PER_S

__all__ = ["PREFIX", "Scrapes"]

PREFIX = "DCGM_FI_"
_LINE = re.compile(r"(DCGM_FI_\w{1,100})\{([^}]{0,4000})\}\s+(\S{1,40})(?:\s+(\d{10,16}))?\s*")
_LABEL = re.compile(r'(\w{1,60})="((?:[^"\\]|\\.){0,300})"')
_COMMENT_TIME = re.compile(r"#\s*(\d{9,11}(?:\.\d{1,9})?)\s*")
_MIB = 1024.0**2

_COLUMNS: dict[str, tuple[str, float]] = {
    "DEV_SM_CLOCK": ("sm_clock_mhz", 1),
    "DEV_MEM_CLOCK": ("memory_clock_mhz", 1),
    "DEV_GPU_TEMP": ("temperature_c", 1),
    "DEV_POWER_USAGE": ("power_w", 1),
    "DEV_TOTAL_ENERGY_CONSUMPTION": ("energy_j", 1e-3),
    "DEV_GPU_UTIL": ("gpu_utilization_ratio", 0.01),
    "DEV_MEM_COPY_UTIL": ("memory_utilization_ratio", 0.01),
    "DEV_FB_USED": ("memory_used_bytes", _MIB),
    "DEV_ECC_DBE_VOL_TOTAL": ("ecc_uncorrected", 1),
    "PROF_PCIE_TX_BYTES": ("pcie_tx_bytes_per_s", 1),
    "PROF_PCIE_RX_BYTES": ("pcie_rx_bytes_per_s", 1),
}
_REASONS = ("DEV_CLOCK_THROTTLE_REASONS", "DEV_CLOCKS_EVENT_REASONS")
_XID = "DEV_XID_ERRORS"


@dataclass(slots=True)
class _Scrape:
    """One device's lines of one scrape."""

    seen: set[str] = field(default_factory=set)
    values: dict[str, float | None] = field(default_factory=dict)
    reasons: str = ""
    when: tuple[int, Clock] | None = None


class Scrapes:
    """Lines of the exporter.

    Args:
        collector: Where samples go.
    """

    def __init__(self, collector: Collector) -> None:
        self._collector = collector
        self._open: dict[Identity, _Scrape] = {}
        self._instances: dict[Identity, str] = {}
        self._xids: dict[Identity, int] = {}
        self._time: tuple[int, Clock] | None = None
        self._labels: dict[str, tuple[Identity, str]] = {}

    def comment(self, line: str) -> None:
        """Take a comment: one with a number begins a scrape."""
        match = _COMMENT_TIME.fullmatch(line)
        if match is not None:
            self.close()
            seconds, _, rest = match[1].partition(".")
            self._time = _known(int(seconds) * NS_PER_S + int(rest.ljust(9, "0")))

    def take(self, line: str) -> None:
        """Take one metric of one device."""
        match = _LINE.fullmatch(line)
        if match is None:
            self._collector.left_out["lines of DCGM that cannot be read are left out"] += 1
            return
        metric, labels, text, time = match.groups()
        device, instance = self._device(labels)
        if self._instances.setdefault(device, instance) != instance:
            return  # another instance of the same GPU (MIG), with the same sensors
        name = metric[len(PREFIX) :]
        scrape = self._open.get(device)
        if scrape is None or name in scrape.seen:
            if scrape is not None:
                self._close(device, scrape)
            scrape = self._open[device] = _Scrape(when=self._time)
        scrape.seen.add(name)
        if time is not None and scrape.when is None:
            scrape.when = _known(int(time) * NS_PER_MS)
        self._keep(device, scrape, name, number(text))

    def close(self) -> None:
        """End what is open."""
        for device, scrape in self._open.items():
            self._close(device, scrape)
        self._open.clear()

    def _keep(self, device: Identity, scrape: _Scrape, name: str, value: float | None) -> None:
        if name in _COLUMNS:
            column, scale = _COLUMNS[name]
            scrape.values[column] = None if value is None else value * scale
        elif name in _REASONS and value is not None and value >= 0:
            scrape.reasons = reasons_of(int(value))
        elif name == _XID and value is not None:
            self._xid(device, scrape, int(value))

    def _xid(self, device: Identity, scrape: _Scrape, value: int) -> None:
        """The metric holds the last error; it is news where it changes."""
        before = self._xids.get(device)
        self._xids[device] = value
        if value <= 0 or value == before:
            return
        when = scrape.when if before is not None else None
        since = "" if before is not None else ", of some time before the first scrape"
        self._collector.event(
            DeviceEvent(
                file=self._collector.file,
                kind="xid",
                number=value,
                text=f"{PREFIX}{_XID} is {value}{since}",
                t_ns=when[0] if when else None,
                clock=when[1] if when else "none",
                host=device.host,
                bus_id=device.bus_id,
                uuid=device.uuid,
                index=device.index,
            )
        )

    def _close(self, device: Identity, scrape: _Scrape) -> None:
        if scrape.values or scrape.reasons:
            self._collector.sample(device, scrape.when, scrape.values, scrape.reasons)

    def _device(self, labels: str) -> tuple[Identity, str]:
        found = self._labels.get(labels)
        if found is None:
            if len(self._labels) > 50_000:
                self._labels.clear()
            said: dict[str, str] = dict(_LABEL.findall(labels))
            device = Identity(
                host=said.get("Hostname") or said.get("hostname", ""),
                index=whole(said.get("gpu", "")),
                uuid=said.get("UUID") or said.get("uuid", ""),
                bus_id=bus_id(said.get("pci_bus_id", "")),
                name=said.get("modelName", ""),
            )
            found = self._labels[labels] = (device, said.get("GPU_I_ID", ""))
        return found


def _known(ns: int) -> tuple[int, Clock] | None:
    return (ns, "epoch") if ns < LAST_NS else None
