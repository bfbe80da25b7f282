"""Whose input is not ready, and when, by measured readiness of each rank over time.

A synchronous job is as ready as its least ready rank.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from distprof.analyzers.result import Record, Result
from distprof.run.run import Run
from distprof.run.summaries import InputReadiness

__all__ = [
    "InputReadinessResult",
    "LatePeriod",
    "RankReadiness",
    "analyze_input_readiness",
]

SMOOTHED_SAMPLES = 9
MIN_PERIOD_RATIO = 0.05
"""A rank that is the least ready for a smaller share of the time has no period of its own."""


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
    """A time in which mostly one rank is the least ready."""

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


def analyze_input_readiness(run: Run) -> InputReadinessResult:
    """Whose input is not ready.

    Args:
        run: The recording, or the readiness alone.
    """
    told = run.input_readiness
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
        ranks=_ranks(told, ratio, filled, least),
        periods=_periods(told.ranks, ratio),
        unavailable=told.notes,
    )


def _ranks(
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
