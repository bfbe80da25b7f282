"""Each collective of one rank: its step, how long it is exposed, and what runs with it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from distprof.intervals import Intervals, covered, subtract, union
from distprof.run.tables import RankTables, encode, intervals_of
from distprof.schema import ABSENT, Int64Array, Table
from distprof.sections.context import RankContext
from distprof.sections.time.measure import Timeline, waits_of
from distprof.terms import ActivityKind

__all__ = [
    "rank_collective_step",
    "rank_exposed_ns",
    "rank_exposed_rows",
    "rank_exposed_wait_ns",
    "rank_row_among_kernels",
    "rank_row_begins_beside",
    "rank_row_hidden_ns",
]

BEGINNING_NS = 20_000
"""A kernel ends and the next one starts within less."""

_LEAST_SHARE = 0.2
"""Streams of copies and of reductions that accompany communication compute less than this."""


class ExposedRows(NamedTuple):
    """For each row of COLLECTIVES, its exposed time and that of its wait."""

    exposed_ns: Int64Array
    wait_ns: Int64Array


def rank_exposed_ns(exposed_rows: ExposedRows) -> Int64Array:
    """For each row, its exposed time."""
    return exposed_rows.exposed_ns


def rank_exposed_wait_ns(exposed_rows: ExposedRows) -> Int64Array:
    """For each row, the exposed time of its wait."""
    return exposed_rows.wait_ns


def rank_row_hidden_ns(collectives: Table, timeline: Timeline) -> Int64Array:
    """For each row, time of it that overlaps with computation."""
    return covered(intervals_of(collectives), timeline.computation)


def rank_exposed_rows(collectives: Table, context: RankContext, timeline: Timeline) -> ExposedRows:
    """For each collective, its exposed time inside the windows, and that of its wait.

    What several collectives expose at the same time is counted once, as it is lost once: with the
    wait, if one of them waits, else with the transfer; with the one that began it first. Rows so
    add up to the rank's exposed communication.
    """
    idle_of_work = subtract(union(context.windows), timeline.computation)
    waiting = waits_of(collectives, context.wait_end_ns)
    waits = covered(_own_part(waiting), idle_of_work)
    moving = Intervals(waiting.end, collectives["end_ns"])
    transfers = covered(_own_part(moving), subtract(idle_of_work, union(waiting)))
    known = context.wait_end_ns != ABSENT
    return ExposedRows(waits + transfers, np.where(known, waits, ABSENT))


def _own_part(intervals: Intervals) -> Intervals:
    """Of each interval what no interval that began earlier covers, its beginning cut off."""
    start, end = intervals
    order = np.argsort(start, kind="stable")
    covered_until = np.empty_like(end)
    covered_until[order] = np.concatenate(
        (start[order[:1]], np.maximum.accumulate(end[order])[:-1])
    )
    own_start = np.maximum(start, covered_until)
    return Intervals(own_start, np.maximum(own_start, end))


def rank_collective_step(collectives: Table, context: RankContext) -> NDArray[np.int32]:
    """For each row, the window that holds its moment; ABSENT where none does."""
    moment, windows = _moment_of(collectives, context), context.windows
    if windows.size == 0:
        return np.full(len(moment), ABSENT, dtype=np.int32)
    at = np.searchsorted(windows.start, moment, side="right") - 1
    held = (at >= 0) & (moment < windows.end[np.maximum(at, 0)])
    return np.where(held, at, ABSENT).astype(np.int32)


def _moment_of(collectives: Table, context: RankContext) -> Int64Array:
    """For each row, the moment that says to which window it belongs.

    That is its last nanosecond, as a device's step lasts until all that it launched has ended. A
    step on the host ends when training continues, which may be before a backend's thread has: there
    it is the moment when it was asked for.
    """
    start, end = intervals_of(collectives)
    if context.is_cpu and not context.is_capture:
        asked = collectives["enqueue_ns"]
        return np.where(asked == ABSENT, start, asked)
    return np.maximum(start, end - 1)


def rank_row_begins_beside(collectives: Table, timeline: Timeline) -> NDArray[np.bool_]:
    """For each row, whether computation covers most of its first 20 µs.

    Something that was asked for ahead begins while what was asked for before is computed; something
    that is needed at once begins when the computation before it has ended.
    """
    start, end = intervals_of(collectives)
    beginning = Intervals(start, np.minimum(end, start + BEGINNING_NS))
    length = beginning.end - beginning.start
    beside: NDArray[np.bool_] = (2 * covered(beginning, timeline.computation) >= length) & (
        length > 0
    )
    return beside


def rank_row_among_kernels(tables: RankTables, is_cpu: bool) -> NDArray[np.bool_]:
    """For each row of COLLECTIVES, whether its stream holds a fifth of all computation or more.

    Work of one stream follows in order: a collective there hides behind nothing. Empty on a CPU,
    whose threads are no streams.
    """
    if is_cpu:
        return np.empty(0, np.bool_)
    rows = tables.activity["kind"] == ActivityKind.COMPUTATION
    start, end = intervals_of(tables.activity)
    streams, which = encode(tables.activity["stream"][rows])
    busy = np.bincount(which, weights=(end - start)[rows], minlength=len(streams))
    main = streams[(busy >= _LEAST_SHARE * busy.sum()) & (busy > 0) & (streams != ABSENT)]
    among: NDArray[np.bool_] = np.isin(tables.collectives["stream"], main)
    return among
