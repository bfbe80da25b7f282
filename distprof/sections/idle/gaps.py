"""Idle gaps of a GPU, the activity that ends each, and the CPU calls that waited for the GPU.

A call that blocked the launching thread for ``B`` ns and drained the GPU's queue (it ended in a
gap, or within the clock slack of one) put the CPU ``B`` ns behind. The CPU's part of that gap and
of the following gaps is charged to the call, up to ``B`` in total, until the CPU runs ``B`` ns
ahead of the GPU again or another call drains the queue. A shorter call is charged with its own
duration, in its own gap only.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from distprof.intervals import EMPTY, Intervals, covered, outermost
from distprof.run.tables import NO_THREAD, Launches, RankTables, distinct, intervals_of
from distprof.schema import ABSENT, Int64Array, Table
from distprof.sections.context import SyncStats
from distprof.sections.time.measure import Timeline
from distprof.terms import ActivityKind

__all__ = [
    "BLOCKING_CALLS",
    "COPY_CALLS",
    "LATENCY_LIMIT_NS",
    "Gaps",
    "SyncBlame",
    "blame_calls",
    "blocking_calls",
    "find_gaps",
    "rows_by_thread",
    "sync_stats",
]

LATENCY_LIMIT_NS = 50_000
"""Longest time until a launch, or a dependency between streams, takes effect."""

DEFAULT_LATENCY_NS = 10_000

_LAST = np.iinfo(np.int64).max


class Gaps(msgspec.Struct, frozen=True, kw_only=True):
    """Every idle gap and the launch of its next activity; arrays of one length.

    ``call`` is the host row of the call that launched the next activity, ABSENT without a record.
    ``launch`` is the start of that call, and ``ready`` the earliest time at which it could have
    taken effect, both clipped to the gap. Without a record both equal ``start``. ``other_stream``
    marks gaps next to communication whose next activity is on another stream than the last one.
    ``within_launch`` marks gaps between two activities of one call, such as a graph launch.
    """

    start: Int64Array
    end: Int64Array
    launch: Int64Array
    ready: Int64Array
    call: Int64Array
    call_start: Int64Array
    thread: NDArray[np.int32]
    other_stream: NDArray[np.bool_]
    within_launch: NDArray[np.bool_]


def find_gaps(activity: Table, timeline: Timeline, launches: Launches, windows: Intervals) -> Gaps:
    """All idle time from the first window, activity or launch to the last.

    Args:
        activity: ACTIVITY table.
        timeline: Interval sets of the activities.
        launches: Launch of each activity.
        windows: Analysed windows, which can only extend the time range.
    """
    start, end = _idle_of(timeline, launches, windows)
    row = _next_rows(activity, launches, end)
    at = np.maximum(row, 0)
    known = (row >= 0) & _pick(launches.known, at)
    call_start = np.where(known, _pick(launches.start, at), 0)
    ready = _ready(start, end, call_start, np.where(known, _pick(launches.end, at), 0), known)
    correlation = np.where(row >= 0, _pick(activity["correlation"], at), 0)
    del row  # memory of a rank peaks here
    return Gaps(
        start=start,
        end=end,
        launch=np.where(known, np.clip(call_start, start, end), start),
        ready=np.where(known, np.clip(ready, start, end), start),
        call=np.where(known, _pick(launches.row, at), ABSENT),
        call_start=call_start,
        thread=np.where(known, _pick(launches.thread, at), NO_THREAD).astype(np.int32),
        other_stream=known & _other_stream(activity, timeline, at, start),
        within_launch=(correlation > 0)
        & _ended_with(activity, activity["correlation"], correlation, start),
    )


def _idle_of(timeline: Timeline, launches: Launches, windows: Intervals) -> Intervals:
    """All time outside the busy set, from the first window, activity or launch to the last."""
    times = [
        windows.start,
        windows.end,
        launches.start[launches.known],
        timeline.computation.start,
        timeline.computation.end,
        timeline.communication.start,
        timeline.communication.end,
        timeline.exposed_copy.start,
        timeline.exposed_copy.end,
        timeline.message_wait.start,
        timeline.message_wait.end,
    ]
    low = [int(array.min()) for array in times if array.size]
    high = [int(array.max()) for array in times if array.size]
    return timeline.idle(min(low), max(high)) if low else EMPTY


def _next_rows(activity: Table, launches: Launches, gap_end: Int64Array) -> Int64Array:
    """For each gap, the row of the activity that starts at its end; -1 if there is none."""
    takes_time = (activity["kind"] != ActivityKind.ANNOTATION) & (
        activity["end_ns"] > activity["start_ns"]
    )
    rows = np.flatnonzero(takes_time)
    start = activity["start_ns"][rows]
    called = np.where(launches.known, launches.start, _LAST)[rows]
    order = np.lexsort((called, start))
    rows, start = rows[order], start[order]
    if len(rows) == 0:
        return np.full(len(gap_end), -1, dtype=np.int64)
    at = np.searchsorted(start, gap_end, side="left")
    hit = np.minimum(at, len(rows) - 1)
    return np.where(start[hit] == gap_end, rows[hit], -1)


def _ready(
    start: Int64Array,
    end: Int64Array,
    call_start: Int64Array,
    call_end: Int64Array,
    known: NDArray[np.bool_],
) -> Int64Array:
    """Earliest time at which each launch could have taken effect."""
    late = known & (call_start >= start)
    observed = (end - call_start)[late]
    typical = int(np.median(observed)) if len(observed) else DEFAULT_LATENCY_NS
    latency = np.where(late, LATENCY_LIMIT_NS, min(typical, LATENCY_LIMIT_NS))
    result: Int64Array = np.maximum(call_end, call_start + latency)
    return result


def _other_stream(
    activity: Table, timeline: Timeline, row: Int64Array, gap_start: Int64Array
) -> NDArray[np.bool_]:
    """Whether communication borders the gap and its two sides are on different streams."""
    is_comm = _pick(activity["kind"], row) == ActivityKind.COMMUNICATION
    after_comm = _among(gap_start, timeline.communication.end)
    streams = activity["stream"]
    is_same_stream = _ended_with(activity, streams, _pick(streams, row), gap_start)
    result: NDArray[np.bool_] = (is_comm | after_comm) & ~is_same_stream
    return result


def _among(times: Int64Array, ends: Int64Array) -> NDArray[np.bool_]:
    """Whether each time is in ``ends``, which ascend."""
    if len(ends) == 0:
        return np.zeros(len(times), dtype=np.bool_)
    at = np.minimum(np.searchsorted(ends, times), len(ends) - 1)
    is_end: NDArray[np.bool_] = ends[at] == times
    return is_end


def _ended_with(
    activity: Table, values: Int64Array, wanted: Int64Array, when: Int64Array
) -> NDArray[np.bool_]:
    """For each moment, whether an activity with the wanted value ended then.

    Args:
        activity: ACTIVITY table.
        values: One value per ACTIVITY row, such as its stream.
        wanted: One value per moment.
        when: Moments, ascending and distinct.
    """
    if len(when) == 0 or len(values) == 0:
        return np.zeros(len(when), dtype=np.bool_)
    end = activity["end_ns"]
    moment = np.minimum(np.searchsorted(when, end), len(when) - 1)
    rows = np.flatnonzero((when[moment] == end) & (activity["start_ns"] < end))
    moment = moment[rows]
    ended = np.zeros(len(when), dtype=np.bool_)
    ended[moment[values[rows] == wanted[moment]]] = True
    return ended


def _pick(values: NDArray[Any], at: Int64Array) -> NDArray[Any]:
    """``values[at]``, or zeros if ``values`` is empty."""
    return values[at] if len(values) else np.zeros(len(at), dtype=values.dtype)


# CPU calls that waited for the GPU: names and rows -----------------------------------------------

BLOCKING_CALLS = frozenset(
    f"{prefix}{call}"
    for prefix in ("cuda", "hip")
    for call in (
        "StreamSynchronize",
        "DeviceSynchronize",
        "EventSynchronize",
        "Memcpy",
        "Memcpy2D",
        "MemcpyToSymbol",
        "MemcpyFromSymbol",
        "Memset",
        "Free",
    )
) | {"cuStreamSynchronize", "cuCtxSynchronize", "cuEventSynchronize", "cuMemFree_v2"}
"""Runtime and driver calls that return once the GPU has caught up."""

COPY_CALLS = frozenset(
    ("cudaMemcpyAsync", "hipMemcpyAsync", "hipMemcpyWithStream", "cudaMemcpy2DAsync")
)
"""Copy calls that block in some cases (pageable memory). They count if they outlast the copy."""

BLOCKING_COPY_NS = 20_000  # a copy call that does not block returns sooner


def blocking_calls(tables: RankTables, launches: Launches) -> Table:
    """Host rows of calls that waited for the GPU, sorted by thread and time, none nested."""
    host = tables.host
    names = host.coded("name")
    blocks = names.where([name in BLOCKING_CALLS for name in names.values])
    copies = names.where([name in COPY_CALLS for name in names.values])
    blocks |= _waited_for_copy(tables, launches, copies)
    rows = np.flatnonzero(blocks)
    thread = host.coded("thread").codes[rows]
    rows = rows[np.lexsort((-host["end_ns"][rows], host["start_ns"][rows], thread))]
    return host.take(rows[_outermost(host.take(rows))])


def _waited_for_copy(
    tables: RankTables, launches: Launches, copies: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Mask over host rows: asynchronous copy calls that blocked until their copy had ended."""
    host, activity = tables.host, tables.activity
    result = np.zeros(len(host), dtype=np.bool_)
    own = np.flatnonzero(launches.known)
    call = launches.row[own]
    long_enough = host["end_ns"][call] - host["start_ns"][call] >= BLOCKING_COPY_NS
    outlasted = host["end_ns"][call] >= activity["end_ns"][own]
    result[call[long_enough & outlasted]] = True
    return result & copies


def _outermost(calls: Table) -> NDArray[np.bool_]:
    """Mask of rows, sorted by start, that are not inside an earlier row of the same thread."""
    start, end = intervals_of(calls)
    keep = np.zeros(len(calls), dtype=np.bool_)
    for _, rows in rows_by_thread(calls):
        keep[rows[outermost(start[rows], end[rows])]] = True
    return keep


def rows_by_thread(rows: Table) -> Iterator[tuple[int, Int64Array]]:
    """For each thread, its code and the positions of its rows."""
    codes = rows.coded("thread").codes
    for code in distinct(codes).tolist():
        yield code, np.flatnonzero(codes == code)


# Idle time caused by CPU calls that waited for the GPU -------------------------------------------

CLOCK_SLACK_NS = 10_000  # CPU and GPU times of one trace agree to about this precision

DRAINING_NS = 20_000  # a call that returns sooner hardly waited

_NEVER = np.iinfo(np.int64).max


class SyncBlame(msgspec.Struct, frozen=True, kw_only=True):
    """For each gap, the CPU's part that is charged to a call, and the call (-1: none)."""

    ns: Int64Array
    call: Int64Array


def blame_calls(
    gaps: Gaps, host_ns: Int64Array, calls: Table, activity: Table, launches: Launches
) -> SyncBlame:
    """Charge gaps to the synchronising calls that delayed the launches of their threads.

    Args:
        gaps: Idle gaps.
        host_ns: Time of each gap that is due to the CPU, synchronising calls included.
        calls: Synchronising calls, sorted by thread and time, none nested.
        activity: ACTIVITY table.
        launches: Launch of each activity.
    """
    ns = np.zeros(len(gaps.start), dtype=np.int64)
    call = np.full(len(gaps.start), -1, dtype=np.int64)
    for thread, rows in rows_by_thread(calls):
        mine = np.flatnonzero(gaps.thread == thread)
        mine = mine[np.argsort(gaps.call_start[mine], kind="stable")]
        own, longest = _ended_in(gaps, mine, calls, rows)
        launched = np.flatnonzero(launches.known & (launches.thread == thread))
        delay = activity["start_ns"][launched] - launches.start[launched]
        carried, source = _carried(
            gaps.call_start[mine], host_ns[mine], own, launches.start[launched], delay
        )
        is_carried = carried > own
        ns[mine] = np.minimum(np.maximum(own, carried), host_ns[mine])
        call[mine] = np.where(is_carried, longest[source], longest)
    return SyncBlame(ns=ns, call=call)


def _ended_in(
    gaps: Gaps, mine: Int64Array, calls: Table, rows: Int64Array
) -> tuple[Int64Array, Int64Array]:
    """For each gap, the time in calls that ended in it before its launch, and the longest call.

    The slack makes neighbouring gaps overlap. A call counts in the first gap it may have caused.
    """
    start, end = (times[rows] for times in intervals_of(calls))
    before = np.concatenate(([0], np.cumsum(end - start)))
    first = np.searchsorted(end, gaps.start[mine] - CLOCK_SLACK_NS, side="left")
    last = np.searchsorted(end, gaps.call_start[mine], side="right")
    first = np.maximum(first, np.concatenate(([0], last))[: len(last)])  # last never falls
    last = np.maximum(first, last)
    longest = np.full(len(mine), -1, dtype=np.int64)
    some = np.flatnonzero(last > first)
    longest[some] = rows[_longest(end - start, first[some], last[some])]
    return before[last] - before[first], longest


def _carried(
    call_start: Int64Array,
    host_ns: Int64Array,
    own: Int64Array,
    launch: Int64Array,
    delay: Int64Array,
) -> tuple[Int64Array, Int64Array]:
    """Time of draining calls left to charge at each gap, and the gap in which the call ended.

    Args:
        call_start: Start of the launch of each gap of one thread, ascending.
        host_ns: Time of each gap that can be charged.
        own: Time blocked in calls that ended in each gap.
        launch: Launches of that thread.
        delay: Time from each launch until the GPU started the activity.
    """
    drains = np.flatnonzero(own >= DRAINING_NS)
    if len(drains) == 0:
        return np.zeros_like(own), np.zeros_like(own)
    segment = np.searchsorted(drains, np.arange(len(own)), side="right") - 1
    source = drains[np.maximum(segment, 0)]
    before = np.cumsum(host_ns) - host_ns
    left = own[source] - (before - before[source])
    caught_up = _caught_up(call_start[drains], own[drains], launch, delay)
    valid = (segment >= 0) & (call_start <= caught_up[np.maximum(segment, 0)])
    return np.where(valid, np.maximum(left, 0), 0), source


def _caught_up(
    since: Int64Array, blocked: Int64Array, launch: Int64Array, delay: Int64Array
) -> Int64Array:
    """For each drain, when a launch was first ahead of the GPU by the blocked time."""
    segment = np.searchsorted(since, launch, side="right") - 1
    at = np.maximum(segment, 0)
    ahead = (segment >= 0) & (delay >= blocked[at])
    first = np.full(len(since), _NEVER, dtype=np.int64)
    np.minimum.at(first, at[ahead], launch[ahead])
    return first


def _longest(length: Int64Array, first: Int64Array, last: Int64Array) -> Int64Array:
    """For each range ``first:last`` (not empty) of ``length``, the position of its maximum."""
    counts = last - first
    which = np.repeat(np.arange(len(first)), counts)
    offsets = np.cumsum(counts) - counts
    position = np.arange(len(which)) - offsets[which] + first[which]
    order = np.lexsort((length[position], which))
    result: Int64Array = position[order[np.cumsum(counts) - 1]]
    return result


def sync_stats(
    calls: Table, inside: Intervals, blamed: Int64Array, idle_ns: Int64Array
) -> tuple[SyncStats, ...]:
    """Count, CPU time and idle time caused, per synchronising call inside the windows.

    Args:
        calls: Synchronising calls, rows of HOST.
        inside: The windows as a set.
        blamed: Call charged with each gap, -1 for none.
        idle_ns: Idle time of each gap inside the windows that synchronising calls caused.
    """
    start, end = intervals_of(calls)
    blocked = covered(Intervals(start, end), inside)
    idle = np.zeros(len(calls), dtype=np.int64)
    np.add.at(idle, blamed[blamed >= 0], idle_ns[blamed >= 0])
    names = calls.coded("name")
    instant = covered(Intervals(start, start + 1), inside) > 0
    counted = instant | (blocked > 0) | (idle > 0)  # a call may begin before the first window
    return tuple(
        SyncStats(
            name=names.values[code],
            count=int((counted & (names.codes == code)).sum()),
            blocked_ns=int(blocked[names.codes == code].sum()),
            idle_ns=int(idle[names.codes == code].sum()),
        )
        for code in distinct(names.codes[counted]).tolist()
    )
