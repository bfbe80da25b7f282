"""Time that training threads lost to garbage collection and to waiting for input."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from distprof.analyzers.result import Record, Result
from distprof.intervals import Intervals, union
from distprof.run.records import RankRecords
from distprof.run.tables import intervals_of

__all__ = ["PausesResult", "RankPauses", "combine_pauses", "measure_pauses"]


class RankPauses(Record, frozen=True, kw_only=True):
    """One rank over all logged steps.

    Args:
        rank: Global rank.
        gc_ns_per_step: Garbage collection, mean per step; overlapping times count once.
        num_gc: Collections.
        longest_gc_ns: The longest, None without one.
        input_ns_per_step: Waiting for the data loader, mean per step.
        num_input: Waits.
        longest_input_ns: The longest, None without one.
    """

    rank: int
    gc_ns_per_step: int
    num_gc: int
    longest_gc_ns: int | None
    input_ns_per_step: int
    num_input: int
    longest_input_ns: int | None


class PausesResult(Result, frozen=True, kw_only=True):
    """Pauses of each rank whose pauses were watched."""

    ranks: tuple[RankPauses, ...] = ()


def measure_pauses(records: RankRecords) -> RankPauses | None:
    """The figures of one rank; None where pauses were not watched or no step was logged."""
    num_steps = len(records.step_log)
    if num_steps == 0 or (len(records.pauses) == 0 and "pauses" not in records.about):
        return None
    gc, num_gc, longest_gc = _of_kind(records, "gc")
    waits, num_waits, longest_wait = _of_kind(records, "input")
    return RankPauses(
        rank=records.rank,
        gc_ns_per_step=gc // num_steps,
        num_gc=num_gc,
        longest_gc_ns=longest_gc,
        input_ns_per_step=waits // num_steps,
        num_input=num_waits,
        longest_input_ns=longest_wait,
    )


def combine_pauses(ranks: Sequence[RankPauses], unavailable: Sequence[str] = ()) -> PausesResult:
    """All ranks."""
    return PausesResult(ranks=tuple(ranks), unavailable=tuple(unavailable))


def _of_kind(records: RankRecords, kind: str) -> tuple[int, int, int | None]:
    """Time in pauses of a kind, their number, and the longest."""
    rows = records.pauses.take(records.pauses.coded("kind").equals(kind))
    if len(rows) == 0:
        return 0, 0, None
    start, end = intervals_of(rows)
    busy = union(Intervals(start, end))
    return int((busy.end - busy.start).sum()), len(rows), int(np.max(end - start))
