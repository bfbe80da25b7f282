"""Sensors of each rank's GPU: clocks, throttling, power, temperature, utilisation, links, errors.

Figures cover the whole run and, separately, the analysed steps, including their energy.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from distprof.artefacts.record import made_from
from distprof.hardware import load_sheet
from distprof.intervals import EMPTY, Intervals
from distprof.run.logs import DeviceEvent, DeviceLinks, DeviceLog
from distprof.run.records import NO_THROTTLING, RankRecords
from distprof.run.run import Run
from distprof.schema import Int64Array, Table
from distprof.sections.context import ProbeRecords
from distprof.sections.step_log import StepLogResult
from distprof.sections.telemetry import (
    DeviceCondition,
    DeviceError,
    DeviceNvlink,
    DeviceTelemetry,
    RankTelemetry,
    TelemetryResult,
    WindowSensors,
)
from distprof.sections.time import RankWaterfall, WaterfallResult
from distprof.units import NS_PER_S, name_of_device, name_ranks

MAX_PERIOD_NS = 60 * NS_PER_S  # Samples farther apart do not describe the time between them


def sensors_in(table: Table, windows: Intervals) -> WindowSensors | None:
    """Figures of a rank's GPU inside the analysed steps, given on the clock of TELEMETRY."""
    if windows.size == 0 or len(table) == 0:
        return None
    rows, is_bracketed = _rows(table["t_ns"], int(windows.start[0]), int(windows.end[-1]))
    if rows.stop <= rows.start:
        return None
    figures = _figures(table.take(rows))
    energy = _energy(table, windows)
    span_s = float((windows.end - windows.start).sum()) / NS_PER_S
    if energy is not None and span_s > 0:
        figures["power_w_mean"] = energy / span_s
    return WindowSensors(is_bracketed=is_bracketed, energy_j=energy, **figures)


def _figures(samples: Table) -> dict[str, Any]:
    throttled, reasons = throttling(samples)
    clocks, heat = _known(samples["sm_clock_mhz"]), _known(samples["temperature_c"])
    return {
        "num_samples": len(samples),
        "sm_clock_mhz_median": int(np.median(clocks)) if len(clocks) else None,
        "sm_clock_mhz_min": int(clocks.min()) if len(clocks) else None,
        "throttled_ratio": throttled,
        "throttle_reasons": reasons,
        "power_w_mean": _mean(_known(samples["power_w"])),
        "temperature_c_max": int(heat.max()) if len(heat) else None,
        "gpu_utilization_ratio": _mean(_known(samples["gpu_utilization_ratio"])),
    }


def throttling(table: Table) -> tuple[float | None, dict[str, float]]:
    """Share of samples with any throttle reason, and with each, among samples that report them."""
    column = table.coded("throttle_reasons")
    counts = np.bincount(column.codes, minlength=len(column.values)).tolist()
    reported = {text: n for text, n in zip(column.values, counts, strict=True) if text and n}
    total = sum(reported.values())
    if not total:
        return None, {}
    by_reason: dict[str, int] = {}
    for text, count in reported.items():
        for reason in text.split(","):
            if reason != NO_THROTTLING:
                by_reason[reason] = by_reason.get(reason, 0) + count
    throttled = 1 - reported.get(NO_THROTTLING, 0) / total
    return throttled, {reason: count / total for reason, count in sorted(by_reason.items())}


def _known(values: NDArray[Any]) -> NDArray[Any]:
    return values[np.isfinite(values)] if values.dtype.kind == "f" else values[values >= 0]


def _rows(time_ns: Int64Array, start_ns: int, end_ns: int) -> tuple[slice, bool]:
    """Samples inside; if there are none, those right before and after, if close enough."""
    first = int(np.searchsorted(time_ns, start_ns, side="left"))
    last = int(np.searchsorted(time_ns, end_ns, side="right"))
    if last > first:
        return slice(first, last), False
    if 0 < first < len(time_ns) and time_ns[first] - time_ns[first - 1] <= MAX_PERIOD_NS:
        return slice(first - 1, first + 1), True
    return slice(0, 0), False


def _energy(table: Table, windows: Intervals) -> float | None:
    """Energy of all windows in J; None if neither counter nor power samples cover them."""
    counter = np.isfinite(table["energy_j"])
    if counter.any():
        time, energy = table["t_ns"][counter], table["energy_j"][counter]
        if _covers(time, windows) and (np.diff(energy) >= 0).all():
            return _difference(time, energy, windows)
    power = np.isfinite(table["power_w"])
    time, watts = table["t_ns"][power], table["power_w"][power]
    if not _covers(time, windows):
        return None
    return _integrated(time, watts, windows)


def _covers(time_ns: Int64Array, windows: Intervals) -> bool:
    """Whether samples exist before, after, and densely enough between."""
    start, end = int(windows.start[0]), int(windows.end[-1])
    if len(time_ns) < 2 or time_ns[0] > start or time_ns[-1] < end:
        return False
    first = int(np.searchsorted(time_ns, start, side="right")) - 1
    last = int(np.searchsorted(time_ns, end, side="left"))
    return bool((np.diff(time_ns[first : last + 1]) <= MAX_PERIOD_NS).all())


def _difference(time_ns: Int64Array, joules: NDArray[np.float64], windows: Intervals) -> float:
    """Increase inside the windows. Times are relative, because floats would round absolute ones."""
    origin = int(windows.start[0])
    time = (time_ns - origin).astype(np.float64)
    start, end = (np.interp(edge - origin, time, joules) for edge in windows)
    return float((end - start).sum())


def _integrated(time_ns: Int64Array, watts: NDArray[np.float64], windows: Intervals) -> float:
    """Power, interpolated linearly between samples and integrated over the windows."""
    origin = int(windows.start[0])
    time = (time_ns - origin).astype(np.float64) / NS_PER_S
    joules = np.concatenate(([0.0], np.cumsum(np.diff(time) * (watts[1:] + watts[:-1]) / 2)))

    def until(edge_ns: Int64Array) -> NDArray[np.float64]:
        edge = (edge_ns - origin).astype(np.float64) / NS_PER_S
        at = np.clip(np.searchsorted(time, edge, side="right") - 1, 0, len(time) - 1)
        part = (edge - time[at]) * (watts[at] + np.interp(edge, time, watts)) / 2
        return joules[at] + part

    return float((until(windows.end) - until(windows.start)).sum())


# Sensors of each rank's GPU over the whole run ----------------------------------------------------


def measure_telemetry(records: RankRecords, windows: Intervals = EMPTY) -> RankTelemetry | None:
    """Figures of one rank's GPU; None without samples."""
    table = records.telemetry
    if len(table) == 0:
        return None
    about = records.about.get("telemetry", {})
    origin, uuid = about.get("origin"), about.get("uuid")
    return measure_device(
        records.rank,
        table,
        windows,
        origin=origin if isinstance(origin, str) else None,
        uuid=uuid if isinstance(uuid, str) else None,
    )


def measure_device(
    rank: int,
    table: Table,
    windows: Intervals = EMPTY,
    *,
    origin: str | None = None,
    uuid: str | None = None,
) -> RankTelemetry:
    """Figures of one GPU with at least one sample; rank -1 for a GPU of no rank."""
    power = _known(table["power_w"])
    used, processes = _known(table["memory_used_bytes"]), _known(table["num_processes"])
    texts = table.coded("xid").values
    return RankTelemetry(
        rank=rank,
        power_w_max=float(power.max()) if len(power) else None,
        memory_utilization_ratio=_mean(_known(table["memory_utilization_ratio"])),
        memory_used_bytes=int(used.max()) if len(used) else None,
        pcie_tx_bytes_per_s=_mean(_known(table["pcie_tx_bytes_per_s"])),
        pcie_rx_bytes_per_s=_mean(_known(table["pcie_rx_bytes_per_s"])),
        nvlink_tx_bytes_per_s=_counted_per_s(table["t_ns"], table["nvlink_tx_bytes"]),
        nvlink_rx_bytes_per_s=_counted_per_s(table["t_ns"], table["nvlink_rx_bytes"]),
        ecc_uncorrected=_counted(table["ecc_uncorrected"]),
        xid=tuple(
            sorted({int(part) for text in texts for part in text.split(",") if part.isdecimal()})
        ),
        in_steps=sensors_in(table, windows),
        origin=origin,
        uuid=uuid,
        num_processes=int(processes.max()) if len(processes) else None,
        **_figures(table),
    )


def analyze_telemetry(
    run: Run, records: ProbeRecords, waterfall: WaterfallResult, step_log: StepLogResult
) -> TelemetryResult:
    """Sensors of all ranks, the content of additional files, and the energy of a step."""
    ranks = tuple(records.of(RankTelemetry).values())
    sensors = TelemetryResult(ranks=ranks, unavailable=records.why("nvml", ranks))
    return with_energy(with_devices(sensors, run), waterfall, step_log, run.topology.world_size)


def _mean(values: NDArray[Any]) -> float | None:
    return float(values.mean()) if len(values) else None


def _counted(values: Int64Array) -> int | None:
    """Increase of a counter; after a reset it counts from the new value."""
    known = values[values >= 0]
    if len(known) == 0:
        return None
    return int(np.maximum(np.diff(known), 0).sum())


def _counted_per_s(time_ns: Int64Array, values: Int64Array) -> float | None:
    known = values >= 0
    if known.sum() < 2:
        return None
    span = int(time_ns[known][-1] - time_ns[known][0])
    counted = _counted(values)
    return counted * NS_PER_S / span if span > 0 and counted is not None else None


# Sensor files and driver logs: GPUs without a rank, errors, NVLink --------------------------------

MAX_DEVICES = 1 << 16
MAX_ERRORS = 1_000
_OF_PROCESSES = ("crash", "oom")
_GB = 1e9

# Models that are sold with all links active, by their names in the driver.
_SXM = re.compile(r"[VA]100(?=-SXM)|H100(?= 80GB HBM3$)|[HB]200$")


def with_devices(result: TelemetryResult, run: Run) -> TelemetryResult:
    """The result with the content of additional files; unchanged without one."""
    log = run.get(DeviceLog)
    has_samples = bool(result.ranks or (log is not None and log.series))
    is_missing = not has_samples and any(_has_sensors(rank.device.name) for rank in run.ranks)
    if log is None:
        return replace(result, is_missing=is_missing)
    others = [one for one in log.series if one.rank is None and len(one.table)]
    # identical errors of a GPU in one row, in order of first occurrence
    groups: dict[tuple[object, ...], list[DeviceEvent]] = {}
    for event in log.events:
        source: object = event.bus_id or event.uuid or event.index
        if event.kind in _OF_PROCESSES:
            source = (event.process, event.rank)
        groups.setdefault((event.kind, event.number, event.host, source), []).append(event)
    return replace(
        result,
        devices=tuple(
            made_from(one, DeviceTelemetry, sensors=measure_device(-1, one.table, origin=one.file))
            for one in others[:MAX_DEVICES]
        ),
        errors=tuple(_error(group) for group in groups.values())[:MAX_ERRORS],
        kernel_logs=log.kernel_logs[:MAX_ERRORS],
        nvlinks=tuple(_nvlink(links) for links in log.links[:MAX_DEVICES]),
        conditions=tuple(
            made_from(
                state,
                DeviceCondition,
                device=name_of_device(state.host, state.index, state.bus_id, state.uuid),
            )
            for state in log.states[:MAX_DEVICES]
        ),
        is_missing=is_missing,
        unavailable=()
        if run.job is None and (log.series or log.kernel_logs or log.states)
        else result.unavailable,
    )


def _has_sensors(name: str) -> bool:
    """Whether distprof's own probe can read the sensors of such a device."""
    return name not in ("", "cpu") and not name.startswith(("AMD", "Instinct"))


def _error(events: Sequence[DeviceEvent]) -> DeviceError:
    first = events[0]
    name = name_of_device(first.host, first.index, first.bus_id, first.uuid)
    name = name.replace("GPU", "NVSwitch", 1) if first.kind == "fabric" else name
    return made_from(
        first,
        DeviceError,
        device=first.host if first.kind in _OF_PROCESSES else name,
        count=len(events),
        is_dated=first.t_ns is not None,
        memory_bytes=max((e.memory_bytes for e in events if e.memory_bytes), default=None),
    )


def _nvlink(links: DeviceLinks) -> DeviceNvlink:
    speeds = [speed for speed in links.gb_per_s if speed is not None]
    model = _SXM.search(links.name)
    return DeviceNvlink(
        device=name_of_device(links.host, links.index, "", links.uuid),
        name=links.name,
        rank=links.rank,
        num_links=len(links.gb_per_s),
        num_active=len(speeds),
        bytes_per_s=sum(speeds) * _GB,
        expected_bytes_per_s=model and load_sheet().gpu(model[0].lower()).scale_up_bandwidth,
        inactive=tuple(i for i, speed in enumerate(links.gb_per_s) if speed is None),
    )


# Energy of a step: total, per token, and while ranks wait -----------------------------------------


def with_energy(
    telemetry: TelemetryResult,
    waterfall: WaterfallResult,
    step_log: StepLogResult,
    world_size: int | None = None,
) -> TelemetryResult:
    """The result with the energy of a step, or the reason why it is unknown.

    Energy drawn while ranks wait is ``E_wait = sum over ranks r of P_r * wait_r``: P_r is the mean
    power of rank r's GPU in the analysed steps, wait_r its exposed waiting in collectives and for
    messages, as in the waterfall. The share of waiting covers the traced ranks, because only their
    waiting is known. The energy of a step is that of all ranks of the job.
    """
    if not telemetry.ranks or not waterfall.ranks or not waterfall.num_steps:
        return telemetry
    known = {
        row.rank: row.in_steps.energy_j
        for row in telemetry.ranks
        if row.in_steps is not None and row.in_steps.energy_j is not None
    }
    if not known:
        why = "The energy of a step is unknown: no power samples cover the analysed steps."
        return replace(telemetry, unavailable=(*telemetry.unavailable, why))
    traced = {row.rank for row in waterfall.ranks}
    missing = sorted((traced | set(range(world_size or 0))) - set(known))
    share = _waiting_share(waterfall.ranks, known)
    if missing:
        why = f"The energy of a step is unknown: it is missing for {name_ranks(missing)}."
        return replace(
            telemetry, waiting_energy_ratio=share, unavailable=(*telemetry.unavailable, why)
        )
    per_step = sum(known.values()) / waterfall.num_steps
    tokens = step_log.tokens_per_step
    return replace(
        telemetry,
        energy_per_step_j=per_step,
        energy_per_token_j=per_step / tokens if tokens else None,
        waiting_energy_per_step_j=None if share is None else per_step * share,
        waiting_energy_ratio=share,
    )


def _waiting_share(ranks: tuple[RankWaterfall, ...], energy_j: Mapping[int, float]) -> float | None:
    """Share of the ranks' energy that they draw while they wait; None if a rank's is unknown."""
    if any(row.rank not in energy_j for row in ranks):
        return None
    total = sum(energy_j[row.rank] for row in ranks)
    waiting = sum(
        energy_j[row.rank] * (row.exposed_wait_ns + row.exposed_p2p_wait_ns) / row.span_ns
        for row in ranks
        if row.span_ns
    )
    return waiting / total if total else None
