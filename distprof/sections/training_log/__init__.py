"""Iterations as printed by a training program: times, throughput, timers.

Figures cover *steady* reports: all reports with a time except the first one and the first one after
each restart, in which programs allocate, compile and connect. Means are weighted by the number of
iterations in a report.

Source: formula sheet, "Pipeline bubble", for the ideal idle share of a pipeline.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from distprof.artefacts.record import Record
from distprof.sections.base import Result
from distprof.terms import INPUT_TIMER
from distprof.units import unit_of

_SHORT_WAIT = 0.1  # of an iteration
LONG_REDUCTION = 0.15  # Share of an iteration from which the gradients' reduction is a finding
MIN_RECURRING = 5  # Number of slow iterations from which they count as recurring

_TRAINS = ("Lightning", "MMEngine", "Detectron2", "wav2letter")  # cut or not, they are of training
ONLY_FIRST = "Only the first report, which does not count,"  # has timers: a note's beginning


class TrainingTimer(Record, frozen=True, kw_only=True):
    """A timer of the program."""

    name: str  # Name as printed.
    num_reports: int  # Steady reports that contain it.
    mean_ns: int  # Mean per iteration.
    median_ns: int  # Median per iteration.
    # Share of the mean iteration; None if the span that the timer covers is unknown.
    ratio: float | None
    waits: bool = False  # Whether it is mostly waiting for other pipeline stages.


class SlowIteration(Record, frozen=True, kw_only=True):
    """An iteration that took much longer than its neighbours."""

    iteration: int | None  # Number as printed; null if not printed.
    duration_ns: int  # Its duration.


class SlowPeriod(Record, frozen=True, kw_only=True):
    """Iterations in a row that take longer than those before and after."""

    # Number of the first one as printed, of means that of the report before; null if not printed.
    first_iteration: int | None
    # Number of the last one; null if not printed, or if the log ends with it.
    last_iteration: int | None
    num_reports: int  # Steady reports in it.
    duration_ns: int  # Median duration of an iteration in it.
    usual_ns: int  # Median duration of the other iterations.
    excess_ns: int  # Its time beyond the usual duration, averaged over all iterations of the log.
    is_gradual: bool  # Whether iterations get longer and longer, not from one to the next.
    part: str | None = None  # The shortest timer that takes most of what slow iterations add.

    def when(self, unit: str, per_report: int | None = 1) -> str:
        """For example ``from iteration 300 to 700``; how many reports, if they have no numbers."""
        if self.first_iteration is None or self.last_iteration == self.first_iteration:
            return f"for {self.num_reports:,} reports"
        if self.last_iteration is None and (per_report or 1) > 1:  # the end of the report before
            return f"after {unit} {self.first_iteration:,}"
        end = "on" if self.last_iteration is None else f"to {self.last_iteration:,}"
        return f"from {unit} {self.first_iteration:,} {end}"


class TrainingLogResult(Result, frozen=True, kw_only=True):
    """Contents of a training program's log."""

    has_own_steps: ClassVar[bool] = True

    # Program that wrote the log, for example ``Megatron-LM``; empty without a log.
    origin: str = ""
    num_files: int = 0  # Files that were read.
    # Of several files, the one that the figures are of, or its rank, for example ``rank 3``.
    whose: str = ""
    num_reports: int = 0  # Reports on iterations.
    num_steady: int = 0  # Steady reports, which the figures cover.
    first_iteration: int | None = None  # Iteration number of the first report; None if not printed.
    last_iteration: int | None = None  # Iteration number of the last report.
    iterations_per_report: int | None = None  # Typical number of iterations that a report averages.
    mean_ns: int | None = None  # Mean duration of an iteration.
    median_ns: int | None = None  # Median duration of an iteration.
    p95_ns: int | None = None  # 95th percentile of the durations.
    p99_ns: int | None = None  # 99th percentile of the durations.
    max_ns: int | None = None  # Longest iteration.
    longest_iteration: int | None = None  # Number of that one; None if reports are means.
    cv: float | None = None  # Standard deviation over mean.
    # Duration of an iteration in each of the last steady reports, at most a few hundred, in order.
    steady_ns: tuple[int, ...] = ()
    samples_per_s: float | None = None  # All ranks together, median of the reports.
    # The same for tokens; if not printed, derived from the batch and sequence size.
    tokens_per_s: float | None = None
    tokens_per_s_per_device: float | None = None  # As printed, median.
    tflops: float | None = None  # Per device, as printed, median.
    # Throughput that the program printed separately from iterations, median.
    printed_samples_per_s: float | None = None
    first_loss: float | None = None  # First printed loss.
    last_loss: float | None = None  # Last printed loss.
    # Iterations more than 1.2 times as long as the median of their neighbours.
    num_slow: int | None = None
    # Iterations from one slow iteration to the next, if they recur regularly.
    slow_period: int | None = None
    # Excess of slow iterations over the median of their neighbours, averaged over all iterations.
    slow_excess_ns: int | None = None
    slowest: tuple[SlowIteration, ...] = ()  # The slowest iterations.
    # The iterations in a row that lose most time by being slower; null without any.
    slow_span: SlowPeriod | None = None
    # Without times of iterations, the reports in a row in which throughput is lower: its durations
    # are those of a sample, a token or 1e12 FLOP, by the first rate of this result that is known.
    slow_rate: SlowPeriod | None = None
    # Duration of an iteration in the first report, which does not count.
    first_ns: int | None = None
    # Number of ranks; null if the log does not say, like the settings below.
    world_size: int | None = None
    mesh: dict[str, int] = msgspec.field(default_factory=dict)  # Size by axis.
    num_micro_batches: int | None = None  # Micro-batches per iteration and pipeline.
    micro_batch_size: int | None = None  # Samples per micro-batch.
    global_batch_size: int | None = None  # Samples per iteration.
    sequence_length: int | None = None  # Tokens per sample.
    virtual_stages: int | None = None  # Pipeline stages per rank.
    tokens_per_step: int | None = None  # Tokens per iteration, all ranks together.
    timers: tuple[TrainingTimer, ...] = ()  # Timers, longest first.
    # Pipeline stage that the timers belong to: ``first``, ``middle`` or ``last``; empty if they
    # cover several ranks or the stage is unknown.
    timer_stage: str = ""
    # Forward and backward computation of that stage over the mean iteration.
    compute_ratio: float | None = None
    # Idle share of a pipeline with equal stages and free messages.
    ideal_bubble_ratio: float | None = None
    num_unknown: int = 0  # Lines that look like reports but could not be parsed.
    num_restarts: int = 0  # Number of times that iteration numbers go back.

    @property
    def unit(self) -> str:
        """What the times are those of: a bar may count something else than iterations."""
        if (unit := unit_of(self.origin)) != "iteration":
            return unit
        if any(note.endswith("an iteration is a micro-batch.") for note in self.unavailable):
            return "micro-batch"
        if self.origin.endswith("(in steps of the environment)"):
            return "environment step"
        return "step" if self.origin.startswith("the progress bar") else "iteration"

    @property
    def input_timer(self) -> TrainingTimer | None:
        """The timer of the wait for input, which is part of an iteration; None without one.

        A program that prints no loss need not wait for its GPU, so that a long wait for input may
        hold the time of the GPU.
        """
        waits = self.last_loss is not None or self.origin.startswith(_TRAINS)
        known = (one for one in self.timers if one.ratio is not None)
        found = next((one for one in known if INPUT_TIMER.search(one.name)), None)
        is_short = found is not None and (found.ratio or 0.0) < _SHORT_WAIT
        return found if waits or is_short else None

    @property
    def idle_ratio(self) -> float | None:
        """Share of an iteration in which the stage of the timers does not compute."""
        return None if self.compute_ratio is None else max(1 - self.compute_ratio, 0.0)
