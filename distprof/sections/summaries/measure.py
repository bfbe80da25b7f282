"""Who comes last to collectives, by a table of their durations on each rank.

A collective that no member can finish before all have begun lasts longest on the rank that comes
first, and shortest on the one that comes last: what a rank's mean exceeds the shortest by is
waiting. The shortest mean still holds what the last rank itself waits for in single calls.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from distprof.join.inspected import compared, summary_of
from distprof.run.evidence import CollectiveSummary, InputReadiness, InspectorLog
from distprof.run.run import Run
from distprof.schema import Int64Array
from distprof.sections.summaries.result import (
    CollectiveSummaryResult,
    InputReadinessResult,
    LatePeriod,
    RankReadiness,
    SummarisedClass,
    SummarisedRank,
)

__all__ = ["analyze_collective_summary", "analyze_input_readiness"]

CLEAR_RATIO = 0.5
"""A rank is named where it comes last to collectives that hold this share of all waiting."""


def analyze_collective_summary(run: Run) -> CollectiveSummaryResult:
    """Who waits for whom, by a table of durations, or by the records of all ranks.

    Args:
        run: The recording, or the table alone.
    """
    summary = run.get(CollectiveSummary)
    log = run.get(InspectorLog)
    if summary is None and log is not None:
        summary = summary_of(log, compared(log))
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


# Whose input is not ready, and when, by measured readiness of each rank over time ----------------

SMOOTHED_SAMPLES = 9

MIN_PERIOD_RATIO = 0.05
"""A rank that is the least ready for a smaller share of the time has no period of its own."""


def analyze_input_readiness(run: Run) -> InputReadinessResult:
    """Whose input is not ready.

    Args:
        run: The recording, or the readiness alone.
    """
    told = run.get(InputReadiness)
    if told is None:
        return InputReadinessResult()
    ratio = told.ratio[:, np.isfinite(told.ratio).any(axis=0)]
    if not ratio.shape[1]:
        return InputReadinessResult(unavailable=(*told.notes, "No sample holds a value."))
    filled = np.where(np.isfinite(ratio), ratio, np.inf)
    least = filled.min(axis=0)
    gaps = np.diff(told.time_s)
    return InputReadinessResult(
        num_samples=ratio.shape[1],
        interval_s=int(np.median(gaps)) if len(gaps) else None,
        span_s=int(told.time_s[-1] - told.time_s[0]),
        job_ratio=float(least.mean()),
        ranks=_ready_ranks(told, ratio, filled, least),
        periods=_periods(told.ranks, ratio),
        unavailable=told.notes,
    )


def _ready_ranks(
    told: InputReadiness,
    ratio: NDArray[np.float64],
    filled: NDArray[np.float64],
    least: NDArray[np.float64],
) -> tuple[RankReadiness, ...]:
    is_least = (filled == least) & (least < 1)
    known = np.isfinite(ratio)
    return tuple(
        RankReadiness(
            rank=rank,
            mean_ratio=float(ratio[i][known[i]].mean()) if known[i].any() else None,
            least_ratio=float(is_least[i].mean()),
            num_missing=int((~known[i]).sum()),
        )
        for i, rank in enumerate(told.ranks)
    )


def _periods(ranks: tuple[int, ...], ratio: NDArray[np.float64]) -> tuple[LatePeriod, ...]:
    """Runs of one least ready rank in smoothed readiness, without those that are short."""
    smooth = _smoothed(ratio)
    slowest = smooth.argmin(axis=0)
    edges = np.flatnonzero(np.diff(slowest)) + 1
    starts = [0, *edges.tolist()]
    ends = [*edges.tolist(), len(slowest)]
    shortest = max(SMOOTHED_SAMPLES // 2, MIN_PERIOD_RATIO * len(slowest))
    runs: list[tuple[int, int, int]] = []
    for start, end in zip(starts, ends, strict=True):
        if end - start < shortest:
            continue
        who = int(slowest[start])
        if runs and runs[-1][0] == who:
            runs[-1] = (who, runs[-1][1], end)
        else:
            runs.append((who, start, end))
    return tuple(
        LatePeriod(
            rank=ranks[who],
            first_sample=start,
            num_samples=end - start,
            mean_ratio=float(np.nanmean(ratio[who, start:end])),
        )
        for who, start, end in runs
        if np.isfinite(ratio[who, start:end]).any() and float(smooth[who, start:end].mean()) < 1
    )


def _smoothed(ratio: NDArray[np.float64]) -> NDArray[np.float64]:
    """Means over neighbours, of what is known; ready where nothing is."""
    kernel = np.ones(min(SMOOTHED_SAMPLES, ratio.shape[1]))
    known = np.isfinite(ratio)
    values = np.where(known, ratio, 0.0)
    sums = np.array([np.convolve(row, kernel, "same")[: ratio.shape[1]] for row in values])
    counts = np.array(
        [np.convolve(row, kernel, "same")[: ratio.shape[1]] for row in known.astype(float)]
    )
    smooth: NDArray[np.float64] = np.where(counts > 0.5, sums / np.maximum(counts, 1.0), 1.0)
    return smooth
