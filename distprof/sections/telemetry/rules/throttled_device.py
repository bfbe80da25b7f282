"""# throttled-device

## What it detects
Devices that slow themselves down: for heat, for the supply of power, or for a power cap that their
peers do not reach.

## Why it costs time
A device at 70 % of its clock takes 1.4 times as long for the same kernels, and every other rank of
a synchronous job waits for it.

## Evidence needed
Reasons for throttling in sensors: of distprof's own probe, of `nvidia-smi --query-gpu` with
`clocks_event_reasons.active`, of `nvidia-smi dmon -s v`, or of DCGM. Figures are those of the
analysed steps where samples are of their time, else of the whole recording, which is then said.

## How the cost is computed
As the straggler that the rank is: the exposed waiting of the others for it. None where the others
do not wait for it, or where no rank is known.

## How to fix
Heat: look at air flow, inlet temperature, fans, coolant, thermal paste. Power brake and hardware
slowdown: look at the power supply and its cables. A power cap on some devices: compare
`nvidia-smi -q -d POWER`, and set one limit for all.

## When it is wrong
A device at its power cap in most samples works as it is meant to if its peers are there too: that
is no finding. Few samples say little, and a sample is a moment: raise the rate.

## Sources
NVIDIA, NVML reference, "NvmlClocksEventReasons".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from distprof.rules.base import Draft, Limit, Limits, rule
from distprof.sections.stragglers.result import StragglersResult
from distprof.sections.telemetry.result import TelemetryResult
from distprof.sections.telemetry.rules._shared import (
    Unit,
    by_kind,
    cost_of,
    evidence_of,
    median_of,
    medians_of_others,
    named,
    ranks_of,
    units_of,
)
from distprof.terms import Severity
from distprof.units import format_ratio

_HEAT = ("hw_thermal_slowdown", "sw_thermal_slowdown", "thermal_violation")
_BRAKE = ("hw_power_brake_slowdown",)
_HARDWARE = ("hw_slowdown",)
_CAP = ("sw_power_cap", "power_violation")
_CAUSES: tuple[tuple[tuple[str, ...], str, str], ...] = (
    (
        _HEAT,
        "heat",
        "Look at air flow, inlet temperature, fans or coolant of its host "
        "(nvidia-smi -q -d TEMPERATURE,PERFORMANCE); run the job without that host meanwhile.",
    ),
    (
        _BRAKE,
        "the power supply's brake",
        "Look at the power supplies of its host and their cables: the brake is pulled from outside "
        "of the device.",
    ),
    (
        _HARDWARE,
        "its hardware, which says no more",
        "Look at temperature, power supply and the kernel log of its host "
        "(nvidia-smi -q -d PERFORMANCE); replace the device if it stays.",
    ),
    (
        _CAP,
        "a power cap that its peers do not reach",
        "Compare power limits (nvidia-smi -q -d POWER) and set one for all; with equal limits, "
        "look at its cooling: a hot device needs more power for the same clock.",
    ),
)


@rule(
    code="TEL101",
    severity=Severity.WARNING,
    since="0.1.0",
    needs=(TelemetryResult, StragglersResult),
    limits={
        "min_ratio": Limit(0.1, "share of samples in which heat or hardware may slow a device"),
        "more_capped_ratio": Limit(
            0.2, "share of samples, beyond the peers' median, in which a power cap may slow it"
        ),
    },
)
def check(
    telemetry: TelemetryResult, stragglers: StragglersResult, limits: Limits
) -> Iterator[Draft]:
    """Yield one finding per cause, of all devices that have it."""
    units = units_of(telemetry)
    left = units
    for reasons, cause, fix in _CAUSES:
        found = _slowed(left, reasons, limits)
        if not found:
            continue
        ids = {id(unit) for unit in found}
        left = [unit for unit in left if id(unit) not in ids]
        cost, without, confidence = cost_of(found, stragglers)
        yield Draft(
            message=_message(found, units, reasons, cause),
            fix=fix,
            cost_ns_per_step=cost,
            confidence=confidence,
            ranks=ranks_of(found),
            evidence=evidence_of(found),
            without=without,
        )


def _share(unit: Unit, reasons: Sequence[str]) -> float:
    """Share of samples that have one of the reasons; of reasons that overlap, the largest."""
    return max((unit.figures.throttle_reasons.get(reason, 0.0) for reason in reasons), default=0.0)


def _slowed(units: Sequence[Unit], reasons: Sequence[str], limits: Limits) -> list[Unit]:
    """Devices with one of the reasons: of a power cap, more often than their peers."""
    if reasons is not _CAP:
        return [unit for unit in units if _share(unit, reasons) >= limits["min_ratio"]]
    found = []
    for peers in by_kind(units):
        shares = [_share(unit, reasons) for unit in peers]
        for unit, share, usual in zip(peers, shares, medians_of_others(shares), strict=True):
            if usual is not None and share - usual >= limits["more_capped_ratio"]:
                found.append(unit)
    return found


def _message(
    found: Sequence[Unit], units: Sequence[Unit], reasons: Sequence[str], cause: str
) -> str:
    shares = [_share(unit, reasons) for unit in found]
    some, most = format_ratio(min(shares)), format_ratio(max(shares))
    share = some if some == most else f"{some} to {most}"
    names = sorted({r for unit in found for r in unit.figures.throttle_reasons if r in reasons})
    when = "of the analysed steps" if all(u.is_in_steps for u in found) else "of the recording"
    several = "are" if len(found) > 1 else "is"
    if len(found) > 1:
        cause = cause.replace("its ", "their ")
    return (
        f"{named(found)} {several} slowed down by {cause} ({', '.join(names)}), in {share} of the "
        f"samples {when}{_clocks(found, units)}."
    )


def _clocks(found: Sequence[Unit], units: Sequence[Unit]) -> str:
    own = median_of(found, lambda figures: figures.sm_clock_mhz_median)
    ids = {id(unit) for unit in found}
    rest = [unit for unit in units if id(unit) not in ids]
    usual = median_of(rest, lambda figures: figures.sm_clock_mhz_median)
    if own is None:
        return ""
    text = f", at a median clock of {own:,.0f} MHz"
    return text if usual is None else f"{text}; the others' is {usual:,.0f} MHz"
