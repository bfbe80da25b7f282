"""Errors of devices in logs of the kernel (``NVRM: Xid``) and of the fabric manager.

Source: NVIDIA, "XID Errors"; "Fabric Manager for NVIDIA NVSwitch Systems", log levels.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime

from distprof.ingest.kinds.sensors.collect import Collector
from distprof.ingest.kinds.sensors.values import LAST_NS, bus_id, time_of
from distprof.run.device_log import Clock, DeviceEvent
from distprof.units import NS_PER_S

__all__ = ["FABRIC", "KERNEL", "take_fabric_line", "take_kernel_line"]

KERNEL = "NVRM: "
_XID = re.compile(r"NVRM: Xid \(([^)]{1,80})\): (\d{1,6})\b,?\s*(.{0,400})")
_GPU = re.compile(r"NVRM: GPU at (PCI:[0-9a-fA-F:.]{4,40}): (GPU-[0-9a-fA-F-]{8,40})")
FABRIC = re.compile(
    r"\[([A-Z][a-z]{2} \d\d \d{4} \d\d:\d\d:\d\d)\] \[([A-Z]{1,12})\] \[tid \d{1,20}\] (.{0,500})"
)
_SWITCH_ERROR = re.compile(r"error (\d{3,6})\b")
_SWITCH = re.compile(r"pci bus id ([0-9a-fA-F:.]{5,20})")
_BAD = {"ERROR", "CRITICAL", "FATAL"}

_CTIME = re.compile(r"\[([A-Z][a-z]{2}) ([A-Z][a-z]{2}) +(\d{1,2}) (\d\d:\d\d:\d\d) (\d{4})\]")
_SECONDS = re.compile(r"\[\s*(\d{1,10}\.\d{1,9})\]")
_ISO = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:[.,]\d{1,6})?(?:Z|[+-]\d\d:?\d\d)?)\s+(\S+)?")
_SYSLOG = re.compile(r"([A-Z][a-z]{2} +\d{1,2} \d\d:\d\d:\d\d) (\S{1,80}) kernel:")
_HOST = re.compile(r"[A-Za-z0-9][\w.-]{0,80}")


def take_kernel_line(line: str, collector: Collector) -> None:
    """Read a line of the NVIDIA driver; those without an XID only tell which GPU is where."""
    named = _GPU.search(line)
    if named is not None and len(collector.uuids) < 100_000:
        collector.uuids[bus_id(named[1])] = named[2]
    found = _XID.search(line)
    if found is None:
        return
    where = bus_id(found[1])
    t_ns, clock, time, host = _kernel_time(line[: found.start()])
    collector.event(
        DeviceEvent(
            file=collector.file,
            kind="xid",
            number=int(found[2]),
            text=found[3].strip(),
            t_ns=t_ns,
            clock=clock,
            time=time,
            host=host,
            bus_id=where,
            uuid=collector.uuids.get(where, ""),
        )
    )


def take_fabric_line(line: str, collector: Collector) -> None:
    """Read a line of the fabric manager; those below an error are left alone."""
    match = FABRIC.match(line)
    if match is None or match[2] not in _BAD:
        return
    number, switch = _SWITCH_ERROR.search(match[3]), _SWITCH.search(match[3])
    t_ns = _parsed(match[1], "%b %d %Y %H:%M:%S")
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


def _kernel_time(prefix: str) -> tuple[int | None, Clock, str, str]:
    """Time, its clock, its text, and the host, from what stands before the driver's own words."""
    iso = _ISO.match(prefix)
    if iso is not None:
        when = time_of(_with_colon(iso[1]))
        host = iso[2] if iso[2] and _HOST.fullmatch(iso[2]) and iso[2] != "kernel" else ""
        return (when[0] if when else None), (when[1] if when else "none"), iso[1], host
    syslog = _SYSLOG.match(prefix)
    if syslog is not None:
        return None, "none", syslog[1], syslog[2] if _HOST.fullmatch(syslog[2]) else ""
    ctime = _CTIME.search(prefix)
    if ctime is not None:
        t_ns = _parsed(f"{ctime[2]} {ctime[3]} {ctime[5]} {ctime[4]}", "%b %d %Y %H:%M:%S")
        return t_ns, "none" if t_ns is None else "local", ctime[0].strip("[]"), ""
    seconds = _SECONDS.search(prefix)
    return None, "none", f"{seconds[1]} s after boot" if seconds else "", ""


def _with_colon(text: str) -> str:
    """``+0000`` as ``+00:00``."""
    return re.sub(r"([+-]\d\d)(\d\d)$", r"\1:\2", text)


def _parsed(text: str, form: str) -> int | None:
    try:
        moment = datetime.strptime(text, form).replace(tzinfo=UTC)
    except ValueError:
        return None
    ns = int(moment.timestamp()) * NS_PER_S
    return ns if 0 <= ns < LAST_NS else None
