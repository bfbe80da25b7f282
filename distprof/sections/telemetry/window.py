"""One device's sensors inside the analysed steps, and the energy that these took."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from distprof.intervals import Intervals
from distprof.run.records import NO_THROTTLING
from distprof.schema import Int64Array, Record, Table
from distprof.units import NS_PER_S

__all__ = ["WindowSensors", "sensors_in", "throttling"]

MAX_PERIOD_NS = 60 * NS_PER_S
"""Samples farther apart say nothing of what is between them."""


class WindowSensors(Record, frozen=True, kw_only=True):
    """One device between the start of the first analysed step and the end of the last.

    None: the device does not tell; it is never 0.

    Args:
        num_samples: Samples that the figures are of.
        is_bracketed: Whether no sample lies inside, so that they are of the last one before and
            the first one after.
        sm_clock_mhz_median: Clock of the streaming multiprocessors.
        sm_clock_mhz_min: Lowest.
        throttled_ratio: Share of samples in which something slowed the device down.
        throttle_reasons: Reason to the share of samples that have it.
        power_w_mean: Energy over time, watts; where that is not known, the mean of the samples.
        temperature_c_max: Highest, degrees Celsius.
        gpu_utilization_ratio: Mean share of time with a kernel running.
        energy_j: Of all analysed steps together: by the device's counter, interpolated, else the
            power, interpolated and summed over time. None where samples do not reach over them.
    """

    num_samples: int
    is_bracketed: bool
    sm_clock_mhz_median: int | None
    sm_clock_mhz_min: int | None
    throttled_ratio: float | None
    throttle_reasons: dict[str, float]
    power_w_mean: float | None
    temperature_c_max: int | None
    gpu_utilization_ratio: float | None
    energy_j: float | None


def sensors_in(table: Table, windows: Intervals) -> WindowSensors | None:
    """The figures of a rank's device.

    Args:
        table: TELEMETRY, ascending in time.
        windows: The analysed steps on the same clock, in order.

    Returns:
        None where no step was analysed or no sample is of their time.
    """
    if windows.size == 0 or len(table) == 0:
        return None
    rows, is_bracketed = _rows(table["t_ns"], int(windows.start[0]), int(windows.end[-1]))
    if rows.stop <= rows.start:
        return None
    own = table.take(rows)
    throttled, reasons = throttling(own)
    clocks, heat = _known(own["sm_clock_mhz"]), _known(own["temperature_c"])
    use, power = _known(own["gpu_utilization_ratio"]), _known(own["power_w"])
    energy = _energy(table, windows)
    span_s = float((windows.end - windows.start).sum()) / NS_PER_S
    mean = float(power.mean()) if len(power) else None
    return WindowSensors(
        num_samples=len(own),
        is_bracketed=is_bracketed,
        sm_clock_mhz_median=int(np.median(clocks)) if len(clocks) else None,
        sm_clock_mhz_min=int(clocks.min()) if len(clocks) else None,
        throttled_ratio=throttled,
        throttle_reasons=reasons,
        power_w_mean=energy / span_s if energy is not None and span_s > 0 else mean,
        temperature_c_max=int(heat.max()) if len(heat) else None,
        gpu_utilization_ratio=float(use.mean()) if len(use) else None,
        energy_j=energy,
    )


def throttling(table: Table) -> tuple[float | None, dict[str, float]]:
    """Share of samples with any reason, and with each; of the samples that tell."""
    column = table.coded("throttle_reasons")
    counts = np.bincount(column.codes, minlength=len(column.values)).tolist()
    told = {text: n for text, n in zip(column.values, counts, strict=True) if text and n}
    total = sum(told.values())
    if not total:
        return None, {}
    by_reason: dict[str, int] = {}
    for text, count in told.items():
        for reason in text.split(","):
            if reason != NO_THROTTLING:
                by_reason[reason] = by_reason.get(reason, 0) + count
    throttled = 1 - told.get(NO_THROTTLING, 0) / total
    return throttled, {reason: count / total for reason, count in sorted(by_reason.items())}


def _known(values: NDArray[Any]) -> NDArray[Any]:
    return values[np.isfinite(values)] if values.dtype.kind == "f" else values[values >= 0]


def _rows(time_ns: Int64Array, start_ns: int, end_ns: int) -> tuple[slice, bool]:
    """Samples inside; where there are none, those right before and after, if near enough."""
    first = int(np.searchsorted(time_ns, start_ns, side="left"))
    last = int(np.searchsorted(time_ns, end_ns, side="right"))
    if last > first:
        return slice(first, last), False
    if 0 < first < len(time_ns) and time_ns[first] - time_ns[first - 1] <= MAX_PERIOD_NS:
        return slice(first - 1, first + 1), True
    return slice(0, 0), False


def _energy(table: Table, windows: Intervals) -> float | None:
    """Joules in all windows; None where neither counter nor power reaches over them."""
    counter = np.isfinite(table["energy_j"])
    if counter.any():
        time, energy = table["t_ns"][counter], table["energy_j"][counter]
        if _reaches(time, windows) and (np.diff(energy) >= 0).all():
            return _difference(time, energy, windows)
    power = np.isfinite(table["power_w"])
    time, watts = table["t_ns"][power], table["power_w"][power]
    if not _reaches(time, windows):
        return None
    return _summed(time, watts, windows)


def _reaches(time_ns: Int64Array, windows: Intervals) -> bool:
    """Whether samples lie before, after, and close enough together between."""
    start, end = int(windows.start[0]), int(windows.end[-1])
    if len(time_ns) < 2 or time_ns[0] > start or time_ns[-1] < end:
        return False
    first = int(np.searchsorted(time_ns, start, side="right")) - 1
    last = int(np.searchsorted(time_ns, end, side="left"))
    return bool((np.diff(time_ns[first : last + 1]) <= MAX_PERIOD_NS).all())


def _difference(time_ns: Int64Array, joules: NDArray[np.float64], windows: Intervals) -> float:
    """What was added inside the windows; times relative, as floats would round those of today."""
    origin = int(windows.start[0])
    time = (time_ns - origin).astype(np.float64)
    start, end = (np.interp(edge - origin, time, joules) for edge in windows)
    return float((end - start).sum())


def _summed(time_ns: Int64Array, watts: NDArray[np.float64], windows: Intervals) -> float:
    """Power between samples is on the line between them; its sum over the time of the windows."""
    origin = int(windows.start[0])
    time = (time_ns - origin).astype(np.float64) / NS_PER_S
    joules = np.concatenate(([0.0], np.cumsum(np.diff(time) * (watts[1:] + watts[:-1]) / 2)))

    def until(edge_ns: Int64Array) -> NDArray[np.float64]:
        edge = (edge_ns - origin).astype(np.float64) / NS_PER_S
        at = np.clip(np.searchsorted(time, edge, side="right") - 1, 0, len(time) - 1)
        part = (edge - time[at]) * (watts[at] + np.interp(edge, time, watts)) / 2
        result: NDArray[np.float64] = joules[at] + part
        return result

    return float((until(windows.end) - until(windows.start)).sum())
