"""# hot-device

## What it detects
GPUs near the temperature at which they slow down, and GPUs that are much hotter than their peers
and already slower.

## Why it costs time
A hot GPU leaks more current and reaches its power cap at a lower clock. At a few degrees more its
hardware slows it down. It also fails sooner.

## Evidence needed
Temperatures in the analysed steps if samples cover them, otherwise in the whole recording.

## How the cost is computed
Not computed: the findings on throttling and on late ranks carry the cost of heat.

## How to fix
Compare the inlet temperature and fans of its host with those of other hosts. Look for blocked air
flow, a missing blanking panel or a failed pump. Reseat the heat sink if only one GPU is hot.

## When it is wrong
Limits differ by model: some run at 85 °C by design (`nvidia-smi -q -d TEMPERATURE` shows them).
GPUs downstream in the air flow of a chassis are always hotter than those upstream.

## Sources
NVIDIA, NVML reference, "nvmlTemperatureThresholds_t".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from distprof.rules.base import Draft, Limit, Limits, rule
from distprof.sections.telemetry.result import TelemetryResult
from distprof.sections.telemetry.rules._shared import (
    Unit,
    by_kind,
    evidence_of,
    median_of,
    medians_of_others,
    named,
    ranks_of,
    units_of,
)
from distprof.terms import Confidence, Severity

_HEAT = ("hw_thermal_slowdown", "sw_thermal_slowdown", "thermal_violation")
_LOWER_CLOCK = 0.97


@rule(
    code="TEL104",
    severity=Severity.WARNING,
    since="0.1.0",
    limits={
        "hot_c": Limit(85, "degrees Celsius from which a GPU is hot"),
        "above_peers_c": Limit(8, "degrees above the others' median for a GPU that is slower"),
    },
    costs_time=False,
)
def check(telemetry: TelemetryResult, limits: Limits) -> Iterator[Draft]:
    """Yield one finding for all hot GPUs."""
    units = [u for u in units_of(telemetry) if u.figures.temperature_c_max is not None]
    hot = [unit for peers in by_kind(units) for unit in _hot(peers, limits)]
    if not hot:
        return
    hottest = max(unit.figures.temperature_c_max or 0 for unit in hot)
    ids = {id(unit) for unit in hot}
    rest = [unit for unit in units if id(unit) not in ids]
    usual = median_of(rest, lambda figures: figures.temperature_c_max)
    peers = "" if usual is None else f"; the median of the others is {usual:.0f} °C"
    several = len(hot) > 1
    yield Draft(
        message=(
            f"{named(hot)} {'reach' if several else 'reaches'} {'up to ' if several else ''}"
            f"{hottest} °C{peers}."
        ),
        fix=(
            "Compare inlet temperature, fans and air flow of the host with those of other hosts. "
            "Reseat the heat sink if only one GPU of a host is hot."
        ),
        confidence=(
            Confidence.MEASURED if all(unit.is_sure for unit in hot) else Confidence.INFERRED
        ),
        ranks=ranks_of(hot),
        evidence=evidence_of(hot),
    )


def _hot(peers: Sequence[Unit], limits: Limits) -> list[Unit]:
    """GPUs that are hot, or hotter than their peers and slower."""
    heats = [float(unit.figures.temperature_c_max or 0) for unit in peers]
    clocks = [unit.figures.sm_clock_mhz_median if unit.is_busy else None for unit in peers]
    usual_heats, usual_clocks = medians_of_others(heats), medians_of_others(clocks)
    hot = []
    for i, unit in enumerate(peers):
        usual, clock, others = usual_heats[i], clocks[i], usual_clocks[i]
        is_hotter = usual is not None and heats[i] >= usual + limits["above_peers_c"]
        is_lower = clock is not None and others is not None and clock < _LOWER_CLOCK * others
        if heats[i] >= limits["hot_c"] or (is_hotter and (is_lower or _is_slowed(unit))):
            hot.append(unit)
    return hot


def _is_slowed(unit: Unit) -> bool:
    return any(unit.figures.throttle_reasons.get(reason) for reason in _HEAT)
