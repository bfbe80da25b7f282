"""What sensors, energy, errors of devices and NVLink tell, as tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from distprof.escape import shorten
from distprof.run.logs import name_of_device
from distprof.sections.table import Cell, TableColumn, TableView, counted, folded_ranks, number
from distprof.sections.telemetry.result import DeviceTelemetry, RankTelemetry, TelemetryResult
from distprof.sections.telemetry.window import WindowSensors
from distprof.units import format_bandwidth, format_bytes, format_ratio

if TYPE_CHECKING:
    from distprof.sections.report import Report

__all__ = [
    "device_errors_table",
    "devices_table",
    "devices_verdict",
    "energy_table",
    "nvlinks_table",
    "step_sensors_table",
    "telemetry_table",
]

MAX_ROWS = 16

_MAX_TEXT = 100


def step_sensors_table(report: Report, *, show_all: bool) -> TableView | None:
    """Sensors inside the analysed steps, by rank."""
    found = [(row, row.in_steps) for row in report.telemetry.ranks if row.in_steps is not None]
    if not found:
        return None
    values = [_figures(sensors) for _, sensors in found]
    reasons = dict.fromkeys(reason for _, sensors in found for reason in sensors.throttle_reasons)
    notes = [f"slowed down by: {', '.join(reasons)}"] if reasons else []
    if any(sensors.is_bracketed for _, sensors in found):
        notes.append("no sample lies inside: those right before and after are taken")
    return TableView(
        title="Sensors in the analysed steps",
        caption=_origins([row for row, _ in found]),
        columns=(
            TableColumn(title="rank", left=True),
            TableColumn(title="samples"),
            TableColumn(title="clock"),
            TableColumn(title="lowest"),
            TableColumn(title="slowed"),
            TableColumn(title="power"),
            TableColumn(title="heat"),
        ),
        rows=folded_ranks([row.rank for row, _ in found], values, _cells, show_all=show_all),
        notes=tuple(notes),
    )


def energy_table(report: Report, *, show_all: bool) -> TableView | None:  # noqa: ARG001
    """Energy of a step, as pairs."""
    result = report.telemetry
    if result.energy_per_step_j is None:
        return None
    pairs = [("per step", _joules(result.energy_per_step_j))]
    if result.energy_per_token_j is not None:
        pairs.append(("per token", _joules(result.energy_per_token_j)))
    if result.waiting_energy_per_step_j is not None:
        share = format_ratio(result.waiting_energy_ratio)
        pairs.append(
            ("while ranks wait", f"{_joules(result.waiting_energy_per_step_j)} per step ({share})")
        )
    return TableView(
        title="Energy",
        caption="all devices together, mean of the analysed steps",
        columns=(TableColumn(title="", left=True), TableColumn(title="", left=True)),
        rows=tuple(pairs),
    )


def devices_table(report: Report, *, show_all: bool) -> TableView | None:
    """Devices of sensor files that no rank is known of."""
    devices = report.telemetry.devices
    if not devices:
        return None
    shown = devices if show_all else devices[:MAX_ROWS]
    more = len(devices) - len(shown)
    return TableView(
        title="Devices without a rank" if report.run.ranks else "Devices",
        caption="over all samples",
        columns=(
            TableColumn(title="device", left=True),
            TableColumn(title="name", left=True, wide_only=True),
            TableColumn(title="samples"),
            TableColumn(title="clock"),
            TableColumn(title="slowed"),
            TableColumn(title="power"),
            TableColumn(title="heat"),
            TableColumn(title="busy"),
            TableColumn(title="memory"),
        ),
        rows=tuple(_device_row(device) for device in shown),
        notes=(f"{more:,} more with --all",) if more else (),
    )


def device_errors_table(report: Report, *, show_all: bool) -> TableView | None:
    """Errors that drivers and switches logged."""
    errors = report.telemetry.errors
    if not errors:
        return None
    shown = errors if show_all else errors[:MAX_ROWS]
    more = len(errors) - len(shown)
    return TableView(
        title="Errors of devices",
        columns=(
            TableColumn(title="error", left=True),
            TableColumn(title="device", left=True),
            TableColumn(title="times"),
            TableColumn(title="first", left=True),
            TableColumn(title="text", left=True, wrap=True),
        ),
        rows=tuple(
            (
                f"{'XID' if error.kind == 'xid' else 'switch'} {error.number or ''}".rstrip(),
                error.device if error.rank is None else f"{error.device} (rank {error.rank})",
                f"{error.count:,}",
                error.time or "–",
                shorten(error.text, _MAX_TEXT),
            )
            for error in shown
        ),
        notes=(f"{more:,} more with --all",) if more else (),
    )


def nvlinks_table(report: Report, *, show_all: bool) -> TableView | None:
    """NVLink by device; one row where all are alike."""
    links = report.telemetry.nvlinks
    if not links:
        return None
    alike = len({(one.name, one.num_active, one.bytes_per_s) for one in links}) == 1
    shown = links if show_all else links[: 1 if alike else MAX_ROWS]
    return TableView(
        title="NVLink",
        caption="by nvidia-smi nvlink --status",
        columns=(
            TableColumn(title="device", left=True),
            TableColumn(title="name", left=True, wide_only=True),
            TableColumn(title="at work"),
            TableColumn(title="per direction"),
        ),
        rows=tuple(
            (
                f"all {counted(len(links), 'device')}" if alike and len(shown) == 1 else one.device,
                one.name,
                f"{one.num_active} of {one.num_links}",
                format_bandwidth(one.bytes_per_s),
            )
            for one in shown
        ),
    )


def _figures(sensors: WindowSensors | RankTelemetry) -> tuple[float | None, ...]:
    return (
        sensors.num_samples,
        sensors.sm_clock_mhz_median,
        sensors.sm_clock_mhz_min,
        sensors.throttled_ratio,
        sensors.power_w_mean,
        sensors.temperature_c_max,
    )


def _cells(values: Sequence[float | None]) -> tuple[Cell, ...]:
    samples, clock, lowest, slowed, power, heat = values
    return (
        number(samples),
        number(clock, " MHz"),
        number(lowest, " MHz"),
        format_ratio(slowed),
        number(power, " W"),
        number(heat, " °C"),
    )


def _device_row(device: DeviceTelemetry) -> tuple[Cell, ...]:
    sensors = device.sensors
    return (
        name_of_device(device.host, device.index, device.bus_id, device.uuid),
        device.name or "–",
        number(sensors.num_samples),
        number(sensors.sm_clock_mhz_median, " MHz"),
        format_ratio(sensors.throttled_ratio),
        number(sensors.power_w_mean, " W"),
        number(sensors.temperature_c_max, " °C"),
        format_ratio(sensors.gpu_utilization_ratio),
        format_bytes(sensors.memory_used_bytes),
    )


def _origins(rows: Sequence[RankTelemetry]) -> str:
    files = {(row.origin or "").partition(", ")[0] for row in rows} - {""}
    return f"by {', '.join(sorted(files)[:3])}" if files else "by distprof's own probe"


def _joules(energy: float) -> str:
    for unit, size in (("MJ", 1e6), ("kJ", 1e3), ("J", 1.0)):
        if energy >= size:
            return f"{energy / size:.3g} {unit}"
    return f"{energy * 1e3:.3g} mJ"


# What probes recorded beside the traces: the whole training, memory, sensors, pauses -------------


def telemetry_table(report: Report, *, show_all: bool) -> TableView | None:
    """Sensors by rank."""
    ranks = report.telemetry.ranks
    if not ranks:
        return None
    values: list[tuple[float | None, ...]] = [
        (
            r.sm_clock_mhz_median,
            r.sm_clock_mhz_min,
            r.throttled_ratio,
            r.power_w_mean,
            r.temperature_c_max,
            r.gpu_utilization_ratio,
            r.memory_used_bytes,
        )
        for r in ranks
    ]
    reasons = dict.fromkeys(reason for r in ranks for reason in r.throttle_reasons)
    notes = [f"slowed down by: {', '.join(reasons)}"] if reasons else []
    notes += [f"rank {r.rank}: XID errors {', '.join(map(str, r.xid))}" for r in ranks if r.xid]
    return TableView(
        title="Sensors",
        caption="over the whole run",
        columns=(
            TableColumn(title="rank", left=True),
            TableColumn(title="clock"),
            TableColumn(title="lowest"),
            TableColumn(title="slowed"),
            TableColumn(title="power"),
            TableColumn(title="heat"),
            TableColumn(title="busy"),
            TableColumn(title="memory"),
        ),
        rows=folded_ranks([r.rank for r in ranks], values, _sensor_cells, show_all=show_all),
        notes=tuple(notes),
    )


def _sensor_cells(values: Sequence[float | None]) -> tuple[Cell, ...]:
    clock, lowest, slowed, power, heat, busy, memory = values
    return (
        number(clock, " MHz"),
        number(lowest, " MHz"),
        format_ratio(slowed),
        number(power, " W"),
        number(heat, " °C"),
        format_ratio(busy),
        format_bytes(memory),
    )


# The first lines of a report on sensors and errors of devices alone ------------------------------


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
