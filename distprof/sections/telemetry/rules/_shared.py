"""Shared by rules on sensors: GPUs with or without a rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

import msgspec

from distprof.rules.base import InsufficientEvidenceError
from distprof.sections.stragglers.result import StragglersResult
from distprof.sections.telemetry.result import (
    DeviceCondition,
    DeviceNvlink,
    RankTelemetry,
    TelemetryResult,
    WindowSensors,
)
from distprof.terms import Confidence
from distprof.units import capitalized, name_of_device, name_ranks

NO_SENSORS = (
    "no sensors were recorded: pass the output of nvidia-smi or DCGM with --with, or record with "
    "distprof capture"
)

MIN_BUSY = 0.5  # Share of time with a kernel running from which a GPU without a rank counts as busy


class Unit(msgspec.Struct, frozen=True):
    """One GPU."""

    rank: int | None  # Rank that ran on it; None if unknown.
    label: str  # Name of the GPU, if it has no rank.
    kind: str  # GPUs of one kind are compared: those of the same name, or those of all ranks.
    # Figures of the analysed steps if known, otherwise of the whole run.
    figures: WindowSensors | RankTelemetry
    is_in_steps: bool  # Whether the figures are those of the analysed steps.

    @property
    def is_sure(self) -> bool:
        """Whether samples were taken during the analysed steps."""
        return isinstance(self.figures, WindowSensors) and not self.figures.is_bracketed

    @property
    def is_busy(self) -> bool:
        """Whether it was busy while sampled, so that a low clock is meaningful."""
        used = self.figures.gpu_utilization_ratio
        return self.is_in_steps if used is None else used >= MIN_BUSY


def units_of(telemetry: TelemetryResult) -> list[Unit]:
    """Return the GPUs with sensors; none for jobs without GPUs."""
    if telemetry.is_missing:
        raise InsufficientEvidenceError(NO_SENSORS)
    units = [
        Unit(
            rank=row.rank,
            label="",
            kind="",
            figures=row.in_steps or row,
            is_in_steps=row.in_steps is not None,
        )
        for row in telemetry.ranks
    ]
    units += [
        Unit(
            rank=None,
            label=name_of_device(device.host, device.index, device.bus_id, device.uuid),
            kind=device.name or device.file,
            figures=device.sensors,
            is_in_steps=False,
        )
        for device in telemetry.devices
    ]
    return units


def named(units: Sequence[Unit]) -> str:
    """For example ``The GPUs of ranks 3, 5``, ``GPU 3 of node-1, GPU 4 of node-1``."""
    labels = [unit.label for unit in units if unit.rank is None]
    return capitalized(_named(ranks_of(units), labels))


def name_devices(devices: Sequence[DeviceCondition]) -> str:
    """For example ``the GPUs of ranks 3, 5``, inside a sentence."""
    return _named(ranks_of(devices), [one.device for one in devices if one.rank is None])


def _named(ranks: Sequence[int], labels: Sequence[str]) -> str:
    others = list(dict.fromkeys(labels))
    parts = [f"the GPU{'s' if len(ranks) > 1 else ''} of {name_ranks(ranks)}"] if ranks else []
    if others:
        more = f" and {len(others) - 4} more" if len(others) > 4 else ""
        parts.append(", ".join(others[:4]) + more)
    return " and ".join(parts)


def ranks_of(gpus: Sequence[Unit | DeviceCondition | DeviceNvlink]) -> tuple[int, ...]:
    """Their ranks, ascending."""
    return tuple(sorted(gpu.rank for gpu in gpus if gpu.rank is not None))


def evidence_of(units: Sequence[Unit]) -> tuple[str, ...]:
    """Part of the report that holds their figures."""
    return ("telemetry.ranks" if ranks_of(units) else "telemetry.devices",)


def median_of(
    units: Sequence[Unit], value: Callable[[WindowSensors | RankTelemetry], float | None]
) -> float | None:
    """Median over the GPUs with a value; None without any."""
    known = [number for unit in units if (number := value(unit.figures)) is not None]
    return float(median(known)) if known else None


def medians_of_others(values: Sequence[float | None]) -> list[float | None]:
    """For each value, the median of the other known values; None if there are none.

    Jobs have thousands of GPUs, so the values are sorted once.
    """
    known = sorted((value, i) for i, value in enumerate(values) if value is not None)
    numbers = [value for value, _ in known]
    result = [_median(numbers)] * len(values)
    for place, (_, i) in enumerate(known):
        result[i] = _median(numbers, without=place)
    return result


def _median(ascending: Sequence[float], without: int | None = None) -> float | None:
    """Median of sorted numbers, all or all but one."""
    count = len(ascending) - (without is not None)
    if count <= 0:
        return None
    places = ((count - 1) // 2, count // 2)
    low, high = (p + 1 if without is not None and p >= without else p for p in places)
    return (ascending[low] + ascending[high]) / 2


def by_kind(units: Sequence[Unit]) -> list[list[Unit]]:
    """Groups of GPUs that are compared with each other."""
    kinds: dict[str, list[Unit]] = {}
    for unit in units:
        kinds.setdefault(unit.kind, []).append(unit)
    return list(kinds.values())


def cost_of(
    units: Sequence[Unit], stragglers: StragglersResult
) -> tuple[int | None, str, Confidence]:
    """Time per step that other ranks wait for these ranks, their scenario, and the confidence."""
    ranks = ranks_of(units)
    wanted = set(ranks)
    lost = sum(row.lost_ns_per_step for row in stragglers.ranks if row.rank in wanted)
    is_sure = all(unit.is_sure for unit in units)
    without = f"rank {ranks[0]}" if len(ranks) == 1 and lost else ""
    return lost or None, without, Confidence.MEASURED if is_sure else Confidence.INFERRED
