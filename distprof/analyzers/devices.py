"""What sensor files and logs of drivers tell beside the ranks: other devices, errors, NVLink."""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec.structs import replace

from distprof.analyzers.telemetry import (
    DeviceError,
    DeviceNvlink,
    DeviceTelemetry,
    TelemetryResult,
    measure_device,
)
from distprof.hardware import load_sheet
from distprof.run.device_log import DeviceEvent, DeviceLinks, DeviceLog, name_of_device
from distprof.run.run import Run

__all__ = ["with_devices"]

MAX_DEVICES = 4_096
MAX_ERRORS = 1_000
_GB = 1e9

# Kinds that are sold with all of their links, by the names that the driver gives them.
_SXM = (
    (re.compile(r"V100-SXM"), "v100"),
    (re.compile(r"A100-SXM"), "a100"),
    (re.compile(r"H100 80GB HBM3$"), "h100"),
    (re.compile(r"H200$"), "h200"),
    (re.compile(r"B200$"), "b200"),
)


def with_devices(result: TelemetryResult, run: Run) -> TelemetryResult:
    """The result with what files beside the recording tell; as it was without such a file."""
    log = run.devices
    is_told = bool(result.ranks or (log is not None and log.series))
    is_missing = not is_told and any(_has_sensors(rank.device.name) for rank in run.ranks)
    if log is None:
        return replace(result, is_missing=is_missing)
    return replace(
        result,
        devices=_devices(log),
        errors=_errors(log.events)[:MAX_ERRORS],
        nvlinks=tuple(_nvlink(links) for links in log.links[:MAX_DEVICES]),
        is_missing=is_missing,
        unavailable=() if run.job is None and log.series else result.unavailable,
    )


def _has_sensors(name: str) -> bool:
    """Whether a device is of a kind whose sensors can be read; AMD's tools are not known yet."""
    return name not in ("", "cpu") and not name.startswith(("AMD", "Instinct"))


def _devices(log: DeviceLog) -> tuple[DeviceTelemetry, ...]:
    others = [one for one in log.series if one.rank is None and len(one.table)]
    return tuple(
        DeviceTelemetry(
            file=one.file,
            host=one.host,
            index=one.index,
            uuid=one.uuid,
            bus_id=one.bus_id,
            name=one.name,
            sensors=measure_device(-1, one.table, origin=one.file),
        )
        for one in others[:MAX_DEVICES]
    )


def _errors(events: Sequence[DeviceEvent]) -> tuple[DeviceError, ...]:
    """Alike ones of a device in one row, in order of their first."""
    alike: dict[tuple[object, ...], list[DeviceEvent]] = {}
    for event in events:
        device = event.bus_id or event.uuid or event.index
        alike.setdefault((event.kind, event.number, event.host, device), []).append(event)
    return tuple(_error(group) for group in alike.values())


def _error(alike: Sequence[DeviceEvent]) -> DeviceError:
    first = alike[0]
    name = name_of_device(first.host, first.index, first.bus_id, first.uuid)
    return DeviceError(
        kind=first.kind,
        number=first.number,
        device=name.replace("GPU", "NVSwitch", 1) if first.kind == "fabric" else name,
        rank=first.rank,
        count=len(alike),
        text=first.text,
        time=first.time,
        is_dated=first.t_ns is not None,
        file=first.file,
    )


def _nvlink(links: DeviceLinks) -> DeviceNvlink:
    speeds = [speed for speed in links.gb_per_s if speed is not None]
    return DeviceNvlink(
        device=name_of_device(links.host, links.index, "", links.uuid),
        name=links.name,
        rank=links.rank,
        num_links=len(links.gb_per_s),
        num_active=len(speeds),
        bytes_per_s=sum(speeds) * _GB,
        expected_bytes_per_s=_by_sheet(links.name),
        inactive=tuple(i for i, speed in enumerate(links.gb_per_s) if speed is None),
    )


def _by_sheet(name: str) -> float | None:
    kind = next((kind for pattern, kind in _SXM if pattern.search(name)), None)
    return None if kind is None else load_sheet().gpu(kind).scale_up_bandwidth
