"""Iterations as a training program printed them: times, throughput, timers.

Figures are of *steady* reports: all with a time but the first, and the first after each restart,
in which programs allocate, compile and connect. Means are weighted by the iterations of a report.
Source: formula sheet, "Pipeline bubble", for what a pipeline idles at best.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from distprof.artefacts.record import Record
from distprof.sections.base import Result

__all__ = [
    "MIN_RECURRING",
    "SlowIteration",
    "TrainingLogResult",
    "TrainingTimer",
]

MIN_RECURRING = 5
"""Slow iterations from which there is something to explain."""


class TrainingTimer(Record, frozen=True, kw_only=True):
    """A timer of the program.

    Args:
        name: As printed.
        num_reports: Steady reports that hold it.
        mean_ns: Per iteration.
        median_ns: Per iteration.
        ratio: Of the mean iteration; None where it is not known what a value is the time of.
        waits: Whether it is, all or most of it, waiting for other stages of a pipeline.
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
        iteration: Number as printed; null where not printed.
        duration_ns: Its duration.
    """

    iteration: int | None
    duration_ns: int


class TrainingLogResult(Result, frozen=True, kw_only=True):
    """What a log of a training program tells.

    Args:
        origin: Whose words they are, for example ``Megatron-LM``; empty without a log.
        num_reports: Reports on iterations.
        num_steady: Reports that count.
        first_iteration: Number of the first report, None where not told.
        last_iteration: Number of the last.
        iterations_per_report: Usual number of iterations that a report is the mean of.
        mean_ns: Of one iteration.
        median_ns: Of one iteration.
        p95_ns: 95th percentile.
        p99_ns: 99th percentile.
        max_ns: Longest.
        cv: Standard deviation over mean.
        steady_ns: An iteration by each of the last steady reports, at most a few hundred, in order.
        samples_per_s: All ranks together, median of the reports.
        tokens_per_s: The same with tokens; where none are printed, by the batch and its length.
        tokens_per_s_per_device: As printed, median.
        tflops: Per device, as printed, median.
        printed_samples_per_s: Throughput that the program printed apart from iterations, median.
        first_loss: First that was printed.
        last_loss: Last that was printed.
        num_slow: Iterations more than 1.2 times as long as the median of their neighbours.
        slow_period: Iterations from one to the next, where they come regularly.
        slow_excess_ns: What slow ones take longer than the median, per iteration of all.
        slowest: The slowest of them.
        world_size: Ranks, as far as the log says; so all below.
        mesh: Axis to size.
        num_micro_batches: Per iteration and pipeline.
        micro_batch_size: Samples.
        global_batch_size: Samples of an iteration.
        sequence_length: Tokens of a sample.
        virtual_stages: Stages that a rank holds.
        tokens_per_step: Tokens of an iteration, all ranks.
        timers: Timers, longest first.
        timer_stage: Stage of the pipeline whose timers they are: ``first``, ``middle``, ``last``;
            empty where they are of several ranks or it cannot be told.
        compute_ratio: Forward and backward computation of that stage over the mean iteration.
        ideal_bubble_ratio: What a pipeline of equal stages and free messages idles at best.
        num_unknown: Lines with the sign of a report that could not be understood.
        num_restarts: How often the numbers of iterations go back.
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
    def idle_ratio(self) -> float | None:
        """Share of an iteration in which the stage of the timers does not compute."""
        return None if self.compute_ratio is None else max(1 - self.compute_ratio, 0.0)
