"""Who comes last to collectives, by a table of their durations on each rank.

A collective that no member can finish before all have begun lasts longest on the rank that comes
first, and shortest on the one that comes last: what a rank's mean exceeds the shortest by is
waiting. The shortest mean still holds what the last rank itself waits for in single calls.
"""

from __future__ import annotations

import numpy as np

from distprof.analyzers.result import Record, Result
from distprof.run.run import Run
from distprof.run.summaries import CollectiveSummary
from distprof.schema import Int64Array

__all__ = [
    "CollectiveSummaryResult",
    "SummarisedClass",
    "SummarisedRank",
    "analyze_collective_summary",
]

CLEAR_RATIO = 0.5
"""A rank is named where it comes last to collectives that hold this share of all waiting."""


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
    """A rank: its time in collectives, and how much of it is waiting for others."""

    rank: int
    communication_ns: int
    wait_ns: int
    blamed_ns: int  # what all other ranks wait in collectives to which this one comes last


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


def analyze_collective_summary(run: Run) -> CollectiveSummaryResult:
    """Who waits for whom, by a table of durations.

    Args:
        run: The recording, or the table alone.
    """
    summary = run.collective_summary
    if summary is None:
        return CollectiveSummaryResult()
    made = [_class(summary, index) for index in range(len(summary.classes))]
    classes = sorted(made, key=lambda c: -c.wait_ns * c.num_calls * c.num_ranks)
    ranks, total, waiting = _ranks(summary, made)
    late = max(ranks, key=lambda rank: (rank.blamed_ns, -rank.rank))
    share = late.blamed_ns / waiting if waiting else 0.0
    is_clear = share >= CLEAR_RATIO
    return CollectiveSummaryResult(
        classes=tuple(classes),
        ranks=ranks,
        wait_ratio=waiting / total if total else None,
        late_rank=late.rank if is_clear else None,
        blamed_ratio=share if is_clear else None,
        unavailable=(*summary.notes, *_limits(made)),
    )


def _class(summary: CollectiveSummary, index: int) -> SummarisedClass:
    ranks, calls, means = _rows(summary, index)
    told = summary.classes[index]
    shortest = int(means.min())
    is_whole = len(ranks) > 1 and set(told.ranks) <= set(ranks.tolist())
    return SummarisedClass(
        group=told.group,
        kind=told.kind.label,
        dtype=told.dtype,
        num_bytes=told.num_bytes,
        num_ranks=len(ranks),
        group_size=len(told.ranks) or None,
        num_calls=int(np.median(calls)),
        mean_ns=round(float(means.mean())),
        shortest_ns=shortest,
        wait_ns=round(float((means - shortest).mean())),
        last_rank=int(ranks[int(np.argmin(means))]),
        first_rank=int(ranks[int(np.argmax(means))]),
        is_compared=is_whole and told.kind.is_symmetric,
    )


def _rows(summary: CollectiveSummary, index: int) -> tuple[Int64Array, Int64Array, Int64Array]:
    """Ranks, calls and mean durations of a class; several rows of a rank are one."""
    chosen = summary.class_index == index
    ranks, place = np.unique(summary.rank[chosen], return_inverse=True)
    calls = np.bincount(place, weights=summary.num_calls[chosen])
    spent = summary.num_calls[chosen].astype(np.float64) * summary.mean_ns[chosen]
    times = np.bincount(place, weights=spent) / calls
    return ranks, calls.astype(np.int64), np.rint(times).astype(np.int64)


def _ranks(
    summary: CollectiveSummary, classes: list[SummarisedClass]
) -> tuple[tuple[SummarisedRank, ...], float, float]:
    """Ranks, and of classes that can be compared all time and all waiting."""
    everybody = np.unique(summary.rank)
    spent, waited, blamed = (np.zeros(len(everybody)) for _ in range(3))
    total = 0.0
    for index, one in enumerate(classes):
        ranks, calls, means = _rows(summary, index)
        place = np.searchsorted(everybody, ranks)
        time = calls.astype(np.float64) * means
        spent[place] += time
        if one.is_compared:
            waiting = calls.astype(np.float64) * (means - one.shortest_ns)
            waited[place] += waiting
            blamed[int(np.searchsorted(everybody, one.last_rank))] += waiting.sum()
            total += float(time.sum())
    made = tuple(
        SummarisedRank(
            rank=int(rank),
            communication_ns=round(spent[i]),
            wait_ns=round(waited[i]),
            blamed_ns=round(blamed[i]),
        )
        for i, rank in enumerate(everybody)
    )
    return made, total, float(waited.sum())


def _limits(classes: list[SummarisedClass]) -> tuple[str, ...]:
    missing = sum(not one.is_compared for one in classes)
    if not missing:
        return ()
    return (
        f"In {missing:,} of {len(classes):,} classes ranks cannot be compared: members have no "
        "row, or may finish before others have begun.",
    )
