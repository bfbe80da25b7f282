"""Iterations as printed by a training program: times, throughput, timers.

Figures cover *steady* reports: all reports with a time except the first one and the first one after
each restart, in which programs allocate, compile and connect. Means are weighted by the number of
iterations in a report.

Source: formula sheet, "Pipeline bubble", for the ideal idle share of a pipeline.
"""

from __future__ import annotations

import re
from typing import ClassVar

import msgspec

from distprof.artefacts.record import Record
from distprof.sections.base import Result

INPUT_TIMER = re.compile(
    r"^(?:data|input|load|fetch)(?:[_ ]?(?:time|wait|load\w{0,6}))?$|^batch-generator$"
    r"|train_dataloader_next$|^get_train_batch$|^dataloader"
)
"""Names of timers around the wait for the next batch, as programs print them."""

MIN_RECURRING = 5
"""Number of slow iterations from which they count as recurring."""


class TrainingTimer(Record, frozen=True, kw_only=True):
    """A timer of the program.

    Args:
        name: Name as printed.
        num_reports: Steady reports that contain it.
        mean_ns: Mean per iteration.
        median_ns: Median per iteration.
        ratio: Share of the mean iteration; None if the span that the timer covers is unknown.
        waits: Whether it is mostly waiting for other pipeline stages.
    """

    name: str
    num_reports: int
    mean_ns: int
    median_ns: int
    ratio: float | None
    waits: bool = False


class SlowIteration(Record, frozen=True, kw_only=True):
    """An iteration that took much longer than its neighbours.

    Args:
        iteration: Number as printed; null if not printed.
        duration_ns: Its duration.
    """

    iteration: int | None
    duration_ns: int


class SlowPeriod(Record, frozen=True, kw_only=True):
    """Iterations in a row that take longer than those before and after.

    Args:
        first_iteration: Number of the first one as printed; null if not printed.
        last_iteration: Number of the last one; null if not printed, or if the log ends with it.
        num_reports: Steady reports in it.
        duration_ns: Median duration of an iteration in it.
        usual_ns: Median duration of the other iterations.
        excess_ns: Its time beyond the usual duration, averaged over all iterations of the log.
        is_gradual: Whether iterations get longer little by little, not from one to the next.
    """

    first_iteration: int | None
    last_iteration: int | None
    num_reports: int
    duration_ns: int
    usual_ns: int
    excess_ns: int
    is_gradual: bool


class TrainingLogResult(Result, frozen=True, kw_only=True):
    """Contents of a training program's log.

    Args:
        origin: Program that wrote the log, for example ``Megatron-LM``; empty without a log.
        num_reports: Reports on iterations.
        num_steady: Steady reports, which the figures cover.
        first_iteration: Iteration number of the first report; None if not printed.
        last_iteration: Iteration number of the last report.
        iterations_per_report: Typical number of iterations that a report averages.
        mean_ns: Mean duration of an iteration.
        median_ns: Median duration of an iteration.
        p95_ns: 95th percentile of the durations.
        p99_ns: 99th percentile of the durations.
        max_ns: Longest iteration.
        cv: Standard deviation over mean.
        steady_ns: Duration of an iteration in each of the last steady reports, at most a few
            hundred, in order.
        samples_per_s: All ranks together, median of the reports.
        tokens_per_s: The same for tokens; if not printed, derived from the batch and sequence size.
        tokens_per_s_per_device: As printed, median.
        tflops: Per device, as printed, median.
        printed_samples_per_s: Throughput that the program printed separately from iterations,
            median.
        first_loss: First printed loss.
        last_loss: Last printed loss.
        num_slow: Iterations more than 1.2 times as long as the median of their neighbours.
        slow_period: Iterations from one slow iteration to the next, if they recur regularly.
        slow_excess_ns: Excess of slow iterations over the median of their neighbours, averaged over
            all iterations.
        slowest: The slowest iterations.
        slow_span: The iterations in a row that lose most time by being slower; null without any.
        first_ns: Duration of an iteration in the first report, which does not count.
        world_size: Number of ranks; null if the log does not say, like the settings below.
        mesh: Size by axis.
        num_micro_batches: Micro-batches per iteration and pipeline.
        micro_batch_size: Samples per micro-batch.
        global_batch_size: Samples per iteration.
        sequence_length: Tokens per sample.
        virtual_stages: Pipeline stages per rank.
        tokens_per_step: Tokens per iteration, all ranks together.
        timers: Timers, longest first.
        timer_stage: Pipeline stage that the timers belong to: ``first``, ``middle`` or ``last``;
            empty if they cover several ranks or the stage is unknown.
        compute_ratio: Forward and backward computation of that stage over the mean iteration.
        ideal_bubble_ratio: Idle share of a pipeline with equal stages and free messages.
        num_unknown: Lines that look like reports but could not be parsed.
        num_restarts: Number of times that iteration numbers go back.
    """

    has_own_steps: ClassVar[bool] = True

    origin: str = ""
    num_reports: int = 0
    num_steady: int = 0
    first_iteration: int | None = None
    last_iteration: int | None = None
    iterations_per_report: int | None = None
    mean_ns: int | None = None
    median_ns: int | None = None
    p95_ns: int | None = None
    p99_ns: int | None = None
    max_ns: int | None = None
    cv: float | None = None
    steady_ns: tuple[int, ...] = ()
    samples_per_s: float | None = None
    tokens_per_s: float | None = None
    tokens_per_s_per_device: float | None = None
    tflops: float | None = None
    printed_samples_per_s: float | None = None
    first_loss: float | None = None
    last_loss: float | None = None
    num_slow: int | None = None
    slow_period: int | None = None
    slow_excess_ns: int | None = None
    slowest: tuple[SlowIteration, ...] = ()
    slow_span: SlowPeriod | None = None
    first_ns: int | None = None
    world_size: int | None = None
    mesh: dict[str, int] = msgspec.field(default_factory=dict)
    num_micro_batches: int | None = None
    micro_batch_size: int | None = None
    global_batch_size: int | None = None
    sequence_length: int | None = None
    virtual_stages: int | None = None
    tokens_per_step: int | None = None
    timers: tuple[TrainingTimer, ...] = ()
    timer_stage: str = ""
    compute_ratio: float | None = None
    ideal_bubble_ratio: float | None = None
    num_unknown: int = 0
    num_restarts: int = 0

    @property
    def input_timer(self) -> TrainingTimer | None:
        """The timer of the wait for input, which is part of an iteration; None without one.

        A program that prints no loss need not wait for its GPU, so that the wait for input may hold
        the time of the GPU.
        """
        if self.last_loss is None and not self.origin.startswith("Lightning"):
            return None
        known = (one for one in self.timers if one.ratio is not None)
        return next((one for one in known if INPUT_TIMER.search(one.name)), None)

    @property
    def idle_ratio(self) -> float | None:
        """Share of an iteration in which the stage of the timers does not compute."""
        return None if self.compute_ratio is None else max(1 - self.compute_ratio, 0.0)
