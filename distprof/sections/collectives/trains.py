"""Trains: many consecutive reductions while hardly anything else runs: gradients without buckets.

Message sizes are not needed. The number of collectives and a phase without other work identify a
train. Programs that reduce one gradient at a time often copy or scale it first: a short kernel
before each reduction, launched late because Python runs between them, is part of the train.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from distprof.intervals import Intervals, covered, union
from distprof.run.tables import distinct, intervals_of
from distprof.schema import Int64Array, Table
from distprof.sections.collectives.result import CollectiveTrain
from distprof.sections.context import RankTrain, Timeline
from distprof.terms import CollectiveKind

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
    trains = []
    num_groups = int(groups.max(initial=0)) + 1
    pairs = distinct(kinds[chosen].astype(np.int64) * num_groups + groups[chosen])
    for kind, group in (divmod(pair, num_groups) for pair in pairs.tolist()):
        rows = np.flatnonzero(chosen & (kinds == kind) & (groups == group))
        rows = rows[np.argsort(collectives["start_ns"][rows], kind="stable")]
        trains += _trains_of(collectives, rows, collective_step, timeline.computation, kind)
    return tuple(trains)


def _trains_of(
    collectives: Table, rows: Int64Array, step: NDArray[np.int32], computation: Intervals, kind: int
) -> list[RankTrain]:
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
    trains = []
    for low, high in pairwise(edges):
        if high - low < MIN_CARS:
            continue
        busy = union(Intervals(start[low:high], end[low:high]))
        busy_ns = int((busy.end - busy.start).sum())
        row = int(rows[low])
        description, group = (str(name.values[name.codes[row]]) for name in names)
        trains.append(
            RankTrain(
                kind=int(kind),
                group=description or group,
                count=high - low,
                busy_ns=busy_ns,
                gap_ns=int(end[low:high].max() - start[low]) - busy_ns,
                median_ns=int(np.median(length[low:high])),
            )
        )
    return trains


def collective_trains(
    ranks: Iterable[tuple[int, Iterable[RankTrain]]], num_samples: int
) -> tuple[CollectiveTrain, ...]:
    """Mean trains over all ranks and steps, longest first."""
    by_kind: dict[tuple[int, str], list[tuple[int, RankTrain]]] = {}
    for rank, trains in ranks:
        for train in trains:
            by_kind.setdefault((train.kind, train.group), []).append((rank, train))
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
