"""What the profiler did to the recorded steps, and whether the report is free of it."""

from __future__ import annotations

from typing import Literal

from distprof.sections.base import Result

StepOrigin = Literal["step log", "given", "light steps", ""]
"""Where the time of a step without the profiler comes from."""


class PerturbationResult(Result, frozen=True, kw_only=True):
    """The profiler's cost, and the step without it."""

    needs_traces = True

    # Whether all times in the report are those of steps without the profiler. If not, they are as
    # traced.
    is_corrected: bool = False
    # Where the time of a step without the profiler comes from; empty if it is unknown.
    origin: StepOrigin = ""
    untraced_ns: int | None = None  # Mean step without the profiler; null if unknown.
    # The same at the lower end of its 95 % confidence interval; null if unknown.
    untraced_low_ns: int | None = None
    untraced_high_ns: int | None = None  # At the upper end.
    # Time that a tenth of the steps without the profiler reach; null if unknown.
    best_ns: int | None = None
    num_untraced: int = 0  # Steps that it was measured in.
    traced_ns: int | None = None  # Mean analysed step as traced.
    light_ns: int | None = None  # Mean step while only the GPU was recorded; null if none was.
    # Mean step that the report describes: simulated without the profiler's cost.
    simulated_ns: int | None = None
    # Cost of one recorded operator on its CPU thread, which includes nothing else; null if it was
    # not estimated.
    operator_ns: int | None = None
    call_ns: int | None = None  # Cost of one recorded launch; null likewise.
    num_operators: int | None = None  # Recorded operators per step and rank, mean.
    num_launches: int | None = None  # Recorded launches per step and rank, mean.
    # Whether a step without the profiler takes as long however cheap launches are, because the GPU
    # or the input sets its pace; null if unknown.
    is_paced_by_gpu: bool | None = None
    # Share of steps without the profiler at whose end the GPU was more than a step behind its CPU;
    # null if it was not observed.
    gpu_behind_ratio: float | None = None
    # Time that the job lost to its recording, from the first step that it made slower to the end of
    # saving; null without a step log.
    window_cost_ns: int | None = None
    # Mean step if the profiler costs as much as on the slowest CPUs known (7 µs for an operator),
    # when nothing says how long a step takes without it; null otherwise.
    least_ns: int | None = None
    likely_ns: int | None = None  # The same with 3 µs.

    def surely_ns(self, launching_ns: int) -> int:
        """The part of time lost to launching that is neither chance nor the profiler's doing.

        CPUs vary in speed. What a tenth of the steps need not wait for is no property of the job.
        """
        if self.gpu_behind_ratio is not None and self.gpu_behind_ratio >= 0.5:
            return 0
        doubt = 0
        if self.is_corrected and self.best_ns is not None and self.untraced_ns is not None:
            doubt = max(self.untraced_ns - self.best_ns, 0)
        elif self.least_ns is not None and self.traced_ns is not None:
            doubt = max(self.traced_ns - self.least_ns, 0)
        return max(launching_ns - doubt, 0)

    @property
    def is_estimated(self) -> bool:
        """Whether the profiler's cost is a guess, because nothing says how long steps take."""
        return self.least_ns is not None and not self.is_corrected

    @property
    def explained_ns(self) -> tuple[int, int]:
        """Least and most time per step that the profiler may have cost; 0 unless estimated."""
        if self.likely_ns is None or self.least_ns is None or self.traced_ns is None:
            return 0, 0
        return max(self.traced_ns - self.likely_ns, 0), max(self.traced_ns - self.least_ns, 0)

    @property
    def slowdown_ratio(self) -> float | None:
        """How much longer the profiler made a step; None if unknown."""
        if not self.traced_ns or not self.untraced_ns:
            return None
        return self.traced_ns / self.untraced_ns - 1
