"""Ranks that arrive last in collectives, from a table of durations on each rank.

A collective that no member can finish before all have begun takes longest on the rank that arrives
first, and shortest on the rank that arrives last. The excess of a rank's mean over the shortest
mean is waiting. The shortest mean still includes the time that the last rank itself waits in single
calls.
"""

from __future__ import annotations

from distprof.artefacts.record import Record
from distprof.sections.base import Result


class SummarisedClass(Record, frozen=True, kw_only=True):
    """Collectives of the same group, kind, type and size.

    Args:
        group: Process group.
        kind: Operation.
        dtype: Element type as spelled in the table.
        num_bytes: Size of the full buffer.
        num_ranks: Ranks with a row.
        group_size: Members of the group; None if unknown.
        num_calls: Calls per rank, median.
        mean_ns: Mean duration of a call over all ranks.
        shortest_ns: Mean duration of a call on the rank where it is shortest: about its transfer.
        wait_ns: Excess of a call over the shortest, mean over ranks.
        last_rank: Rank with the shortest calls, which arrives last.
        first_rank: Rank with the longest calls, which arrives first.
        is_compared: Whether all members have a row, and none can finish before all have begun.
    """

    group: str
    kind: str
    dtype: str
    num_bytes: int | None
    num_ranks: int
    group_size: int | None
    num_calls: int
    mean_ns: int
    shortest_ns: int
    wait_ns: int
    last_rank: int
    first_rank: int
    is_compared: bool


class SummarisedRank(Record, frozen=True, kw_only=True):
    """A rank: its time in collectives, and how much of it is waiting for others.

    Args:
        rank: Global rank.
        communication_ns: Time in collectives.
        wait_ns: Part of it that is waiting for the last rank.
        blamed_ns: Waiting of all other ranks in collectives in which this rank arrives last.
    """

    rank: int
    communication_ns: int
    wait_ns: int
    blamed_ns: int


class CollectiveSummaryResult(Result, frozen=True, kw_only=True):
    """Collectives by class and rank, classes with most waiting first.

    Args:
        classes: Classes of collectives.
        ranks: Ranks, ascending.
        wait_ratio: Waiting over all time in collectives that can be compared; None without any.
        late_rank: Rank that causes most of the waiting by arriving last; None if no rank does.
        blamed_ratio: Share of all waiting that is for that rank.
    """

    classes: tuple[SummarisedClass, ...] = ()
    ranks: tuple[SummarisedRank, ...] = ()
    wait_ratio: float | None = None
    late_rank: int | None = None
    blamed_ratio: float | None = None


# Input readiness of each rank over time ----------------------------------------------------------


class RankReadiness(Record, frozen=True, kw_only=True):
    """Readiness of one rank's input.

    Args:
        rank: Global rank.
        mean_ratio: Mean readiness; None if nothing is known.
        least_ratio: Share of the samples in which the rank is not ready and no rank is less ready.
        num_missing: Samples without a value.
    """

    rank: int
    mean_ratio: float | None
    least_ratio: float
    num_missing: int


class LatePeriod(Record, frozen=True, kw_only=True):
    """A period in which mostly one rank is the least ready.

    Args:
        rank: Rank whose input is mostly the least ready.
        first_sample: Index of the first sample of the period.
        num_samples: Number of samples.
        mean_ratio: Mean readiness of this rank's input in the period, 0 to 1.
    """

    rank: int
    first_sample: int
    num_samples: int
    mean_ratio: float


class InputReadinessResult(Result, frozen=True, kw_only=True):
    """Readiness of input.

    Args:
        num_samples: Samples with a value of any rank.
        interval_s: Median time between samples; None for a single one.
        span_s: Time from the first sample to the last.
        job_ratio: Mean readiness of the least ready rank; None if nothing is known.
        ranks: Ranks, ascending.
        periods: Periods and their least ready ranks, in order; short ones are left out.
    """

    num_samples: int = 0
    interval_s: int | None = None
    span_s: int | None = None
    job_ratio: float | None = None
    ranks: tuple[RankReadiness, ...] = ()
    periods: tuple[LatePeriod, ...] = ()


# A table of operators ----------------------------------------------------------------------------


class TablePart(Record, frozen=True, kw_only=True):
    """Time of the device by what it does.

    Args:
        kind: Kind of a collective, ``copies`` or ``computation``; ``not listed`` for rows that the
            table leaves out.
        device_ns: Sum of the kernels' durations. Kernels may run at the same time.
        ratio: Share of all.
        num_calls: Kernels; null if they are not listed.
    """

    kind: str
    device_ns: int
    ratio: float
    num_calls: int | None = None


class TableRow(Record, frozen=True, kw_only=True):
    """An operator or kernel.

    Args:
        name: As printed.
        num_calls: Calls.
        self_cpu_ns: CPU time without operators inside.
        self_device_ns: Time of its kernels.
    """

    name: str
    num_calls: int
    self_cpu_ns: int
    self_device_ns: int


class OperatorTableResult(Result, frozen=True, kw_only=True):
    """A table of operators without a time line.

    Args:
        device: Name of the device in the table; empty without one.
        num_steps: Steps that the profiler marked; null without a row for them.
        step_ns: Mean CPU time of a step; null as above.
        self_device_ns: Sum over all kernels; null without a device.
        loader_ns: Time in which the training thread waits for its data loader, per step; null if
            steps or loader have no row.
        parts: Time of the device, largest part first.
        rows: Rows with most time on the device, or on the CPU without a device.
        num_rows: Rows of the table.
    """

    device: str = ""
    num_steps: int | None = None
    step_ns: int | None = None
    self_device_ns: int | None = None
    loader_ns: int | None = None
    parts: tuple[TablePart, ...] = ()
    rows: tuple[TableRow, ...] = ()
    num_rows: int = 0
