"""Bandwidth and waiting over hours or days, from the records of NCCL Inspector.

The bus bandwidth of a collective comes from its shortest duration, that of the member that arrives
last, because the durations of other members include waiting: ``bytes * factor / duration``. NCCL
counts the bytes that one member passes in, so the bytes of an all-gather or reduce-scatter are
``n`` times that number.

Source: NVIDIA/nccl, ``ext-profiler/inspector`` (``inspectorComputeCollBw``); nccl-tests,
``doc/PERFORMANCE.md``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from distprof.costs.collectives import bus_factor
from distprof.join.nccl import Compared, compared
from distprof.run.evidence import InspectedClass, InspectorLog
from distprof.run.run import Run
from distprof.run.tables import runs_of
from distprof.schema import Int64Array
from distprof.sections.collective_log import (
    BandwidthFall,
    CollectiveLogResult,
    LateSpell,
    LoggedOperation,
)
from distprof.terms import CollectiveKind
from distprof.units import NS_PER_S

MAX_OPERATIONS = 2_000
MAX_SPELLS = 500
CLEAR_RATIO = 0.5
"""A rank is named if the collectives in which it arrives last hold this share of the waiting."""

FALLEN_RATIO = 0.8  # Share of its usual bandwidth below which an operation is slow

_MOST_WINDOWS = 200
_LEAST_IN_WINDOW = 25
_LEAST_WINDOWS_FALLEN = 2
_SHORTEST_WINDOW_NS = 10 * NS_PER_S
_SHARDED = (CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER)

_Shape = tuple[str, int, int, int]


def analyze_collective_log(run: Run) -> CollectiveLogResult:
    """Collectives over time; empty without records."""
    log = run.get(InspectorLog)
    if log is None:
        return CollectiveLogResult()
    collectives = compared(log)
    moved = np.array([_moved_bytes(one) for one in log.classes], np.float64)
    seconds = np.maximum(collectives.shortest_ns, 1) / NS_PER_S
    busbw = moved[collectives.class_index] / seconds if len(collectives) else np.zeros(0)
    shapes: dict[_Shape, list[int]] = {}
    for index, one in enumerate(log.classes):
        key = (one.kind.label, one.num_bytes, one.num_ranks, one.num_nodes)
        shapes.setdefault(key, []).append(index)
    edges = _edges(collectives.t_ns)
    falls = (
        fall
        for shape, classes in shapes.items()
        for fall in _falls(shape, collectives, busbw, np.isin(collectives.class_index, classes))
    )
    total = int(collectives.total_ns.sum())
    return CollectiveLogResult(
        num_records=log.num_records,
        num_ranks=len({member.rank for member in log.members if member.rank >= 0}),
        start_ns=log.first_ns,
        end_ns=log.last_ns,
        sampled_one_in=log.sampled_one_in,
        num_compared=len(collectives),
        wait_ratio=float(collectives.wait_ns.sum()) / total if total else None,
        operations=tuple(_operations(log, shapes, collectives, busbw))[:MAX_OPERATIONS],
        spells=tuple(_spells(collectives, edges))[:MAX_SPELLS],
        falls=tuple(sorted(falls, key=lambda fall: fall.start_ns))[:MAX_SPELLS],
        unavailable=tuple(_limits(log, collectives)),
    )


def _limits(log: InspectorLog, collectives: Compared) -> Iterator[str]:
    yield from log.notes
    if log.num_dropped:
        yield f"NCCL Inspector itself dropped {log.num_dropped:,} operations."
    if log.sampled_one_in > 1:
        yield (
            f"Ranks are compared in one of {log.sampled_one_in:,} collectives, the same on each "
            "rank, to limit the memory that distprof needs."
        )
    if not len(collectives) and any(one.kind.is_symmetric for one in log.classes):
        yield (
            "No collective has a record of every member, so ranks are not compared: read the files "
            "of all ranks, and dump often (NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS)."
        )


def _moved_bytes(one: InspectedClass) -> float:
    factor = bus_factor(one.kind, one.num_ranks) if one.num_ranks else None
    if factor is None or not one.num_bytes:
        return np.nan
    return factor * one.num_bytes * (one.num_ranks if one.kind in _SHARDED else 1)


def _operations(
    log: InspectorLog,
    shapes: dict[_Shape, list[int]],
    collectives: Compared,
    busbw: NDArray[np.float64],
) -> Iterable[LoggedOperation]:
    rows = []
    for (kind, num_bytes, num_ranks, num_nodes), classes in shapes.items():
        records = sum(log.classes[index].num_records for index in classes)
        spent = sum(log.classes[index].total_ns for index in classes)
        speeds = busbw[np.isin(collectives.class_index, classes)]
        speeds = speeds[np.isfinite(speeds)]
        row = LoggedOperation(
            kind=kind,
            num_bytes=num_bytes,
            num_ranks=num_ranks,
            num_nodes=num_nodes or None,
            num_groups=len(classes),
            num_records=records,
            mean_ns=round(spent / max(records, 1)),
            num_compared=len(speeds),
            busbw_bytes_per_s=float(np.median(speeds)) if len(speeds) else None,
            slow_busbw_bytes_per_s=float(np.percentile(speeds, 5)) if len(speeds) else None,
        )
        rows.append((-spent, row))
    return (row for _, row in sorted(rows, key=lambda pair: pair[0]))


# Over time ----------------------------------------------------------------------------------------


def _edges(t_ns: Int64Array) -> Int64Array:
    """Edges of equal windows, wide enough to hold enough collectives for a comparison."""
    if not len(t_ns):
        return np.zeros(0, np.int64)
    first, last = int(t_ns[0]), int(t_ns[-1]) + 1
    count = min(_MOST_WINDOWS, len(t_ns) // _LEAST_IN_WINDOW, (last - first) // _SHORTEST_WINDOW_NS)
    return np.linspace(first, last, max(int(count), 1) + 1).astype(np.int64)


def _spells(collectives: Compared, edges: Int64Array) -> Iterator[LateSpell]:
    """Runs of windows in which ranks mostly wait for the same rank."""
    open_run: list[int] = []
    for index, late in enumerate([*_late_ranks(collectives, edges), None]):
        if open_run and late != open_run[0]:
            rank, start = open_run
            yield _spell(collectives, rank, int(edges[start]), int(edges[index]))
            open_run = []
        if late is not None and not open_run:
            open_run = [late, index]


def _late_ranks(collectives: Compared, edges: Int64Array) -> Iterator[int | None]:
    """For each window, the rank that the others mostly wait for; None if no rank stands out."""
    places = np.searchsorted(collectives.t_ns, edges)
    for start, end in zip(places[:-1].tolist(), places[1:].tolist(), strict=True):
        ranks, place = np.unique(collectives.last_rank[start:end], return_inverse=True)
        waits = np.bincount(place, weights=collectives.wait_ns[start:end].astype(np.float64))
        total = float(waits.sum())
        worst = int(waits.argmax()) if len(waits) else 0
        is_clear = end - start >= _LEAST_IN_WINDOW // 2 and total > 0
        yield int(ranks[worst]) if is_clear and waits[worst] >= CLEAR_RATIO * total else None


def _spell(collectives: Compared, rank: int, start_ns: int, end_ns: int) -> LateSpell:
    """A spell within windows, from the first to the last long wait for the rank."""
    first, last = np.searchsorted(collectives.t_ns, [start_ns, end_ns])
    rows = first + np.flatnonzero(collectives.last_rank[first:last] == rank)
    long = rows[collectives.wait_ns[rows] >= np.median(collectives.wait_ns[rows]) / 2]
    first, last = int(long[0]), int(long[-1]) + 1
    wait, total = collectives.wait_ns[first:last], int(collectives.total_ns[first:last].sum())
    mine = wait[collectives.last_rank[first:last] == rank]
    return LateSpell(
        rank=rank,
        start_ns=int(collectives.t_ns[first]),
        end_ns=int(collectives.t_ns[last - 1]),
        wait_ratio=float(wait.sum()) / max(total, 1),
        blamed_ratio=float(mine.sum()) / max(int(wait.sum()), 1),
        num_compared=int(last - first),
    )


def _falls(
    shape: _Shape, collectives: Compared, busbw: NDArray[np.float64], mine: NDArray[np.bool_]
) -> Iterator[BandwidthFall]:
    """Runs of windows in which the median is far below that of all windows."""
    times, speeds = collectives.t_ns[mine], busbw[mine]
    edges = _edges(times)
    if len(edges) < 2 + 2 * _LEAST_WINDOWS_FALLEN or not np.isfinite(speeds).all():
        return
    places = np.searchsorted(times, edges).tolist()
    medians = [
        float(np.median(speeds[a:b])) if b - a >= _LEAST_IN_WINDOW // 2 else np.nan
        for a, b in pairwise(places)
    ]
    usual = float(np.nanmedian(medians)) if np.isfinite(medians).any() else np.nan
    is_low = np.array(medians) < FALLEN_RATIO * usual
    for start, length in zip(*(each.tolist() for each in runs_of(is_low)), strict=True):
        end = start + length
        if is_low[start] and length >= _LEAST_WINDOWS_FALLEN:
            part = speeds[places[start] : places[end]]
            yield BandwidthFall(
                kind=shape[0],
                num_bytes=shape[1],
                num_ranks=shape[2],
                start_ns=int(edges[start]),
                end_ns=int(edges[end]),
                usual_bytes_per_s=usual,
                bytes_per_s=float(np.median(part)),
                num_compared=len(part),
                is_last=end == len(medians),
            )
