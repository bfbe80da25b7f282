"""Every step of the training by its step log: time, throughput, phases and loss.

A trace holds a few steps; the log holds all of them, also those without a profiler.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from distprof.artefacts.record import Record
from distprof.sections.base import Result

__all__ = [
    "LateInLog",
    "PeriodicStall",
    "RankStepLog",
    "StepLogResult",
]


class PeriodicStall(Record, frozen=True, kw_only=True):
    """Steps at equal distances that are longer than the others, on every rank.

    Args:
        period: From one to the next, in steps.
        first_step: The first of them that was long.
        num_stalls: How many were long.
        num_due: How many the period has among the steps that are compared.
        longer_ns: By how much a long one exceeds the median step, median.
        cost_ns_per_step: The same summed, over all steps compared.
    """

    period: int
    first_step: int
    num_stalls: int
    num_due: int
    longer_ns: int
    cost_ns_per_step: int


class LateInLog(Record, frozen=True, kw_only=True):
    """A CPU rank whose training thread computes for longer than its peers' in nearly every step.

    Args:
        rank: Global rank.
        late_ns: How much longer than the median of its peers it computes, median of the steps.
        late_ratio: The same as a share of the peers' time.
        often_ratio: The share that it exceeds in 65 % of the steps.
        gained_ns: How much longer than any rank that is not late, median of the steps: what a step
            in which all wait for all loses to it.
        num_steps: Steps that were compared.
    """

    rank: int
    late_ns: int
    late_ratio: float
    often_ratio: float
    gained_ns: int
    num_steps: int


class RankStepLog(Record, frozen=True, kw_only=True):
    """One rank's steps.

    Figures are of *plain* steps unless said: not traced, nor next to one that is, nor the first.

    Args:
        rank: Global rank.
        first_step: Number of the first step logged.
        last_step: Number of the last step completed.
        num_steps: Steps in the log.
        num_plain: Plain steps.
        median_ns: Median of plain steps, None without any.
        p95_ns: 95th percentile.
        cv: Standard deviation over mean.
        traced_median_ns: Median of traced steps, None without any.
        tokens_per_s: Tokens of plain steps over their time, None where no tokens are logged.
        samples_per_s: The same with samples.
        input_ratio: Share of plain steps spent in the phase ``input``, None without phases.
        phases: Phase to its median time per step; several of one name in a step are added up.
        first_loss: First that was logged.
        last_loss: Last that was logged.
        tokens_per_step: Median of plain steps, None where no tokens are logged.
        num_micro_batches: The same of forward passes.
        samples_per_step: The same of samples.
    """

    rank: int
    first_step: int
    last_step: int
    num_steps: int
    num_plain: int
    median_ns: int | None
    p95_ns: int | None
    cv: float | None
    traced_median_ns: int | None
    tokens_per_s: float | None
    samples_per_s: float | None
    input_ratio: float | None
    phases: dict[str, int]
    first_loss: float | None
    last_loss: float | None
    tokens_per_step: int | None = None
    num_micro_batches: int | None = None
    samples_per_step: int | None = None


class StepLogResult(Result, frozen=True, kw_only=True):
    """All ranks' steps; a step lasts as long as on the median rank.

    Args:
        num_steps: Steps that any rank completed.
        last_step: Number of the last step that every logging rank completed, None without any.
        median_ns: Median of plain steps.
        p95_ns: 95th percentile of plain steps.
        cv: Standard deviation over mean of plain steps.
        traced_median_ns: Median of traced steps.
        tokens_per_s: All ranks together: ranks that share their data log a part of it each.
        samples_per_s: The same with samples.
        input_ratio: Mean over ranks.
        phases: Phase to its median over ranks.
        first_loss: Mean over the ranks that have one.
        last_loss: Mean over the ranks that have one.
        ranks: One row per rank.
        plain_ns: Durations of the last plain steps, at most a few hundred, in order of time.
        tokens_per_step: All ranks together, None unless every logging rank counts them.
        samples_per_step: The same of samples.
        stalls: Periodic work that makes steps longer on all ranks.
        late: CPU ranks that compute for longer than their peers in plain steps, the latest first.
    """

    has_own_steps: ClassVar[bool] = True

    num_steps: int = 0
    last_step: int | None = None
    median_ns: int | None = None
    p95_ns: int | None = None
    cv: float | None = None
    traced_median_ns: int | None = None
    tokens_per_s: float | None = None
    samples_per_s: float | None = None
    input_ratio: float | None = None
    phases: dict[str, int] = msgspec.field(default_factory=dict)
    first_loss: float | None = None
    last_loss: float | None = None
    ranks: tuple[RankStepLog, ...] = ()
    plain_ns: tuple[int, ...] = ()
    tokens_per_step: int | None = None
    samples_per_step: int | None = None
    stalls: tuple[PeriodicStall, ...] = ()
    late: tuple[LateInLog, ...] = ()
