"""The first lines of a report on sensors and errors of devices alone."""

from __future__ import annotations

from distprof.analyzers.telemetry import TelemetryResult
from distprof.report.model import Report
from distprof.units import format_ratio

__all__ = ["devices_verdict"]


def devices_verdict(report: Report) -> tuple[str, tuple[str, ...]] | None:
    """The verdict and the numbers behind it; None for a report on anything else."""
    result = report.telemetry
    if result.ranks or not (result.devices or result.errors or result.nvlinks):
        return None
    return _line(result), tuple(
        sentence for sentence in (_heat(result), _slowed(result)) if sentence
    )


def _line(result: TelemetryResult) -> str:
    parts = []
    if result.devices:
        samples = sum(device.sensors.num_samples for device in result.devices)
        devices = {(d.host, d.index, d.bus_id if d.index is None else "") for d in result.devices}
        parts.append(f"{_counted(samples, 'sample')} of {_counted(len(devices), 'device')}")
    if result.errors:
        parts.append(_counted(sum(error.count for error in result.errors), "error"))
    if result.nvlinks:
        active = sum(links.num_active for links in result.nvlinks)
        total = sum(links.num_links for links in result.nvlinks)
        parts.append(f"{active:,} of {_counted(total, 'NVLink')} at work")
    return f"{', '.join(parts)}; no step was timed."


def _heat(result: TelemetryResult) -> str:
    known = [
        device.sensors.temperature_c_max
        for device in result.devices
        if device.sensors.temperature_c_max is not None
    ]
    return f"The hottest device gets {max(known)} °C hot." if known else ""


def _slowed(result: TelemetryResult) -> str:
    known = [
        device.sensors.throttled_ratio
        for device in result.devices
        if device.sensors.throttled_ratio is not None
    ]
    if not known:
        return ""
    worst = max(known)
    if not worst:
        return "Nothing slowed a device down."
    return f"The device that was slowed down most was so in {format_ratio(worst)} of its samples."


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
