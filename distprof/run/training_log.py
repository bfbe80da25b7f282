"""What a training program printed of its own iterations, whoever wrote the program."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from distprof.schema import ABSENT, Int64Array

__all__ = ["Float64Array", "TrainingFacts", "TrainingLog"]

Float64Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingFacts:
    """What the log says of the job's layout; None where it says nothing.

    Args:
        world_size: Ranks.
        mesh: Axis (``tp``, ``pp``, ``dp``, ``cp``, ``ep``) to its size.
        num_micro_batches: Per iteration and pipeline.
        micro_batch_size: Samples of a micro-batch.
        global_batch_size: Samples of an iteration, all ranks together.
        sequence_length: Tokens of a sample.
        virtual_stages: Stages that each rank of a pipeline holds.
    """

    world_size: int | None = None
    mesh: Mapping[str, int] = field(default_factory=dict)
    num_micro_batches: int | None = None
    micro_batch_size: int | None = None
    global_batch_size: int | None = None
    sequence_length: int | None = None
    virtual_stages: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingLog:
    """Iterations as printed; all arrays have one entry for each report, in the order of the log.

    Args:
        origin: Whose words they are, for example ``Megatron-LM``.
        files: Paths as the user named them.
        iteration: int64, number of the (last) iteration of a report, or ABSENT.
        span: int64, how many iterations a report is the mean of, at least 1.
        duration_ns: int64, time of one iteration, or ABSENT.
        samples_per_s: float64, all ranks together, NaN where not told.
        tokens_per_s: float64, all ranks together, NaN where not told.
        tokens_per_s_per_device: float64, NaN where not told.
        tflops: float64, per device, NaN where not told.
        loss: float64, NaN where not told.
        printed_samples_per_s: float64 of any length, throughput that the program printed apart.
        timers: Name of a timer to int64 ns per iteration, or ABSENT.
        is_of_slowest_ranks: Whether timers are of whichever rank was slowest in each.
        startup: Name of a timer before the first iteration to its ns.
        facts: What the log says of the job's layout.
        num_lines: Lines of the files.
        num_reports: Lines that were understood as a report on iterations or timers.
        num_unknown: Lines with a sign of such a report that could not be understood.
        num_restarts: How often the numbers of iterations go back.
        notes: What was assumed or left out, one sentence each.
    """

    origin: str
    files: tuple[str, ...] = ()
    iteration: Int64Array
    span: Int64Array
    duration_ns: Int64Array
    samples_per_s: Float64Array
    tokens_per_s: Float64Array
    tokens_per_s_per_device: Float64Array
    tflops: Float64Array
    loss: Float64Array
    printed_samples_per_s: Float64Array
    timers: Mapping[str, Int64Array] = field(default_factory=dict)
    is_of_slowest_ranks: bool = False
    startup: Mapping[str, int] = field(default_factory=dict)
    facts: TrainingFacts = field(default_factory=TrainingFacts)
    num_lines: int = 0
    num_reports: int = 0
    num_unknown: int = 0
    num_restarts: int = 0
    notes: tuple[str, ...] = ()

    @property
    def is_steady(self) -> NDArray[np.bool_]:
        """Reports that count: those with a duration, except the first and each after a restart.

        The first iterations allocate, compile and connect.
        """
        known: NDArray[np.bool_] = (self.duration_ns != ABSENT) & ~self._begins
        return known if known.any() else self.duration_ns != ABSENT

    @property
    def _begins(self) -> NDArray[np.bool_]:
        """The first report with a duration, and the first after numbers go back."""
        begins = np.zeros(len(self.iteration), bool)
        timed = np.flatnonzero(self.duration_ns != ABSENT)
        if len(timed):
            number = self.iteration[timed]
            back = np.flatnonzero((number[1:] != ABSENT) & (number[1:] < number[:-1])) + 1
            begins[timed[0]] = True
            begins[timed[back]] = True
        return begins

    @property
    def steady_ns(self) -> Int64Array:
        """int64, times of one iteration of the reports that count."""
        steady: Int64Array = self.duration_ns[self.is_steady]
        return steady

    @property
    def median_step_ns(self) -> int | None:
        """Median time of an iteration; None where no report has a time."""
        steady = self.steady_ns
        return round(float(np.median(steady))) if len(steady) else None

    @property
    def world_size(self) -> int | None:
        """Ranks of the job."""
        return self.facts.world_size

    @property
    def tokens_per_step(self) -> int | None:
        """Tokens of an iteration, all ranks together; None where the log does not say."""
        facts = self.facts
        if facts.global_batch_size is None or facts.sequence_length is None:
            return None
        return facts.global_batch_size * facts.sequence_length
