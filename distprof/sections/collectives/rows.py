"""One row of COLLECTIVES at a time: its exposed part, its stream, and the trains that rows form.

A train is many consecutive reductions while hardly anything else runs: gradients without buckets.
Message sizes are not needed. Programs that reduce one gradient at a time often copy or scale it
first: a short kernel before each reduction, launched late because Python runs between them, is part
of the train.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from distprof.artefacts.record import grouped
from distprof.intervals import Intervals, covered, index_of, subtract, union
from distprof.run.tables import RankTables, distinct, encode, intervals_of
from distprof.schema import ABSENT, Int64Array, Table
from distprof.sections.collectives import CollectiveTrain
from distprof.sections.context import ExposedRows, RankContext, RankTrain, Timeline
from distprof.sections.time.measure import waits_of
from distprof.terms import ActivityKind, CollectiveKind

BEGINNING_NS = 20_000  # The gap between two queued kernels is shorter than this

_MIN_SHARE = 0.2
"""Streams that only copy and reduce for communication hold a smaller share of computation."""


def rank_row_overlapped_ns(collectives: Table, timeline: Timeline) -> Int64Array:
    """Time of each row that overlaps with computation."""
    return covered(intervals_of(collectives), timeline.computation)


def rank_exposed(collectives: Table, context: RankContext, timeline: Timeline) -> ExposedRows:
    """Exposed time of each collective inside the windows, and the part of it that is waiting.

    Exposed time of concurrent collectives counts once. It is waiting if one of them waits, and
    transfer otherwise, and it belongs to the collective that began to wait or transfer first. The
    rows therefore add up to the rank's exposed communication.
    """
    not_computing = subtract(union(context.windows), timeline.computation)
    waiting = waits_of(collectives, context.wait_end_ns)
    waits = covered(_own_part(waiting), not_computing)
    moving = Intervals(waiting.end, collectives["end_ns"])
    transfers = covered(_own_part(moving), subtract(not_computing, union(waiting)))
    is_matched = context.wait_end_ns != ABSENT
    return ExposedRows(waits + transfers, np.where(is_matched, waits, ABSENT))


def _own_part(intervals: Intervals) -> Intervals:
    """Cut off the beginning of each interval that earlier intervals cover."""
    start, end = intervals
    order = np.argsort(start, kind="stable")
    covered_until = np.empty_like(end)
    covered_until[order] = np.concatenate(
        (start[order[:1]], np.maximum.accumulate(end[order])[:-1])
    )
    own_start = np.maximum(start, covered_until)
    return Intervals(own_start, np.maximum(own_start, end))


def rank_collective_step(collectives: Table, context: RankContext) -> NDArray[np.int32]:
    """Index of the window that each row belongs to; ABSENT if none."""
    return index_of(_moment_of(collectives, context), context.windows).astype(np.int32)


def _moment_of(collectives: Table, context: RankContext) -> Int64Array:
    """The time by which each row is assigned to a window.

    On a GPU it is the last nanosecond of the row, because a step lasts until all work launched in
    it has ended. On a CPU it is the time when the collective was enqueued, because a step ends when
    training continues, possibly while a thread of the backend still communicates.
    """
    start, end = intervals_of(collectives)
    if context.is_cpu and not context.is_capture:
        enqueued = collectives["enqueue_ns"]
        return np.where(enqueued == ABSENT, start, enqueued)
    return np.maximum(start, end - 1)


def rank_row_begins_overlapped(collectives: Table, timeline: Timeline) -> NDArray[np.bool_]:
    """For each row, whether computation covers at least half of its first 20 µs.

    A prefetched collective starts while earlier computation still runs. A collective whose result
    is needed at once starts when the computation before it has ended.
    """
    start, end = intervals_of(collectives)
    beginning = Intervals(start, np.minimum(end, start + BEGINNING_NS))
    length = beginning.end - beginning.start
    return (2 * covered(beginning, timeline.computation) >= length) & (length > 0)


def rank_row_among_kernels(tables: RankTables, is_cpu: bool) -> NDArray[np.bool_]:
    """For each COLLECTIVES row, whether its stream holds at least a fifth of all computation.

    Work on one stream runs in order, so a collective there cannot overlap with that computation.
    Empty on a CPU, whose threads are not streams.
    """
    if is_cpu:
        return np.empty(0, np.bool_)
    rows = tables.activity["kind"] == ActivityKind.COMPUTATION
    start, end = intervals_of(tables.activity)
    streams, which = encode(tables.activity["stream"][rows])
    busy = np.bincount(which, weights=(end - start)[rows], minlength=len(streams))
    main = streams[(busy >= _MIN_SHARE * busy.sum()) & (busy > 0) & (streams != ABSENT)]
    return np.isin(tables.collectives["stream"], main)


MIN_CARS = 20  # Shorter trains are a few buckets or metrics

MOST_COMPUTED = 0.1
"""Share of a collective and of the gap before it that computation may cover in a train."""

TINY_NS = 10_000
"""This much computation before a collective is a copy of its message: the kernels of the smallest
transformer layer take longer."""

MOST_GAP = 3
"""A gap longer than this many median durations, and than the launches of :data:`LAUNCHING_NS`, ends
a train."""

LAUNCHING_NS = 200_000
"""Python needs up to this long to launch a collective and a copy while a profiler records."""

_KINDS = (CollectiveKind.ALL_REDUCE, CollectiveKind.REDUCE_SCATTER)


def rank_trains(
    collectives: Table, collective_step: NDArray[np.int32], timeline: Timeline, is_cpu: bool
) -> tuple[RankTrain, ...]:
    """Trains of one rank by kind and group; none on a CPU."""
    if is_cpu:
        return ()
    kinds, groups = collectives["kind"], collectives.coded("group").codes
    chosen = np.isin(kinds, _KINDS) & (collective_step >= 0) & collectives["is_timed"]
    trains: list[RankTrain] = []
    num_groups = int(groups.max(initial=0)) + 1
    pairs = distinct(kinds[chosen].astype(np.int64) * num_groups + groups[chosen])
    for kind, group in (divmod(pair, num_groups) for pair in pairs.tolist()):
        rows = np.flatnonzero(chosen & (kinds == kind) & (groups == group))
        rows = rows[np.argsort(collectives["start_ns"][rows], kind="stable")]
        trains += _trains_of(collectives, rows, collective_step, timeline.computation, kind)
    return tuple(trains)


def _trains_of(
    collectives: Table, rows: Int64Array, step: NDArray[np.int32], computation: Intervals, kind: int
) -> Iterator[RankTrain]:
    start, end = (column[rows] for column in intervals_of(collectives))
    length = end - start
    before = np.concatenate((start[:1], np.maximum.accumulate(end)[:-1]))
    reach = Intervals(np.minimum(before, start), end)
    most = np.maximum(MOST_COMPUTED * (end - reach.start), TINY_NS)
    alone = (covered(reach, computation) <= most) & (
        covered(Intervals(start, end), computation) <= MOST_COMPUTED * length
    )
    near = start - before <= max(MOST_GAP * float(np.median(length)), LAUNCHING_NS)
    same = np.concatenate(([False], step[rows][1:] == step[rows][:-1]))
    edges = [*np.flatnonzero(~(alone & near & same)).tolist(), len(rows)]  # row 0 is always an edge
    names = collectives.coded("group_desc"), collectives.coded("group")
    for low, high in pairwise(edges):
        if high - low < MIN_CARS:
            continue
        busy = union(Intervals(start[low:high], end[low:high]))
        busy_ns = int((busy.end - busy.start).sum())
        row = int(rows[low])
        description, group = (str(name.values[name.codes[row]]) for name in names)
        yield RankTrain(
            kind=int(kind),
            group=description or group,
            count=high - low,
            busy_ns=busy_ns,
            gap_ns=int(end[low:high].max() - start[low]) - busy_ns,
            median_ns=int(np.median(length[low:high])),
        )


def collective_trains(
    ranks: Iterable[tuple[int, Iterable[RankTrain]]], num_samples: int
) -> tuple[CollectiveTrain, ...]:
    """Mean trains over all ranks and steps, longest first."""
    by_kind = grouped(
        [((train.kind, train.group), (rank, train)) for rank, trains in ranks for train in trains]
    )
    samples = max(num_samples, 1)
    rows = [
        CollectiveTrain(
            kind=CollectiveKind(kind).label,
            group=group,
            ranks=tuple(sorted({rank for rank, _ in items})),
            num_per_step=sum(train.count for _, train in items) / samples,
            busy_ns_per_step=sum(train.busy_ns for _, train in items) // samples,
            gap_ns_per_step=sum(train.gap_ns for _, train in items) // samples,
            duration_ns_median=int(np.median([train.median_ns for _, train in items])),
        )
        for (kind, group), items in by_kind.items()
    ]
    return tuple(sorted(rows, key=lambda row: -(row.busy_ns_per_step + row.gap_ns_per_step)))
