"""Energy of a step: all devices together, per token, and what is drawn while ranks wait.

    E_wait = Σ_r P_r · wait_r

with P_r the mean power of rank r's device in the analysed steps, and wait_r its exposed waiting in
collectives and for messages (the waterfall's parts of these names).
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from distprof.analyzers.rows import RankWaterfall
from distprof.analyzers.step_log import StepLogResult
from distprof.analyzers.telemetry import TelemetryResult
from distprof.analyzers.waterfall import WaterfallResult
from distprof.units import name_ranks

__all__ = ["with_energy"]


def with_energy(
    telemetry: TelemetryResult,
    waterfall: WaterfallResult,
    step_log: StepLogResult,
    world_size: int | None = None,
) -> TelemetryResult:
    """The result with the energy of a step, and why it is not known where it is not.

    The share of waiting is that of the ranks whose waiting is known, which are those that were
    traced; the energy of a step is that of all ranks of the job.

    Args:
        telemetry: Sensors, with their figures in the analysed steps.
        waterfall: Of the same steps.
        step_log: For tokens.
        world_size: Ranks of the job, None where it is not known.
    """
    if not telemetry.ranks or not waterfall.ranks or not waterfall.num_steps:
        return telemetry
    known = {
        row.rank: row.in_steps.energy_j
        for row in telemetry.ranks
        if row.in_steps is not None and row.in_steps.energy_j is not None
    }
    if not known:
        why = (
            "The energy of a step is not known: no samples of power reach over the analysed steps."
        )
        return replace(telemetry, unavailable=(*telemetry.unavailable, why))
    traced = {row.rank for row in waterfall.ranks}
    missing = sorted((traced | set(range(world_size or 0))) - set(known))
    share = _waiting_share(waterfall.ranks, known)
    if missing:
        why = f"The energy of a step is not known of the devices of {name_ranks(missing)}."
        return replace(
            telemetry,
            waiting_energy_ratio=share,
            unavailable=(*telemetry.unavailable, why),
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
    """Share of their energy that ranks draw while they wait; None where one's is not known."""
    if any(row.rank not in energy_j for row in ranks):
        return None
    total = sum(energy_j[row.rank] for row in ranks)
    waiting = sum(
        energy_j[row.rank] * (row.exposed_wait_ns + row.exposed_p2p_wait_ns) / row.span_ns
        for row in ranks
        if row.span_ns
    )
    return waiting / total if total else None
