"""Who comes last to collectives, by a table of their durations on each rank.

A collective that no member can finish before all have begun lasts longest on the rank that comes
first, and shortest on the one that comes last: what a rank's mean exceeds the shortest by is
waiting. The shortest mean still holds what the last rank itself waits for in single calls.
"""

from __future__ import annotations

from distprof.artefacts.record import Record
from distprof.sections.base import Result

__all__ = [
    "CollectiveSummaryResult",
    "InputReadinessResult",
    "LatePeriod",
    "RankReadiness",
    "SummarisedClass",
    "SummarisedRank",
]


class SummarisedClass(Record, frozen=True, kw_only=True):
    """Collectives that are alike.

    Args:
        group: Process group.
        kind: Operation.
        dtype: As the table spells it.
        num_bytes: Full buffer.
        num_ranks: Ranks with a row.
        group_size: Members of the group, None where not told.
        num_calls: On a rank, median.
        mean_ns: Of a call, mean of all ranks.
        shortest_ns: Of a call on the rank on which it is shortest: about its transfer.
        wait_ns: Of a call, mean over ranks of what exceeds the shortest.
        last_rank: On which it is shortest: the last to come.
        first_rank: On which it is longest: the first to come.
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
        wait_ns: Of that, waiting for the last rank.
        blamed_ns: What all other ranks wait in collectives to which this rank comes last.
    """

    rank: int
    communication_ns: int
    wait_ns: int
    blamed_ns: int


class CollectiveSummaryResult(Result, frozen=True, kw_only=True):
    """Collectives by class and rank, classes with most waiting first.

    Args:
        classes: Classes.
        ranks: Ranks, ascending.
        wait_ratio: Waiting over all time in collectives that can be compared; None without any.
        late_rank: Rank that comes last to most of what is waited for; None where none does.
        blamed_ratio: Share of all waiting for that rank.
    """

    classes: tuple[SummarisedClass, ...] = ()
    ranks: tuple[SummarisedRank, ...] = ()
    wait_ratio: float | None = None
    late_rank: int | None = None
    blamed_ratio: float | None = None


# Whose input is not ready, and when, by measured readiness of each rank over time ----------------


class RankReadiness(Record, frozen=True, kw_only=True):
    """A rank's input.

    Args:
        rank: Global rank.
        mean_ratio: Mean readiness, None where nothing is known.
        least_ratio: Share of the samples in which no rank is less ready, and it is not ready.
        num_missing: Samples without a value.
    """

    rank: int
    mean_ratio: float | None
    least_ratio: float
    num_missing: int


class LatePeriod(Record, frozen=True, kw_only=True):
    """A time in which mostly one rank is the least ready.

    Args:
        rank: Rank whose input is mostly the least ready.
        first_sample: Index of its first sample.
        num_samples: Samples.
        mean_ratio: Mean readiness of this rank's input in the period, 0 to 1.
    """

    rank: int
    first_sample: int
    num_samples: int
    mean_ratio: float


class InputReadinessResult(Result, frozen=True, kw_only=True):
    """Readiness of input.

    Args:
        num_samples: Moments with a value of any rank.
        interval_s: Usual time between them, None for one.
        span_s: From the first to the last.
        job_ratio: Mean readiness of the least ready rank; None where nothing is known.
        ranks: Ranks, ascending.
        periods: Which rank was the least ready when, ascending; short ones are left out.
    """

    num_samples: int = 0
    interval_s: int | None = None
    span_s: int | None = None
    job_ratio: float | None = None
    ranks: tuple[RankReadiness, ...] = ()
    periods: tuple[LatePeriod, ...] = ()
