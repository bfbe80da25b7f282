"""Energy of a step: all devices together, per token, and what is drawn while ranks wait.

    E_wait = Σ_r P_r · wait_r

with P_r the mean power of rank r's device in the analysed steps, and wait_r its exposed waiting in
collectives and for messages (the waterfall's parts of these names).
"""

from __future__ import annotations

from msgspec.structs import replace

from distprof.analyzers.step_log import StepLogResult
from distprof.analyzers.telemetry import TelemetryResult
from distprof.analyzers.waterfall import WaterfallResult
from distprof.units import name_ranks

__all__ = ["with_energy"]


def with_energy(
    telemetry: TelemetryResult, waterfall: WaterfallResult, step_log: StepLogResult
) -> TelemetryResult:
    """The result with the energy of a step; without it, and why, where a rank's is not known.

    Args:
        telemetry: Sensors, with their figures in the analysed steps.
        waterfall: Of the same steps.
        step_log: For tokens.
    """
    if not telemetry.ranks or not waterfall.ranks or not waterfall.num_steps:
        return telemetry
    known = {
        row.rank: row.in_steps.energy_j
        for row in telemetry.ranks
        if row.in_steps is not None and row.in_steps.energy_j is not None
    }
    missing = [row.rank for row in waterfall.ranks if row.rank not in known]
    if missing:
        return replace(telemetry, unavailable=(*telemetry.unavailable, _why(missing, bool(known))))
    total = sum(known[row.rank] for row in waterfall.ranks)
    waiting = sum(
        known[row.rank] * (row.exposed_wait_ns + row.exposed_p2p_wait_ns) / row.span_ns
        for row in waterfall.ranks
        if row.span_ns
    )
    per_step = total / waterfall.num_steps
    tokens = step_log.tokens_per_step
    return replace(
        telemetry,
        energy_per_step_j=per_step,
        energy_per_token_j=per_step / tokens if tokens else None,
        waiting_energy_per_step_j=waiting / waterfall.num_steps,
        waiting_energy_ratio=waiting / total if total else None,
    )


def _why(missing: list[int], is_known_of_some: bool) -> str:
    if is_known_of_some:
        return f"The energy of a step is not known of the devices of {name_ranks(missing)}."
    return "The energy of a step is not known: no samples of power reach over the analysed steps."
