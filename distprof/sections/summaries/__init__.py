"""Ranks that arrive last in collectives, from a table of durations on each rank.

A collective that no member can finish before all have begun takes longest on the rank that arrives
first, and shortest on the rank that arrives last. The excess of a rank's mean over the shortest
mean is waiting. The shortest mean still includes the time that the last rank itself waits in single
calls.
"""

from __future__ import annotations

from distprof.artefacts.record import Record
from distprof.sections.base import Result
from distprof.terms import CollectiveKind


class SummarisedClass(Record, frozen=True, kw_only=True):
    """Collectives of the same group, kind, type and size."""

    group: str  # Process group.
    kind: str  # Operation.
    dtype: str  # Element type as spelled in the table.
    num_bytes: int | None  # Size of the full buffer.
    num_ranks: int  # Ranks with a row.
    group_size: int | None  # Members of the group; None if unknown.
    num_calls: int  # Calls per rank, median.
    mean_ns: int  # Mean duration of a call over all ranks.
    # Mean duration of a call on the rank where it is shortest: about its transfer.
    shortest_ns: int
    wait_ns: int  # Excess of a call over the shortest, mean over ranks.
    last_rank: int  # Rank with the shortest calls, which arrives last.
    first_rank: int  # Rank with the longest calls, which arrives first.
    is_compared: bool  # Whether all members have a row, and none can finish before all have begun.


class SummarisedRank(Record, frozen=True, kw_only=True):
    """A rank: its time in collectives, and how much of it is waiting for others."""

    rank: int  # Global rank.
    communication_ns: int  # Time in collectives.
    wait_ns: int  # Part of it that is waiting for the last rank.
    blamed_ns: int  # Waiting of all other ranks in collectives in which this rank arrives last.


class CollectiveSummaryResult(Result, frozen=True, kw_only=True):
    """Collectives by class and rank, classes with most waiting first."""

    classes: tuple[SummarisedClass, ...] = ()  # Classes of collectives.
    ranks: tuple[SummarisedRank, ...] = ()  # Ranks, ascending.
    # Waiting over all time in collectives that can be compared; None without any.
    wait_ratio: float | None = None
    # Rank that causes most of the waiting by arriving last; None if no rank does.
    late_rank: int | None = None
    blamed_ratio: float | None = None  # Share of all waiting that is for that rank.


# Input readiness of each rank over time ----------------------------------------------------------


class RankReadiness(Record, frozen=True, kw_only=True):
    """Readiness of one rank's input."""

    rank: int  # Global rank.
    mean_ratio: float | None  # Mean readiness; None if nothing is known.
    # Share of the samples in which the rank is not ready and no rank is less ready.
    least_ratio: float
    num_missing: int  # Samples without a value.


class LatePeriod(Record, frozen=True, kw_only=True):
    """A period in which mostly one rank is the least ready."""

    rank: int  # Rank whose input is mostly the least ready.
    first_sample: int  # Index of the first sample of the period.
    num_samples: int  # Number of samples.
    mean_ratio: float  # Mean readiness of this rank's input in the period, 0 to 1.


class InputReadinessResult(Result, frozen=True, kw_only=True):
    """Readiness of input."""

    num_samples: int = 0  # Samples with a value of any rank.
    interval_s: int | None = None  # Median time between samples; None for a single one.
    span_s: int | None = None  # Time from the first sample to the last.
    # Mean readiness of the least ready rank; None if nothing is known.
    job_ratio: float | None = None
    ranks: tuple[RankReadiness, ...] = ()  # Ranks, ascending.
    # Periods and their least ready ranks, in order; short ones are left out.
    periods: tuple[LatePeriod, ...] = ()


class ScalingTableResult(Result, frozen=True, kw_only=True):
    """Throughput by the number of GPUs, as people type it."""

    counts: tuple[int, ...] = ()  # GPUs or nodes, ascending; empty without a table.
    # What the counts count: "GPUs" (or workers), "nodes", "ways" or "ranks"; empty without a table.
    of: str = ""
    names: tuple[str, ...] = ()  # Of ways or ranks, the slowest first.
    rates: tuple[float, ...] = ()  # Throughput of all together, in the unit of the table.
    # Throughput per GPU, relative to that in the first row.
    efficiency_ratio: tuple[float, ...] = ()


# A table of operators ----------------------------------------------------------------------------


OTHER_COLLECTIVES = "other collectives"
"""The part of kernels of communication that name no operation."""

COLLECTIVES = {OTHER_COLLECTIVES, *(kind.label for kind in CollectiveKind if kind)}


class TablePart(Record, frozen=True, kw_only=True):
    """Time of the device by what it does."""

    # Kind of a collective, ``other collectives``, or what the names of kernels say, such as
    # ``attention``, else ``computation``; ``not listed`` for rows that the table leaves out.
    kind: str
    device_ns: int  # Sum of the kernels' durations. Kernels may run at the same time.
    ratio: float  # Share of all.
    num_calls: int | None = None  # Kernels; null if they are not listed.


class TableRow(Record, frozen=True, kw_only=True):
    """An operator or kernel."""

    name: str  # As printed.
    num_calls: int  # Calls.
    cpu_ns: int  # CPU time with operators inside.
    self_cpu_ns: int  # CPU time without operators inside.
    device_ns: int  # Time of its kernels and of those of operators inside.
    self_device_ns: int  # Time of its kernels.
    # The part of the device's time that its kernels belong to; ``span`` if it only contains some.
    kind: str = ""


class OperatorTableResult(Result, frozen=True, kw_only=True):
    """A table of operators without a time line."""

    device: str = ""  # Name of the device in the table; empty without one.
    num_steps: int | None = None  # Steps that the profiler marked; null without a row for them.
    step_ns: int | None = None  # Mean CPU time of a step; null as above.
    self_device_ns: int | None = None  # Sum over all kernels; null without a device.
    # Whether that sum is printed or follows from shares; otherwise, it is that of the rows.
    has_device_total: bool = False
    self_cpu_ns: int | None = None  # Sum of all operators' CPU time; null if not printed.
    # Time in which the training thread waits for its data loader, per step; null if steps or loader
    # have no row.
    loader_ns: int | None = None
    parts: tuple[TablePart, ...] = ()  # Time of the device, largest part first.
    # Rows with most time on the device, or on the CPU without a device.
    rows: tuple[TableRow, ...] = ()
    num_rows: int = 0  # Rows of the table.
    # Times of a row by which a table is sorted from its top on; empty if it is not.
    sorted_by: str = ""
    # Actions that are profiled each alone, with their times in ns; the rows are of the first.
    actions: tuple[tuple[str, int], ...] = ()
    second: OperatorTableResult | None = None  # The table after it; null without one.
    rank: int | None = None  # Of which rank it is, of several; null otherwise.
    most_memory: tuple[str, ...] = ()  # What allocates most, if the text asks about memory.
