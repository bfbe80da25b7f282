"""What each stage of a pipeline does on one rank, from the probes' marks.

Source of the marks: ``distprof:pp stage=1 op=F mb=3`` around the work of a stage itself, without
its waits for other stages. Work is the computation inside of them: collectives of other axes, and
stalls of the host, may lie inside too. On a device the profiler draws the same names on the
device's time line; where it does, those count, because the host's only tell when it launched.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from distprof.intervals import Intervals, covered, intersect, union
from distprof.run.tables import RankTables, intervals_of
from distprof.schema import Int64Array, Table
from distprof.sections.context import StageMarks
from distprof.sections.time.measure import Timeline
from distprof.terms import ActivityKind, SlotKind

__all__ = ["UNKNOWN_STAGE", "SlotName", "measure_marks", "parse_mark", "parse_torch"]

UNKNOWN_STAGE = -1
"""Where the name does not say the stage: there is one on the rank, and the group says which."""

_MARK = re.compile(r"^distprof:pp stage=(\d{1,6}) op=([FBIWL]) mb=(\d{1,9})\Z")

_TORCH = re.compile(r"^PP:(\d{1,6})([FBIW])(\d{1,9})\Z")

_PAIR = re.compile(r"^PP:\((\d{1,6})F(\d{1,9});(\d{1,6})([BI])(\d{1,9})\)OVERLAP_F_B\Z")

_PLAIN = re.compile(r"^(Forward|Backward) (\d{1,9})\Z")

_KINDS = {
    "F": SlotKind.FORWARD,
    "B": SlotKind.BACKWARD,
    "I": SlotKind.BACKWARD_INPUT,
    "W": SlotKind.BACKWARD_WEIGHT,
    "L": SlotKind.LOSS,
}


class SlotName(NamedTuple):
    """What a name says; ``part`` is the share of the range that the slot takes, from, to."""

    stage: int
    kind: SlotKind
    micro_batch: int
    part: tuple[float, float] = (0.0, 1.0)


Parser = Callable[[str], Sequence[SlotName]]


def parse_mark(name: str) -> tuple[SlotName, ...]:
    """The slot of a probe's mark; empty for any other name."""
    found = _MARK.match(name)
    return (SlotName(int(found[1]), _KINDS[found[2]], int(found[3])),) if found else ()


def parse_torch(name: str) -> tuple[SlotName, ...]:
    """The slot, or the two, of torch's annotation; empty for any other name.

    A forward and a backward under one name run one after the other; the forward is taken for the
    first third.
    """
    if found := _TORCH.match(name):
        return (SlotName(int(found[1]), _KINDS[found[2]], int(found[3])),)
    if found := _PAIR.match(name):
        return (
            SlotName(int(found[1]), SlotKind.FORWARD, int(found[2]), (0.0, 1 / 3)),
            SlotName(int(found[3]), _KINDS[found[4]], int(found[5]), (1 / 3, 1.0)),
        )
    if found := _PLAIN.match(name):
        kind = SlotKind.FORWARD if found[1] == "Forward" else SlotKind.BACKWARD
        return (SlotName(UNKNOWN_STAGE, kind, int(found[2])),)
    return ()


# What each stage of a pipeline does on one rank, from the probes' marks --------------------------


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
