"""Time for which training waits for its batches, shared by the rules on data loaders."""

from __future__ import annotations

import statistics

import msgspec

from distprof.rules.base import InsufficientEvidenceError
from distprof.sections.idle.result import IdleResult, PausesResult
from distprof.sections.shares import StepTimes
from distprof.sections.step_log.result import StepLogResult
from distprof.sections.stragglers.result import StragglersResult
from distprof.terms import StragglerCause, StragglerPattern
from distprof.units import format_duration, format_ratio


class Waiting(msgspec.Struct, frozen=True, kw_only=True):
    """Time for which the training loop waits for its next batch, mean per step."""

    ns: int  # Mean over ranks.
    ratio: float  # Share of the step.
    share: str  # As text, for example ``27.8 % of each step (11.1 ms of 39.8 ms)``.
    # Ranks that wait at least as long as the limit; empty if there are none.
    ranks: tuple[int, ...] = ()


def waiting_for_input(
    idle: IdleResult,
    times: StepTimes,
    pauses: PausesResult,
    step_log: StepLogResult,
    least_ratio: float,
) -> Waiting:
    """The wait according to the traces or, without traces, according to the probes' logs."""
    if idle.ranks:
        step = times.mean_step()
        mean_ns = step.mean(step.total.idle_input_ns)
        spans = {rank.rank: rank.span_ns for rank in times.waterfall.ranks}
        late = tuple(
            rank.rank
            for rank in idle.ranks
            if rank.input_ns >= least_ratio * spans.get(rank.rank, rank.idle_ns)
        )
        return Waiting(ns=mean_ns, ratio=step.ratio(mean_ns), share=step.share(mean_ns), ranks=late)
    step_ns = step_log.step_ns
    if not pauses.ranks or not step_ns:
        raise InsufficientEvidenceError(
            "there are neither traces with CPU activities nor logged waits for a data loader"
        )
    waits = {rank.rank: rank.input_ns_per_step for rank in pauses.ranks}
    mean_ns = round(statistics.mean(waits.values()))
    parts = f"{format_duration(mean_ns)} of {format_duration(step_ns)}"
    return Waiting(
        ns=mean_ns,
        ratio=mean_ns / step_ns,
        share=f"{format_ratio(mean_ns / step_ns)} of each step ({parts})",
        ranks=tuple(rank for rank, wait in waits.items() if wait >= least_ratio * step_ns),
    )


def named_for_late_input(stragglers: StragglersResult) -> set[int]:
    """Ranks whose late input a straggler rule reports."""
    return {
        rank.rank
        for rank in stragglers.ranks
        if rank.pattern is not StragglerPattern.NONE and rank.cause is StragglerCause.LATE_INPUT
    }
