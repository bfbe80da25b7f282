"""# uneven-device-clocks

## What it detects
GPUs that run at a lower clock than their peers although they report no throttling.

## Why it costs time
Compute kernels take longer in proportion, and all ranks wait for the slowest.

## Evidence needed
Clocks of at least 3 busy GPUs of one model, from the analysed steps if samples cover them. Samples
without throttle reasons cannot show that nothing throttles a GPU.

## How the cost is computed
The cost of the rank as a straggler: the exposed time that other ranks wait for it. There is none if
they do not wait for it, or if the rank is unknown.

## How to fix
Reset application clocks (`nvidia-smi -rac`) and locked clocks (`nvidia-smi -rgc`), compare power
limits, and switch persistence mode on. Take a GPU whose clock stays low out of service.

## When it is wrong
A GPU with less work may lower its clock: check whether its rank is late. Different models in one
job have different clocks, but distprof assumes that all ranks have the same model.

## Sources
NVIDIA, `nvidia-smi` manual, "Clocks".
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

MIN_PEERS = 2


@rule(
    code="TEL102",
    severity=Severity.WARNING,
    since="0.1.0",
    limits={
        "lower_ratio": Limit(0.05, "share by which a clock may be below its peers' median"),
        "throttled_ratio": Limit(
            0.1, "share of throttled samples from which throttled-device reports the GPU"
        ),
    },
)
def check(
    telemetry: TelemetryResult, stragglers: StragglersResult, limits: Limits
) -> Iterator[Draft]:
    """Yield one finding per model of GPU."""
    busy = [unit for unit in units_of(telemetry) if unit.is_busy and _clock(unit) is not None]
    for peers in by_kind(busy):
        usual = medians_of_others([_clock(unit) for unit in peers])
        slow = [
            unit
            for unit, others in zip(peers, usual, strict=True)
            if len(peers) > MIN_PEERS and _is_low(unit, others, limits)
        ]
        if slow:
            yield _draft(slow, peers, stragglers)


def _clock(unit: Unit) -> float | None:
    return unit.figures.sm_clock_mhz_median


def _is_low(unit: Unit, usual: float | None, limits: Limits) -> bool:
    own = _clock(unit)
    if own is None or not usual:
        return False
    if (unit.figures.throttled_ratio or 0.0) >= limits["throttled_ratio"]:
        return False
    return own < (1 - limits["lower_ratio"]) * usual


def _draft(slow: Sequence[Unit], peers: Sequence[Unit], stragglers: StragglersResult) -> Draft:
    ids = {id(unit) for unit in slow}
    rest = [unit for unit in peers if id(unit) not in ids]
    own = median_of(slow, lambda figures: figures.sm_clock_mhz_median) or 0.0
    usual = median_of(rest, lambda figures: figures.sm_clock_mhz_median) or own
    cost, without, confidence = cost_of(slow, stragglers)
    several = len(slow) > 1
    return Draft(
        message=(
            f"{named(slow)} {'run' if several else 'runs'} at {own:,.0f} MHz, "
            f"{format_ratio(1 - own / usual if usual else 0.0)} below the {usual:,.0f} MHz of "
            f"{'their' if several else 'its'} peers, for no reported reason."
        ),
        fix=(
            "Reset application and locked clocks (nvidia-smi -rac, nvidia-smi -rgc), compare power "
            "limits (nvidia-smi -q -d CLOCK,POWER). Take a GPU whose clock stays low out of "
            "service."
        ),
        cost_ns_per_step=cost,
        confidence=confidence,
        ranks=ranks_of(slow),
        evidence=evidence_of(slow),
        without=without,
    )
