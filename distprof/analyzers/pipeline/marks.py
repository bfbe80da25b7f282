"""What each stage of a pipeline does on one rank, from the probes' marks.

Source of the marks: ``distprof:pp stage=1 op=F mb=3`` around the work of a stage itself, without
its waits for other stages. Work is the computation inside of them: collectives of other axes, and
stalls of the host, may lie inside too. On a device the profiler draws the same names on the
device's time line; where it does, those count, because the host's only tell when it launched.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from distprof.analyzers.breakdown import Timeline
from distprof.analyzers.context import StageMarks
from distprof.analyzers.pipeline.names import parse_mark
from distprof.intervals import Intervals, covered, intersect, union
from distprof.run.tables import RankTables, intervals_of
from distprof.schema import Int64Array, Table
from distprof.terms import ActivityKind

__all__ = ["measure_marks"]


def measure_marks(
    tables: RankTables, windows: Intervals, timeline: Timeline
) -> tuple[StageMarks, ...]:
    """Each stage that the rank holds, ascending; nothing without marks.

    Args:
        tables: The rank's tables.
        windows: The analysed windows.
        timeline: For its computation: waiting and idling inside of marks are no work.
    """
    annotations = tables.activity["kind"] == ActivityKind.ANNOTATION
    for table, allowed in ((tables.activity, annotations), (tables.host, None)):
        found = _marks(table, allowed)
        if found is not None:
            rows, stage, micro_batch = found
            return tuple(
                _of_stage(int(number), rows.take(stage == number), windows, timeline, batches)
                for number in np.unique(stage)
                for batches in (micro_batch[stage == number],)
            )
    return ()


def _marks(
    table: Table, allowed: NDArray[np.bool_] | None
) -> tuple[Table, Int64Array, Int64Array] | None:
    """Marked rows, with their stage and micro-batch."""
    names = table.coded("name")
    parsed = [parse_mark(name) for name in names.values]
    if not any(parsed):
        return None
    said = [(mark[0].stage, mark[0].micro_batch) if mark else (-1, -1) for mark in parsed]
    stage, batch = np.array(said, dtype=np.int64)[names.codes].T
    chosen = stage >= 0 if allowed is None else (stage >= 0) & allowed
    if not chosen.any():
        return None
    return table.take(chosen), stage[chosen], batch[chosen]


def _of_stage(
    stage: int, rows: Table, windows: Intervals, timeline: Timeline, micro_batch: Int64Array
) -> StageMarks:
    marked = union(intervals_of(rows))
    work = intersect(marked, timeline.computation)
    step = np.searchsorted(windows.start, rows["start_ns"], side="right") - 1
    inside = (step >= 0) & (rows["start_ns"] < windows.end[np.maximum(step, 0)])
    pairs = np.unique(np.stack((step[inside], micro_batch[inside])), axis=1)
    return StageMarks(
        stage=stage,
        work_ns=covered(windows, work),
        num_micro_batches=np.bincount(pairs[0], minlength=windows.size).astype(np.int64),
    )
