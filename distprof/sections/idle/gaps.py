"""Idle gaps of a GPU, the activity that ends each, and the CPU calls that waited for the GPU."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from distprof.intervals import EMPTY, Intervals, outermost
from distprof.run.tables import NO_THREAD, Launches, RankTables, among, distinct, intervals_of
from distprof.schema import ABSENT, Int64Array, Table
from distprof.sections.context import Timeline
from distprof.terms import ActivityKind

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
    """All idle time from the first window, activity or launch to the last."""
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
    after_comm = among(gap_start, timeline.communication.end)
    streams = activity["stream"]
    is_same_stream = _ended_with(activity, streams, _pick(streams, row), gap_start)
    result: NDArray[np.bool_] = (is_comm | after_comm) & ~is_same_stream
    return result


def _ended_with(
    activity: Table, values: Int64Array, wanted: Int64Array, when: Int64Array
) -> NDArray[np.bool_]:
    """For each moment, whether an activity with the wanted value ended then."""
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


INPUT_RANGES = re.compile(
    r"^enumerate\(Data(Loader|Pipe)\)#|DataLoader\w*\.__next__|^distprof:input\b"
)
"""Names of host ranges in which the training loop waits for its next batch."""


def is_loading(host: Table) -> NDArray[np.bool_]:
    """Mask over host rows: the training loop waits for its next batch, or loads it."""
    names = host.coded("name")
    return names.where([INPUT_RANGES.search(name) is not None for name in names.values])


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

_PINNED = re.compile(r"\b(Pinned|Device) -> (Pinned|Device)\b")


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
    """Mask over host rows: asynchronous copy calls that blocked until their copy had ended.

    A call to copy pinned memory never blocks. It may still outlast a short copy.
    """
    host, activity = tables.host, tables.activity
    result = np.zeros(len(host), dtype=np.bool_)
    names = activity.coded("name")
    is_pinned = names.where([_PINNED.search(name) is not None for name in names.values])
    own = np.flatnonzero(launches.known & ~is_pinned)
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
