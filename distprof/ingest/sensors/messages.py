"""Sensor files with one message per line or block, and errors of kernels and fabric managers.

- logs of the fabric manager. Source: "Fabric Manager for NVIDIA NVSwitch Systems", log levels
- SuperBench's monitor: a JSON object per sample, with keys such as ``gpu_usage:0``. Source:
  microsoft/superbenchmark, ``superbench/monitor/record.py``
- ``nvidia-smi nvlink --status``: speed of each link of each GPU, or that it is inactive
- DCGM's exporter: one scrape, or several in a row. A scrape of a GPU ends when one of its metrics
  occurs again. The time comes from the lines (milliseconds since the epoch, as Prometheus writes
  them), or from a preceding comment with the seconds since the epoch: ``date +'# %s.%N'``.
  Source: field names of DCGM (``DCGM_FI_DEV_…``), Prometheus' text format
- kernel logs: XID errors of GPUs, crashes of processes, and the OOM killer, as ``dmesg`` (with or
  without ``-T``), ``journalctl -k`` (``-o short``, ``short-precise``, ``short-full``,
  ``short-iso``, ``short-unix``, ``short-monotonic``, ``json``) and syslog write them, also with the
  host name that ``pdsh`` and ``clush`` put before each line. Source: NVIDIA, "XID Errors"; Linux,
  ``show_signal_msg`` (``arch/x86/mm/fault.c``), ``show_signal`` (``arch/x86/kernel/traps.c``,
  ``arch/arm64/kernel/traps.c``), ``__oom_kill_process`` (``mm/oom_kill.c``); systemd,
  ``systemd.journal-fields(7)`` and ``journalctl(1)``
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec

from distprof.bounds import patterns_beside
from distprof.ingest.sensors.collect import (
    JOURNAL,
    LAST_NS,
    Collector,
    bus_id,
    columns_of,
    number,
    reasons_of,
    seconds_of,
    since_epoch,
    time_of,
    whole,
)
from distprof.run.logs import Clock, DeviceEvent, DeviceLinks, Identity
from distprof.units import NS_PER_MS, NS_PER_S

_DRIVER = "NVRM: "
_OFF_THE_BUS = 79
_PATTERNS = patterns_beside(__package__, "kernel_logs.toml")
SNIFFED_LINES = 200
_LEAST_SHARE = 0.9
_LEAST_LINES = 3


class _Stamp(NamedTuple):
    """Prefix of a line before the kernel's message."""

    host: str = ""
    t_ns: int | None = None
    clock: Clock = "none"
    time: str = ""

    def add(self, of: Collector, text: str, **more: Any) -> None:
        """Keep what a line with this prefix reports."""
        of.event(DeviceEvent(file=of.file, text=text, **{"number": None, **more, **self._asdict()}))


def holds_marks(line: str) -> bool:
    """Whether a line may be one of those read here; a fast test for every line of any file."""
    return (
        _DRIVER in line
        or "[IO_PAGE_FAULT " in line
        or "DMAR: [DMA " in line
        or "]: segfault at " in line
        or "traps: " in line
        or "]: unhandled exception: " in line
        or "Killed process " in line
    )


def is_kernel_log(text: str) -> bool:
    """Whether the beginning of a file is a kernel log, with or without errors."""
    lines = [line for line in text.split("\n", SNIFFED_LINES)[:SNIFFED_LINES] if line.strip()]
    if lines and JOURNAL in lines[0]:
        return lines[0].startswith("{")
    fitting = sum(_is_of_kernel(line.rstrip("\r")) for line in lines)
    least = 1 if any(map(holds_marks, lines)) else _LEAST_LINES
    return fitting >= max(_LEAST_SHARE * len(lines), least)


def _is_of_kernel(line: str) -> bool:
    """Whether a line begins with the kernel's name or time; a date alone is not enough."""
    start = line[:200]
    before, bracket, _ = line[:90].partition("[")
    # other programs begin with a date, too, and have brackets later
    is_other = _PATTERNS["dated"].match(line) or _PATTERNS["date"].search(before)
    is_stamped = bool(bracket) and not is_other
    is_named = " kernel:" in start or " kernel - " in start or is_stamped
    is_of_dmesg = bool(_PATTERNS["level"].match(line) or _PATTERNS["of_dmesg"].match(line))
    return (is_named or is_of_dmesg) and _split(line)[0] is not None


def take_kernel(line: str, collector: Collector) -> None:
    """Read a line of a kernel log that :func:`holds_marks`."""
    stamp, message = _split(line)
    if stamp is None and _DRIVER in line:
        stamp, message = _Stamp(), line[line.index(_DRIVER) :]
    _take(message, stamp or _Stamp(), collector)


def take_journal(line: str, collector: Collector) -> None:
    """Read an entry of ``journalctl -o json``; a damaged one is counted."""
    if not holds_marks(line):
        return
    entry = _object_in(line)
    message = entry.get("MESSAGE")
    if not isinstance(message, str):
        collector.left_out["unreadable entries of the journal skipped"] += 1
        return
    if entry.get("SYSLOG_IDENTIFIER", "kernel") != "kernel":
        return  # from a program that writes about kernels
    host, micros = entry.get("_HOSTNAME"), entry.get("__REALTIME_TIMESTAMP")
    is_time = isinstance(micros, str) and micros.isdecimal() and len(micros) < 17
    t_ns = int(micros) * 1_000 if is_time and int(micros) * 1_000 < LAST_NS else None
    time = "" if t_ns is None else f"{datetime.fromtimestamp(t_ns // NS_PER_S, UTC):%FT%TZ}"
    named = host if isinstance(host, str) and _PATTERNS["host"].fullmatch(host) else ""
    _take(message, _Stamp(named, t_ns, "none" if t_ns is None else "epoch", time), collector)


def _object_in(line: str) -> Any:
    """The JSON object in a line; empty if it is damaged or anything else."""
    try:
        found: Any = msgspec.json.decode(line)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return {}
    return found if isinstance(found, dict) else {}


def local_time(text: str) -> tuple[int, Clock] | None:
    """A time such as ``Jul 3 2026 22:10:46`` in ns, as if it were UTC; None if it is invalid."""
    try:
        moment = datetime.strptime(text, "%b %d %Y %H:%M:%S").replace(tzinfo=UTC)
    except ValueError:
        return None
    ns = int(moment.timestamp()) * NS_PER_S
    return (ns, "local") if 0 <= ns < LAST_NS else None


def _take(message: str, stamp: _Stamp, collector: Collector) -> None:
    collector.is_kernel_log |= _DRIVER in message
    if _DRIVER in message:
        _take_driver(message, stamp, collector)
    elif refused := _PATTERNS["refused"].search(message):
        collector.is_kernel_log = True
        stamp.add(collector, refused[2] or "DMAR", kind="iommu", bus_id=bus_id(refused[1]))
    elif found := _PATTERNS["crash"].match(message) or _PATTERNS["killed"].match(message):
        collector.is_kernel_log = True
        resident = sum(int(n) for n in _PATTERNS["resident"].findall(found["text"])) << 10
        stamp.add(
            collector,
            found["text"].strip(),
            kind="crash" if found.re is _PATTERNS["crash"] else "oom",
            process=found["name"].strip(),
            pid=int(found["pid"]),
            memory_bytes=resident or None,
        )


def _take_driver(message: str, stamp: _Stamp, collector: Collector) -> None:
    """Read a line of NVIDIA's driver; without an XID, it may still give the UUID of a bus id."""
    named = _PATTERNS["gpu"].search(message)
    if named is not None and len(collector.uuids) < 100_000:
        collector.uuids[f"{stamp.host} {bus_id(named[1])}"] = named[2]
    found = _PATTERNS["xid"].search(message)
    if found is not None:
        where, text = bus_id(found[1]), found["text"].strip()
        process = _PATTERNS["xid_process"].match(text)
        stamp.add(
            collector,
            text[process.end() :] if process else _PATTERNS["xid_no_process"].sub("", text, 1),
            kind="xid",
            number=int(found["cause"] or found[2]),
            bus_id=where,
            uuid=collector.uuids.get(f"{stamp.host} {where}", ""),
            process="" if process is None else process[2].strip(),
            pid=None if process is None else int(process[1]),
        )
    elif lost := _PATTERNS["lost"].search(message):
        stamp.add(collector, lost[1], kind="xid", number=_OFF_THE_BUS)


def _split(line: str) -> tuple[_Stamp | None, str]:
    """Prefix and kernel message of a line; the prefix is None if it has no known time."""
    for prefix in ("task", "level"):
        if found := _PATTERNS[prefix].match(line):
            line = line[found.end() :]
    label = _PATTERNS["label"].match(line)
    rest = line if label is None else line[label.end() :]
    stamp, message = _stamped(rest)
    if stamp is not None and label is not None and not stamp.host:
        stamp = stamp._replace(host=label[1])
    inner = None if stamp is None else _PATTERNS["seconds"].match(message)
    return stamp, message if inner is None else message[inner.end() :]


def _stamped(line: str) -> tuple[_Stamp | None, str]:
    ctime = _PATTERNS["ctime"].match(line)
    if ctime is not None:
        t_ns, clock = local_time(f"{ctime[2]} {ctime[3]} {ctime[5]} {ctime[4]}") or (None, "none")
        return _Stamp("", t_ns, clock, ctime[0].strip("[] ")), line[ctime.end() :]
    forms = {"seconds": None, "syslog": None, "iso": _zoned, "full": _zoned, "unix": seconds_of}
    for form, known in forms.items():
        match = _PATTERNS[form].match(line)
        if match is not None:
            when = None if known is None else known(match["time"])
            t_ns, clock = when or (None, "none")
            time = match["time"] + " s after boot" * (form == "seconds")
            return _Stamp(match["host"] or "", t_ns, clock, time), line[match.end() :]
    return None, line


def _zoned(text: str) -> tuple[int, Clock] | None:
    return time_of(re.sub(r"([+-]\d\d)(\d\d)$", r"\1:\2", text.replace(" UTC", "Z")))


FABRIC = re.compile(
    r"\[([A-Z][a-z]{2} \d\d \d{4} \d\d:\d\d:\d\d)\] \[([A-Z]{1,12})\] \[tid \d{1,20}\] (.{0,500})"
)

_BAD = {"ERROR", "CRITICAL", "FATAL"}


def take_fabric_line(line: str, collector: Collector) -> None:
    """Read a line of the fabric manager, if its level is an error or worse."""
    match = FABRIC.match(line)
    if match is None or match[2] not in _BAD:
        return
    number = _PATTERNS["switch_error"].search(match[3])
    switch = _PATTERNS["switch"].search(match[3])
    t_ns, clock = local_time(match[1]) or (None, "none")
    stamp = _Stamp("", t_ns, clock, match[1])
    at = bus_id(switch[1]) if switch else ""
    code = int(number[1]) if number else None
    stamp.add(collector, match[3].strip(), kind="fabric", number=code, bus_id=at)


# SuperBench's monitor -----------------------------------------------------------------------------

MARK = '"gpu_'
MAX_GPUS = 1_024
LARGEST = 1e18


def take_monitor_line(line: str, collector: Collector) -> None:
    """Read one sample of all GPUs of a host."""
    sample = _object_in(line)
    time = sample.get("time")
    when = time_of(time) if isinstance(time, str) else None
    if when is None:
        collector.left_out["unreadable samples skipped"] += 1
        return
    columns = columns_of("superbench")
    rows: dict[int, dict[str, float | None]] = {}
    for key, value in sample.items():
        name, _, index = key.partition(":")
        is_gpu = index.isdecimal() and len(index) < 5 and int(index) < MAX_GPUS
        if is_gpu and name in columns:
            column, scale = columns[name]
            is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
            known = value * scale if is_number and abs(value) < LARGEST else None
            rows.setdefault(int(index), {})[column] = known
    for gpu, values in rows.items():
        collector.sample(Identity(index=gpu), when, values)


# ``nvidia-smi nvlink --status`` -------------------------------------------------------------------

MAX_LINKS = 256


class NvlinkStatus:
    """Reader of the status; GPUs without a link line (no NVLink, MIG) are left out."""

    def __init__(self, collector: Collector) -> None:
        self._collector = collector
        self._gpu: dict[str, Any] | None = None
        self._speeds: dict[int, float | None] = {}

    def take(self, line: str) -> bool:
        """Read a line; False if it is not part of the status."""
        gpu = _PATTERNS["gpu_heading"].fullmatch(line)
        if gpu is not None:
            self.close()
            self._gpu = {"index": int(gpu[1]), "name": gpu[2], "uuid": gpu[3]}
            return True
        link = _PATTERNS["link"].fullmatch(line)
        if link is None or self._gpu is None:
            return False
        if int(link[1]) < MAX_LINKS:
            self._speeds[int(link[1])] = float(link[3]) if link[3] else None
        return True

    def close(self) -> None:
        """Finish the current GPU."""
        if self._gpu is not None and self._speeds:
            last = max(self._speeds)  # people leave out those in between
            speeds = tuple(self._speeds.get(n, self._speeds[last]) for n in range(last + 1))
            self._collector.link(
                DeviceLinks(file=self._collector.file, host="", gb_per_s=speeds, **self._gpu)
            )
        self._gpu, self._speeds = None, {}


# DCGM's exporter ----------------------------------------------------------------------------------

PREFIX = "DCGM_FI_"

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
        self._columns = columns_of("dcgm_exporter")

    def comment(self, line: str) -> None:
        """Read a comment; one with a number begins a scrape."""
        match = _PATTERNS["comment_time"].fullmatch(line)
        if match is not None:
            self.close()
            self._time = seconds_of(match[1])

    def take(self, line: str) -> None:
        """Read one metric of one GPU."""
        match = _PATTERNS["line"].fullmatch(line)
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
        if name in self._columns:
            column, scale = self._columns[name]
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
        text = f"{PREFIX}{_XID_METRIC} is {value}{since}"
        place = {"bus_id": device.bus_id, "uuid": device.uuid, "index": device.index}
        stamp = _Stamp(device.host, *(when or (None, "none")))
        stamp.add(self._collector, text, kind="xid", number=value, **place)

    def _close(self, device: Identity, scrape: _Scrape | None) -> None:
        if scrape is not None and (scrape.values or scrape.reasons):
            self._collector.sample(device, scrape.when, scrape.values, scrape.reasons)

    def _device(self, labels: str) -> tuple[Identity, str]:
        found = self._labels.get(labels)
        if found is None:
            if len(self._labels) > 50_000:
                self._labels.clear()
            by_name: dict[str, str] = dict(_PATTERNS["metric_label"].findall(labels))
            device = Identity(
                host=by_name.get("Hostname") or by_name.get("hostname", ""),
                index=whole(by_name.get("gpu", "")),
                uuid=by_name.get("UUID") or by_name.get("uuid", ""),
                bus_id=bus_id(by_name.get("pci_bus_id", "")),
                name=by_name.get("modelName", ""),
            )
            found = self._labels[labels] = (device, by_name.get("GPU_I_ID", ""))
        return found
