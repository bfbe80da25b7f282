"""Sensors of each rank's device: clocks, throttling, power, heat, use, links, errors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distprof.analyzers.result import Record, Result
from distprof.run.records import NO_THROTTLING, RankRecords
from distprof.schema import Int64Array, Table
from distprof.units import NS_PER_S

__all__ = ["RankTelemetry", "TelemetryResult", "combine_telemetry", "measure_telemetry"]


class RankTelemetry(Record, frozen=True, kw_only=True):
    """One rank's device over the whole run. None: the device does not tell; it is never 0.

    Args:
        rank: Global rank.
        num_samples: Samples taken.
        sm_clock_mhz_median: Clock of the streaming multiprocessors.
        sm_clock_mhz_min: Lowest.
        throttled_ratio: Share of samples in which something slowed the device down.
        throttle_reasons: Reason to the share of samples that have it.
        power_w_mean: Mean power, watts.
        power_w_max: Highest.
        temperature_c_max: Highest, degrees Celsius.
        gpu_utilization_ratio: Mean share of time with a kernel running, as the driver counts it.
        memory_utilization_ratio: Mean share of time with memory busy.
        memory_used_bytes: Highest, all processes on the device.
        pcie_tx_bytes_per_s: Mean, from the device.
        pcie_rx_bytes_per_s: Mean, to the device.
        nvlink_tx_bytes_per_s: Mean over the run, all links.
        nvlink_rx_bytes_per_s: The same for receiving.
        ecc_uncorrected: New uncorrected errors during the run.
        xid: Numbers of XID errors during the run, ascending, each once.
    """

    rank: int
    num_samples: int
    sm_clock_mhz_median: int | None
    sm_clock_mhz_min: int | None
    throttled_ratio: float | None
    throttle_reasons: dict[str, float]
    power_w_mean: float | None
    power_w_max: float | None
    temperature_c_max: int | None
    gpu_utilization_ratio: float | None
    memory_utilization_ratio: float | None
    memory_used_bytes: int | None
    pcie_tx_bytes_per_s: float | None
    pcie_rx_bytes_per_s: float | None
    nvlink_tx_bytes_per_s: float | None
    nvlink_rx_bytes_per_s: float | None
    ecc_uncorrected: int | None
    xid: tuple[int, ...]


class TelemetryResult(Result, frozen=True, kw_only=True):
    """Sensors of each rank's device; ``unavailable`` says why there are none."""

    ranks: tuple[RankTelemetry, ...] = ()


def measure_telemetry(records: RankRecords) -> RankTelemetry | None:
    """The figures of one rank; None where no sample was taken."""
    table = records.telemetry
    if len(table) == 0:
        return None
    throttled, reasons = _throttling(table)
    clocks = _known(table["sm_clock_mhz"])
    power, heat = _known(table["power_w"]), _known(table["temperature_c"])
    used = _known(table["memory_used_bytes"])
    return RankTelemetry(
        rank=records.rank,
        num_samples=len(table),
        sm_clock_mhz_median=int(np.median(clocks)) if len(clocks) else None,
        sm_clock_mhz_min=int(clocks.min()) if len(clocks) else None,
        throttled_ratio=throttled,
        throttle_reasons=reasons,
        power_w_mean=_mean(power),
        power_w_max=float(power.max()) if len(power) else None,
        temperature_c_max=int(heat.max()) if len(heat) else None,
        gpu_utilization_ratio=_mean(_known(table["gpu_utilization_ratio"])),
        memory_utilization_ratio=_mean(_known(table["memory_utilization_ratio"])),
        memory_used_bytes=int(used.max()) if len(used) else None,
        pcie_tx_bytes_per_s=_mean(_known(table["pcie_tx_bytes_per_s"])),
        pcie_rx_bytes_per_s=_mean(_known(table["pcie_rx_bytes_per_s"])),
        nvlink_tx_bytes_per_s=_counted_per_s(table["t_ns"], table["nvlink_tx_bytes"]),
        nvlink_rx_bytes_per_s=_counted_per_s(table["t_ns"], table["nvlink_rx_bytes"]),
        ecc_uncorrected=_counted(table["ecc_uncorrected"]),
        xid=_xids(table),
    )


def combine_telemetry(
    ranks: Sequence[RankTelemetry], unavailable: Sequence[str] = ()
) -> TelemetryResult:
    """All ranks."""
    return TelemetryResult(ranks=tuple(ranks), unavailable=tuple(unavailable))


def _known(values: NDArray[Any]) -> NDArray[Any]:
    return values[np.isfinite(values)] if values.dtype.kind == "f" else values[values >= 0]


def _mean(values: NDArray[Any]) -> float | None:
    return float(values.mean()) if len(values) else None


def _throttling(table: Table) -> tuple[float | None, dict[str, float]]:
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


def _counted(values: Int64Array) -> int | None:
    """Increase of a counter; one that was reset counts from there on."""
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


def _xids(table: Table) -> tuple[int, ...]:
    texts = table.coded("xid").values
    return tuple(
        sorted({int(part) for text in texts for part in text.split(",") if part.isdigit()})
    )
