"""Every training step according to the step log: time, throughput, phases and loss."""

from __future__ import annotations

from statistics import median
from typing import ClassVar

import msgspec

from distprof.artefacts.record import Record
from distprof.sections.base import Result


class PeriodicStall(Record, frozen=True, kw_only=True):
    """Steps at regular intervals that take longer than the others on every rank."""

    period: int  # Distance from one stall to the next, in steps.
    first_step: int  # Number of the first long step.
    num_stalls: int  # Number of long steps.
    num_due: int  # Number of steps at which a stall was due, among the compared steps.
    longer_ns: int  # Median excess of a long step over the median step.
    cost_ns_per_step: int  # Excess of all long steps, divided by the number of compared steps.
    # Whether the CPU may only wait in them for work that it queued on the GPU in the steps before:
    # on GPU ranks whose step log does not show the GPU's pace.
    may_wait_for_gpu: bool = False


class LateInLog(Record, frozen=True, kw_only=True):
    """A CPU rank whose training thread computes longer than its peers' in nearly every step."""

    rank: int  # Global rank.
    late_ns: int  # Excess over the median of its peers, median over steps.
    late_ratio: float  # The same as a share of the peers' time.
    # Excess that it reaches in 65 % of the steps, as a share of the peers' time.
    often_ratio: float
    # Excess over the slowest rank that is not late, median over steps: the loss per step if all
    # ranks wait for each other.
    gained_ns: int
    num_steps: int  # Number of compared steps.


class LateOnGpu(Record, frozen=True, kw_only=True):
    """A GPU rank that arrives late at collectives in nearly every step, by their durations."""

    rank: int  # Global rank.
    late_ns: int  # Lower bound of its lateness, median over steps.
    late_most_ns: int  # Upper bound.
    # Its lateness at a collective as a share of the time that the peers need up to there: the
    # largest lower bound of a step, median over steps.
    late_ratio: float
    often_ratio: float  # Share that it reaches in 65 % of the steps.
    num_steps: int  # Number of compared steps, the last ones that all ranks recorded.


class RankStepLog(Record, frozen=True, kw_only=True):
    """One rank's steps.

    Unless stated otherwise, figures cover *plain* steps: neither traced, nor next to a traced step,
    nor the first step.
    """

    rank: int  # Global rank.
    first_step: int  # Number of the first step logged.
    last_step: int  # Number of the last step completed.
    num_steps: int  # Steps in the log.
    num_plain: int  # Plain steps.
    # Median of plain steps that are as fast as without a profiler: the first steps and slower ones
    # after it do not count if there are others. None without any.
    median_ns: int | None
    p95_ns: int | None  # 95th percentile of the same steps.
    cv: float | None  # Their standard deviation over their mean.
    traced_median_ns: int | None  # Median of traced steps; None without any.
    # Tokens of plain steps over their time; None if no tokens are logged.
    tokens_per_s: float | None
    samples_per_s: float | None  # The same for samples.
    # Share of plain steps spent in the phase ``input``; None without phases.
    input_ratio: float | None
    # Median time per step by phase. Phases of the same name in one step are added up.
    phases: dict[str, int]
    first_loss: float | None  # First logged loss.
    last_loss: float | None  # Last logged loss.
    tokens_per_step: int | None = None  # Median of plain steps; None if no tokens are logged.
    num_micro_batches: int | None = None  # The same for forward passes.
    samples_per_step: int | None = None  # The same for samples.
    # Share of steps without a profiler at whose end the GPU had not finished the step before: the
    # GPU sets the pace. None if it was not observed.
    gpu_behind_ratio: float | None = None


class StepLogResult(Result, frozen=True, kw_only=True):
    """Steps of all ranks. The duration of a step is that of its median rank."""

    has_own_steps: ClassVar[bool] = True

    num_steps: int = 0  # Steps that any rank completed.
    # Number of the last step that every logging rank completed; None without any.
    last_step: int | None = None
    median_ns: int | None = None  # Median of plain steps.
    p95_ns: int | None = None  # 95th percentile of plain steps.
    cv: float | None = None  # Standard deviation over mean of plain steps.
    traced_median_ns: int | None = None  # Median of traced steps.
    # Sum over ranks. Ranks that work on the same data each log a part of it.
    tokens_per_s: float | None = None
    samples_per_s: float | None = None  # The same for samples.
    input_ratio: float | None = None  # Mean over ranks.
    phases: dict[str, int] = msgspec.field(default_factory=dict)  # Median over ranks by phase.
    first_loss: float | None = None  # Mean over the ranks that have one.
    last_loss: float | None = None  # Mean over the ranks that have one.
    ranks: tuple[RankStepLog, ...] = ()  # One row per rank.
    # Durations of the last plain steps, at most a few hundred, in chronological order.
    plain_ns: tuple[int, ...] = ()
    # Sum over ranks; None unless every logging rank counts them.
    tokens_per_step: int | None = None
    samples_per_step: int | None = None  # The same for samples.
    stalls: tuple[PeriodicStall, ...] = ()  # Periodic work that makes steps longer on all ranks.
    # Steps from one wait of the CPUs for their GPUs to the next, if the CPUs are so far ahead in
    # between that the median step is too short; else None.
    wait_period: int | None = None
    # CPU ranks that compute longer than their peers in plain steps, latest first.
    late: tuple[LateInLog, ...] = ()
    # GPU ranks that arrive late at collectives in plain steps, latest first. Empty without NCCL's
    # timing.
    late_on_gpus: tuple[LateOnGpu, ...] = ()

    @property
    def step_ns(self) -> int | None:
        """Time of a step without a profiler: the median of ``samples_ns``."""
        samples = self.samples_ns
        if not self.smoothed_steps or not samples:
            return self.median_ns
        return round(median(samples))

    @property
    def samples_ns(self) -> tuple[int, ...]:
        """Durations of plain steps, or their means over ``smoothed_steps`` each."""
        number = self.smoothed_steps
        if not number:
            return self.plain_ns
        first = len(self.plain_ns) % number  # the CPU gets ahead in the first steps
        starts = range(first, len(self.plain_ns), number)
        return tuple(sum(self.plain_ns[i : i + number]) // number for i in starts)

    @property
    def smoothed_steps(self) -> int:
        """Number of steps whose mean is the time of a step; 0 if single steps can be trusted."""
        unsure = (one.period for one in self.stalls if one.may_wait_for_gpu)
        return max((self.wait_period or 0, *unsure))
