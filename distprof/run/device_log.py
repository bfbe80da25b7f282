"""What tools other than the probes recorded of devices: sensors over time, errors, links."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from distprof.schema import Table

__all__ = ["Clock", "DeviceEvent", "DeviceLinks", "DeviceLog", "DeviceSeries", "name_of_device"]

Clock: TypeAlias = Literal["epoch", "local", "day", "none"]
"""What times of a series are: ns since the epoch; the same of a local clock whose zone the file
does not tell; since a midnight whose date it does not tell; numbers of samples, for want of times.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSeries:
    """Samples of one device's sensors.

    Args:
        file: Where they come from.
        host: Host name, empty where the file does not tell.
        index: Number of the device on its host as the driver counts; None where not told.
        uuid: For example ``GPU-5269b708-…``; empty where not told.
        bus_id: PCI bus id as ``domain:bus:device.function``, lower case; empty where not told.
        name: For example ``NVIDIA H200``; empty where not told.
        clock: What its times are.
        table: TELEMETRY, ascending in time.
        rank: Global rank that it was joined to; None where it was not.
    """

    file: str
    host: str
    index: int | None
    uuid: str
    bus_id: str
    name: str
    clock: Clock
    table: Table
    rank: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceEvent:
    """An error that a driver or a switch's manager logged.

    Args:
        file: Where it stands.
        kind: ``xid`` of a GPU, ``fabric`` of an NVSwitch.
        number: Of the error; None where the line has none.
        text: The line, without its time.
        t_ns: When, on ``clock``; None where the line does not tell.
        clock: What ``t_ns`` is; ``none`` where it is None.
        time: The time as the line has it.
        host: Host name, empty where not told.
        bus_id: Of the GPU or the switch, as in DeviceSeries.
        uuid: Of the GPU, empty where not told.
        index: Of the GPU, None where not told.
        rank: Global rank on that device, None where that is not known.
    """

    file: str
    kind: Literal["xid", "fabric"]
    number: int | None
    text: str
    t_ns: int | None = None
    clock: Clock = "none"
    time: str = ""
    host: str = ""
    bus_id: str = ""
    uuid: str = ""
    index: int | None = None
    rank: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceLinks:
    """NVLink of one device at one moment.

    Args:
        file: Where it stands.
        host: Host name, empty where not told.
        index: Number of the device on its host.
        uuid: Empty where not told.
        name: For example ``NVIDIA A100-SXM4-80GB``.
        gb_per_s: Speed of each link per direction, GB/s; None for one that is inactive.
        rank: Global rank on that device, None where that is not known.
    """

    file: str
    host: str
    index: int
    uuid: str
    name: str
    gb_per_s: tuple[float | None, ...]
    rank: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceLog:
    """Everything that such files tell.

    Args:
        files: Files read.
        series: Sensors, one entry per device and clock.
        events: Errors, in order of the files.
        links: NVLink, one entry per device.
        num_lines: Lines read.
        written_ns: File to when it was last written, ns since the epoch; without packed ones and
            those that are not on this machine.
        notes: What was damaged, left out, or decided, one sentence each.
    """

    files: tuple[str, ...] = ()
    series: tuple[DeviceSeries, ...] = ()
    events: tuple[DeviceEvent, ...] = ()
    links: tuple[DeviceLinks, ...] = ()
    num_lines: int = 0
    written_ns: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @staticmethod
    def merged(logs: Sequence[DeviceLog]) -> DeviceLog:
        """Several logs as one."""
        return DeviceLog(
            files=tuple(file for log in logs for file in log.files),
            series=tuple(series for log in logs for series in log.series),
            events=tuple(event for log in logs for event in log.events),
            links=tuple(links for log in logs for links in log.links),
            num_lines=sum(log.num_lines for log in logs),
            written_ns={file: ns for log in logs for file, ns in log.written_ns.items()},
            notes=tuple(dict.fromkeys(note for log in logs for note in log.notes)),
        )


def name_of_device(host: str, index: int | None, bus_id: str, uuid: str) -> str:
    """For people, by the best that is known: ``GPU 3 of node-1``."""
    device = f"GPU {index}" if index is not None else f"GPU {bus_id or uuid}".strip()
    return f"{device} of {host}" if host else device
