"""Sensor files with one message per line or block, and errors logged by the fabric manager.

- logs of the fabric manager. Source: "Fabric Manager for NVIDIA NVSwitch Systems", log levels
- SuperBench's monitor: a JSON object per sample, with keys such as ``gpu_usage:0``. Source:
  microsoft/superbenchmark, ``superbench/monitor/record.py``
- ``nvidia-smi nvlink --status``: speed of each link of each GPU, or that it is inactive
- DCGM's exporter: one scrape, or several in a row. A scrape of a GPU ends when one of its metrics
  occurs again. The time comes from the lines (milliseconds since the epoch, as Prometheus writes
  them), or from a preceding comment with the seconds since the epoch: ``date +'# %s.%N'``.
  Source: field names of DCGM (``DCGM_FI_DEV_…``), Prometheus' text format
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from distprof.ingest.sensors.collect import (
    Collector,
    Identity,
    bus_id,
    number,
    reasons_of,
    seconds_of,
    since_epoch,
    time_of,
    whole,
)
from distprof.ingest.sensors.kernel import parsed_time
from distprof.run.logs import Clock, DeviceEvent, DeviceLinks
from distprof.units import NS_PER_MS

FABRIC = re.compile(
    r"\[([A-Z][a-z]{2} \d\d \d{4} \d\d:\d\d:\d\d)\] \[([A-Z]{1,12})\] \[tid \d{1,20}\] (.{0,500})"
)

_SWITCH_ERROR = re.compile(r"error (\d{3,6})\b")
_SWITCH = re.compile(r"pci bus id ([0-9a-fA-F:.]{5,20})")
_BAD = {"ERROR", "CRITICAL", "FATAL"}


def take_fabric_line(line: str, collector: Collector) -> None:
    """Read a line of the fabric manager, if its level is an error or worse."""
    match = FABRIC.match(line)
    if match is None or match[2] not in _BAD:
        return
    number, switch = _SWITCH_ERROR.search(match[3]), _SWITCH.search(match[3])
    t_ns = parsed_time(match[1], "%b %d %Y %H:%M:%S")
    collector.event(
        DeviceEvent(
            file=collector.file,
            kind="fabric",
            number=int(number[1]) if number else None,
            text=match[3].strip(),
            t_ns=t_ns,
            clock="none" if t_ns is None else "local",
            time=match[1],
            bus_id=bus_id(switch[1]) if switch else "",
        )
    )


# SuperBench's monitor -----------------------------------------------------------------------------

MARK = '"gpu_'
MAX_GPUS = 1_024
LARGEST = 1e18

_MONITOR_COLUMNS: dict[str, tuple[str, float]] = {
    "gpu_usage": ("gpu_utilization_ratio", 0.01),
    "gpu_temperature": ("temperature_c", 1),
    "gpu_power": ("power_w", 1),
    "gpu_mem_used": ("memory_used_bytes", 1),
    "gpu_uncorrected_ecc": ("ecc_uncorrected", 1),
}


def take_monitor_line(line: str, collector: Collector) -> None:
    """Read one sample of all GPUs of a host."""
    try:
        sample: Any = msgspec.json.decode(line)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        sample = None
    time = sample.get("time") if isinstance(sample, dict) else None
    when = time_of(time) if isinstance(time, str) else None
    if when is None:
        collector.left_out["unreadable samples skipped"] += 1
        return
    rows: dict[int, dict[str, float | None]] = {}
    for key, value in sample.items():
        name, _, index = key.partition(":")
        is_gpu = index.isdecimal() and len(index) < 5 and int(index) < MAX_GPUS
        if is_gpu and name in _MONITOR_COLUMNS:
            column, scale = _MONITOR_COLUMNS[name]
            is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
            known = value * scale if is_number and abs(value) < LARGEST else None
            rows.setdefault(int(index), {})[column] = known
    for gpu, values in rows.items():
        collector.sample(Identity(index=gpu), when, values)


# ``nvidia-smi nvlink --status`` -------------------------------------------------------------------

_GPU_HEADING = re.compile(r"GPU (\d{1,4}): (.{1,200}) \(UUID: (\S{1,80})\)\s*")
_LINK = re.compile(r"\s*Link (\d{1,3}): (?:<?(inactive)>?|(\d{1,5}(?:\.\d{1,6})?) GB/s)\s*", re.I)
MAX_LINKS = 256


class NvlinkStatus:
    """Reader of the status; GPUs without a link line (no NVLink, MIG) are left out."""

    def __init__(self, collector: Collector) -> None:
        self._collector = collector
        self._gpu: dict[str, Any] | None = None
        self._speeds: dict[int, float | None] = {}

    def take(self, line: str) -> bool:
        """Read a line; False if it is not part of the status."""
        gpu = _GPU_HEADING.fullmatch(line)
        if gpu is not None:
            self.close()
            self._gpu = {"index": int(gpu[1]), "name": gpu[2], "uuid": gpu[3]}
            return True
        link = _LINK.fullmatch(line)
        if link is None or self._gpu is None:
            return False
        if int(link[1]) < MAX_LINKS:
            self._speeds[int(link[1])] = float(link[3]) if link[3] else None
        return True

    def close(self) -> None:
        """Finish the current GPU."""
        if self._gpu is not None and self._speeds:
            speeds = tuple(speed for _, speed in sorted(self._speeds.items()))
            self._collector.link(
                DeviceLinks(file=self._collector.file, host="", gb_per_s=speeds, **self._gpu)
            )
        self._gpu, self._speeds = None, {}


# DCGM's exporter ----------------------------------------------------------------------------------

PREFIX = "DCGM_FI_"
_LINE = re.compile(r"(DCGM_FI_\w{1,100})\{([^}]{0,4000})\}\s+(\S{1,40})(?:\s+(\d{10,16}))?\s*")
_LABEL = re.compile(r'(\w{1,60})="((?:[^"\\]|\\.){0,300})"')
_COMMENT_TIME = re.compile(r"#\s*(\d{9,11}(?:\.\d{1,9})?)\s*")
_MIB = 1024.0**2

_METRIC_COLUMNS: dict[str, tuple[str, float]] = {
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
_XID_METRIC = "DEV_XID_ERRORS"


class _Scrape(msgspec.Struct):
    """Metrics of one GPU in one scrape."""

    seen: set[str] = msgspec.field(default_factory=set)
    values: dict[str, float | None] = msgspec.field(default_factory=dict)
    reasons: str = ""
    when: tuple[int, Clock] | None = None


class Scrapes:
    """Reader of the exporter's lines."""

    def __init__(self, collector: Collector) -> None:
        self._collector = collector
        self._open: dict[Identity, _Scrape] = {}
        self._instances: dict[Identity, str] = {}
        self._xids: dict[Identity, int] = {}
        self._time: tuple[int, Clock] | None = None
        self._labels: dict[str, tuple[Identity, str]] = {}

    def comment(self, line: str) -> None:
        """Read a comment; one with a number begins a scrape."""
        match = _COMMENT_TIME.fullmatch(line)
        if match is not None:
            self.close()
            self._time = seconds_of(match[1])

    def take(self, line: str) -> None:
        """Read one metric of one GPU."""
        match = _LINE.fullmatch(line)
        if match is None:
            self._collector.left_out["unreadable DCGM lines skipped"] += 1
            return
        metric, labels, text, time = match.groups()
        device, instance = self._device(labels)
        if self._instances.setdefault(device, instance) != instance:
            return  # another instance of the same GPU (MIG), with the same sensors
        name = metric[len(PREFIX) :]
        scrape = self._open.get(device)
        if scrape is None or name in scrape.seen:
            self._close(device, scrape)
            scrape = self._open[device] = _Scrape(when=self._time)
        scrape.seen.add(name)
        if time is not None and scrape.when is None:
            scrape.when = since_epoch(int(time) * NS_PER_MS)
        value = number(text)
        if name in _METRIC_COLUMNS:
            column, scale = _METRIC_COLUMNS[name]
            scrape.values[column] = None if value is None else value * scale
        elif name in _REASONS and value is not None and value >= 0:
            scrape.reasons = reasons_of(str(int(value)))
        elif name == _XID_METRIC and value is not None:
            self._xid(device, scrape, int(value))

    def close(self) -> None:
        """Finish the current scrapes."""
        for device, scrape in self._open.items():
            self._close(device, scrape)
        self._open.clear()

    def _xid(self, device: Identity, scrape: _Scrape, value: int) -> None:
        """Add an error if the metric, which holds the last error, has changed."""
        before = self._xids.get(device)
        self._xids[device] = value
        if value <= 0 or value == before:
            return
        when = scrape.when if before is not None else None
        since = "" if before is not None else ", set at an unknown time before the first scrape"
        self._collector.event(
            DeviceEvent(
                file=self._collector.file,
                kind="xid",
                number=value,
                text=f"{PREFIX}{_XID_METRIC} is {value}{since}",
                t_ns=when[0] if when else None,
                clock=when[1] if when else "none",
                host=device.host,
                bus_id=device.bus_id,
                uuid=device.uuid,
                index=device.index,
            )
        )

    def _close(self, device: Identity, scrape: _Scrape | None) -> None:
        if scrape is not None and (scrape.values or scrape.reasons):
            self._collector.sample(device, scrape.when, scrape.values, scrape.reasons)

    def _device(self, labels: str) -> tuple[Identity, str]:
        found = self._labels.get(labels)
        if found is None:
            if len(self._labels) > 50_000:
                self._labels.clear()
            by_name: dict[str, str] = dict(_LABEL.findall(labels))
            device = Identity(
                host=by_name.get("Hostname") or by_name.get("hostname", ""),
                index=whole(by_name.get("gpu", "")),
                uuid=by_name.get("UUID") or by_name.get("uuid", ""),
                bus_id=bus_id(by_name.get("pci_bus_id", "")),
                name=by_name.get("modelName", ""),
            )
            found = self._labels[labels] = (device, by_name.get("GPU_I_ID", ""))
        return found
