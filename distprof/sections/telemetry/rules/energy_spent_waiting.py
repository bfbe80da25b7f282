"""# energy-spent-waiting

## What it detects
A large share of the job's energy is drawn while ranks wait for other ranks.

## Why it costs time
Waiting is lost time, and other findings name the rank that causes it. This finding reports its
energy: NCCL's kernels poll while they wait, so a waiting GPU draws most of its power.

## Evidence needed
Power, or the energy counter, of every rank's GPU over the analysed steps, and collectives
matched across ranks, so that waiting and transfer can be separated.

## How the cost is computed
Only in energy: the sum over ranks of mean power times exposed waiting. Findings on stragglers,
pipelines and collectives carry the cost in time.

## How to fix
Fix the causes of waiting, most expensive first. Until then a lower power cap on waiting ranks saves
energy and costs no time.

## When it is wrong
Samples are too far apart to show the power of a GPU while it waits, so distprof uses its mean
power. A waiting GPU draws somewhat less than a computing one.

## Sources
Formula sheet, "Measured from traces" (exposed wait).
"""

from __future__ import annotations

from collections.abc import Iterator

from distprof.rules.base import Draft, InsufficientEvidenceError, Limit, Limits, rule
from distprof.sections.telemetry.result import TelemetryResult
from distprof.sections.telemetry.rules._shared import NO_SENSORS
from distprof.terms import Confidence, Severity
from distprof.units import format_ratio


@rule(
    code="TEL106",
    severity=Severity.INFO,
    since="0.1.0",
    limits={"waiting_ratio": Limit(0.15, "share of the energy that waiting may take")},
    costs_time=False,
)
def check(telemetry: TelemetryResult, limits: Limits) -> Iterator[Draft]:
    """Yield one finding for the whole job."""
    share = telemetry.waiting_energy_ratio
    if share is None:
        if telemetry.is_missing:
            raise InsufficientEvidenceError(NO_SENSORS)
        if telemetry.ranks:
            raise InsufficientEvidenceError(
                "; ".join(telemetry.unavailable) or "no step with a known energy was analysed"
            )
        return
    if share < limits["waiting_ratio"]:
        return
    yield Draft(
        message=(
            f"{_amount(telemetry.energy_per_step_j, share)} is drawn while ranks wait for others."
        ),
        fix=(
            "Fix the causes of waiting, most expensive first. Until then a lower power cap on "
            "waiting ranks saves energy and costs no time."
        ),
        confidence=Confidence.MODELLED,
        evidence=("telemetry.waiting_energy_ratio",),
    )


def _amount(total_j: float | None, share: float) -> str:
    if total_j is None:
        return f"{format_ratio(share)} of the energy of the traced ranks"
    return f"Of {_joules(total_j)} per step, {_joules(share * total_j)} ({format_ratio(share)})"


def _joules(energy: float) -> str:
    for unit, size in (("MJ", 1e6), ("kJ", 1e3)):
        if energy >= size:
            return f"{energy / size:.3g} {unit}"
    return f"{energy:.3g} J"
