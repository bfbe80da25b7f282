"""Tables that ``nvidia-smi`` prints by default, of one or several hosts. A table is a snapshot.

Source: output of ``nvidia-smi`` of drivers 418 to 590.
"""

from __future__ import annotations

import re

from distprof.ingest.sensors.collect import Collector, Identity, Labelled, bus_id, number, whole
from distprof.ingest.sensors.kernel import parsed_time
from distprof.run.logs import Clock

TITLE = "| NVIDIA-SMI "
_WHEN = re.compile(r"[A-Z][a-z]{2} ([A-Z][a-z]{2}) +(\d{1,2}) (\d\d:\d\d:\d\d) (\d{4})\s*")
_FIRST = re.compile(
    r"\|\s+(\d{1,4})\s{1,4}(\S.{0,60}?)\s+(?:On|Off|N/A)\s*\|\s*([0-9A-Fa-f]{4,8}:[0-9A-Fa-f:.]{5,9})\s"
    r"+(?:On|Off|N/A)\s*\|\s*(\S{1,12})\s*\|\s*"
)
_SECOND = re.compile(
    r"\|\s*\S{1,5}\s+(\d{1,4}C|N/A|ERR!)\s+\S{1,4}\s+(\S{1,8})\s*/\s*\S{1,8}\s*\|\s*(\S{1,12})\s*/"
    r"\s*\S{1,12}\s*\|\s*(\d{1,3}%|N/A|ERR!)\s.{0,40}\|\s*"
)
_MIB = 1024.0**2


def date_of(line: str) -> tuple[int, Clock] | None:
    """The time of a date such as ``Fri Jul  3 22:10:46 2026``; None for another line."""
    match = _WHEN.fullmatch(line) if line[:1].isupper() else None
    if match is None:
        return None
    month, day, time, year = match.groups()
    t_ns = parsed_time(f"{month} {day} {year} {time}", "%b %d %Y %H:%M:%S")
    return None if t_ns is None else (t_ns, "local")


class SmiTables:
    """Reader of the tables of one host."""

    def __init__(self, collector: Collector | Labelled, host: str = "") -> None:
        self._collector = collector
        self._host = host
        self._when: tuple[int, Clock] | None = None
        self._gpu: tuple[Identity, float | None] | None = None

    def take(self, line: str) -> bool:
        """Read a line; False if it is not part of a table."""
        if line[:1] != "|":
            self._when = date_of(line) or self._when
            return False
        first = _FIRST.fullmatch(line)
        if first is not None:
            index, name, bus, ecc = first.groups()
            device = Identity(host=self._host, index=whole(index), bus_id=bus_id(bus), name=name)
            self._gpu = (device, number(ecc))
            return True
        second = _SECOND.fullmatch(line)
        if second is not None and self._gpu is not None:
            temperature, power, memory, use = (number(cell) for cell in second.groups())
            device, ecc_errors = self._gpu
            values = {
                "temperature_c": temperature,
                "power_w": power,
                "memory_used_bytes": None if memory is None else memory,
                "gpu_utilization_ratio": None if use is None else use / 100,
                "ecc_uncorrected": ecc_errors,
            }
            self._collector.sample(device, self._when, values, origin="table")
            self._gpu = None
        return True
