"""Memory of each rank by its counters at the end of steps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from distprof.analyzers.result import Record, Result
from distprof.run.records import RankRecords
from distprof.schema import Int64Array

__all__ = ["MemoryResult", "RankMemory", "combine_memory", "measure_memory"]


class RankMemory(Record, frozen=True, kw_only=True):
    """One rank. None: not measurable there, as device memory on a CPU.

    Args:
        rank: Global rank.
        num_samples: Steps with a sample.
        peak_allocated_bytes: Highest held by tensors on the accelerator, over all steps.
        reserved_bytes: Highest held by the caching allocator.
        num_retries: Allocations that had to be retried after freeing the cache.
        peak_rss_bytes: Highest resident memory of the process.
        rss_growth_bytes_per_step: Growth of resident memory over the second half of the steps, per
            step; None with fewer than eight samples.
    """

    rank: int
    num_samples: int
    peak_allocated_bytes: int | None
    reserved_bytes: int | None
    num_retries: int | None
    peak_rss_bytes: int | None
    rss_growth_bytes_per_step: int | None


class MemoryResult(Result, frozen=True, kw_only=True):
    """Memory of each rank that has counters."""

    ranks: tuple[RankMemory, ...] = ()


def measure_memory(records: RankRecords) -> RankMemory | None:
    """The figures of one rank; None where it has no counters."""
    table = records.memory
    if len(table) == 0:
        return None
    return RankMemory(
        rank=records.rank,
        num_samples=len(table),
        peak_allocated_bytes=_highest(table["peak_allocated_bytes"]),
        reserved_bytes=_highest(table["reserved_bytes"]),
        num_retries=_highest(table["num_retries"]),
        peak_rss_bytes=_highest(table["rss_bytes"]),
        rss_growth_bytes_per_step=_growth(table["step"], table["rss_bytes"]),
    )


def combine_memory(ranks: Sequence[RankMemory], unavailable: Sequence[str] = ()) -> MemoryResult:
    """All ranks."""
    return MemoryResult(ranks=tuple(ranks), unavailable=tuple(unavailable))


def _highest(values: Int64Array) -> int | None:
    known = values[values >= 0]
    return int(known.max()) if len(known) else None


def _growth(step: Int64Array, size: Int64Array) -> int | None:
    """Median of the last quarter minus that of the quarter before, over the steps between."""
    known = size >= 0
    step, size = step[known], size[known]
    quarter = len(size) // 4
    if quarter < 2:
        return None
    last, before = slice(-quarter, None), slice(-2 * quarter, -quarter)
    between = float(np.median(step[last]) - np.median(step[before]))
    grown = float(np.median(size[last]) - np.median(size[before]))
    return round(grown / between) if between > 0 else None
