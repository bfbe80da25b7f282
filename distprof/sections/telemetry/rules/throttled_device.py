"""# throttled-device

## What it detects
GPUs that throttle because of heat, the power supply, or a power cap that their peers do not reach.

## Why it costs time
A GPU at 70 % of its clock takes 1.4 times as long for the same kernels, and every other rank of
a synchronous job waits for it.

## Evidence needed
Throttle reasons from distprof's probe, `nvidia-smi --query-gpu` with `clocks_event_reasons.active`,
`nvidia-smi dmon -s v`, or DCGM. Figures cover the analysed steps if there are samples of them,
otherwise the whole recording. The message says which.

## How the cost is computed
The cost of the rank as a straggler: the exposed time that other ranks wait for it. There is none if
they do not wait for it, or if the rank is unknown.

## How to fix
Heat: look at air flow, inlet temperature, fans, coolant, thermal paste. Power brake and hardware
slowdown: look at the power supply and its cables. A power cap on some GPUs: compare
`nvidia-smi -q -d POWER`, and set one limit for all.

## When it is wrong
A GPU at its power cap in most samples works as intended if its peers are also at their caps, and is
not reported. Each sample is one moment, so a few samples show little: raise the sampling rate.

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
        "(nvidia-smi -q -d TEMPERATURE,PERFORMANCE). Until then run the job without that host.",
    ),
    (
        _BRAKE,
        "the power brake signal",
        "Look at the power supplies of its host and their cables: the signal comes from outside "
        "the GPU.",
    ),
    (
        _HARDWARE,
        "its hardware, for a reason it does not report",
        "Look at temperature, power supply and the kernel log of its host "
        "(nvidia-smi -q -d PERFORMANCE). Replace the GPU if it stays slow.",
    ),
    (
        _CAP,
        "a power cap that its peers do not reach",
        "Compare power limits (nvidia-smi -q -d POWER) and set one for all. If limits are equal, "
        "check its cooling: a hot GPU needs more power for the same clock.",
    ),
)


@rule(
    code="TEL101",
    severity=Severity.WARNING,
    since="0.1.0",
    limits={
        "min_ratio": Limit(0.1, "share of samples in which heat or hardware may slow a GPU"),
        "more_capped_ratio": Limit(
            0.2, "share of samples, above the peers' median, in which a power cap may slow it"
        ),
    },
)
def check(
    telemetry: TelemetryResult, stragglers: StragglersResult, limits: Limits
) -> Iterator[Draft]:
    """Yield one finding per cause, for all GPUs that have it."""
    units = units_of(telemetry)
    left = units
    for reasons, cause, fix in _CAUSES:
        gpus = _slowed(left, reasons, limits)
        if not gpus:
            continue
        ids = {id(unit) for unit in gpus}
        left = [unit for unit in left if id(unit) not in ids]
        cost, without, confidence = cost_of(gpus, stragglers)
        yield Draft(
            message=_message(gpus, units, reasons, cause),
            fix=fix,
            cost_ns_per_step=cost,
            confidence=confidence,
            ranks=ranks_of(gpus),
            evidence=evidence_of(gpus),
            without=without,
        )


def _share(unit: Unit, reasons: Sequence[str]) -> float:
    """The largest share of samples with one of the reasons."""
    return max((unit.figures.throttle_reasons.get(reason, 0.0) for reason in reasons), default=0.0)


def _slowed(units: Sequence[Unit], reasons: Sequence[str], limits: Limits) -> list[Unit]:
    """GPUs with one of the reasons; for a power cap, more often than their peers."""
    if reasons is not _CAP:
        return [unit for unit in units if _share(unit, reasons) >= limits["min_ratio"]]
    gpus = []
    for peers in by_kind(units):
        shares = [_share(unit, reasons) for unit in peers]
        for unit, share, usual in zip(peers, shares, medians_of_others(shares), strict=True):
            if usual is not None and share - usual >= limits["more_capped_ratio"]:
                gpus.append(unit)
    return gpus


def _message(
    gpus: Sequence[Unit], units: Sequence[Unit], reasons: Sequence[str], cause: str
) -> str:
    shares = [_share(unit, reasons) for unit in gpus]
    some, most = format_ratio(min(shares)), format_ratio(max(shares))
    share = some if some == most else f"{some} to {most}"
    names = sorted({r for unit in gpus for r in unit.figures.throttle_reasons if r in reasons})
    when = "of the analysed steps" if all(u.is_in_steps for u in gpus) else "of the recording"
    several = "are" if len(gpus) > 1 else "is"
    if len(gpus) > 1:
        cause = cause.replace("its ", "their ")
    return (
        f"{named(gpus)} {several} slowed down by {cause} ({', '.join(names)}), in {share} of the "
        f"samples {when}{_clocks(gpus, units)}."
    )


def _clocks(gpus: Sequence[Unit], units: Sequence[Unit]) -> str:
    own = median_of(gpus, lambda figures: figures.sm_clock_mhz_median)
    ids = {id(unit) for unit in gpus}
    rest = [unit for unit in units if id(unit) not in ids]
    usual = median_of(rest, lambda figures: figures.sm_clock_mhz_median)
    if own is None:
        return ""
    text = f", at a median clock of {own:,.0f} MHz"
    return text if usual is None else f"{text}, and {usual:,.0f} MHz on the others"
