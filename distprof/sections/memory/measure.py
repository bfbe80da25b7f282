"""Memory of each rank, from its counters at the end of steps."""

from __future__ import annotations

import numpy as np

from distprof.run.records import RankRecords
from distprof.schema import Int64Array
from distprof.sections.context import ProbeRecords
from distprof.sections.memory import MemoryResult, RankMemory

_FEWEST = 8  # Number of samples below which no trend of memory is reported


def measure_memory(records: RankRecords) -> RankMemory | None:
    """The memory of one rank; None if it has no counters."""
    table = records.memory
    if len(table) == 0:
        return None
    steady, retries = _steady_retries(table["step"], table["num_retries"])
    return RankMemory(
        rank=records.rank,
        num_samples=len(table),
        peak_allocated_bytes=_highest(table["peak_allocated_bytes"]),
        reserved_bytes=_highest(table["reserved_bytes"]),
        num_retries=_highest(table["num_retries"]),
        peak_rss_bytes=_highest(table["rss_bytes"]),
        rss_growth_bytes_per_step=_growth(table["step"], table["rss_bytes"]),
        num_steady_retries=int(retries.sum()) if len(retries) else None,
        retry_ns_per_step=_lost_in_retries(records, steady, retries),
    )


def analyze_memory(records: ProbeRecords) -> MemoryResult:
    """All ranks that have counters."""
    ranks = tuple(records.of(RankMemory).values())
    return MemoryResult(ranks=ranks, unavailable=records.why("memory", ranks))


def _highest(values: Int64Array) -> int | None:
    known = values[values >= 0]
    return int(known.max()) if len(known) else None


def _steady_retries(step: Int64Array, total: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Steps of the second half, and the retries in each; empty with too few samples."""
    known = total >= 0
    step, total = step[known], total[known]
    half = len(step) // 2
    if half < _FEWEST // 2:
        return step[:0], total[:0]
    return step[half:], np.maximum(np.diff(total), 0)[half - 1 :]


def _lost_in_retries(records: RankRecords, steps: Int64Array, retries: Int64Array) -> int | None:
    """Time lost in retries per step, from the step log without its traced steps."""
    log = records.step_log
    _, of_log, of_memory = np.intersect1d(log["step"], steps, return_indices=True)
    plain = ~log["is_traced"][of_log]
    duration = (log["end_ns"] - log["start_ns"])[of_log][plain]
    retried = retries[of_memory][plain] > 0
    if not retried.any() or retried.all():
        return None
    longer = duration[retried] - int(np.median(duration[~retried]))
    return max(0, int(longer.sum()) // len(duration))


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
