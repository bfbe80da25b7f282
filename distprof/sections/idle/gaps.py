"""Idle gaps of a GPU, the activity that ends each, and the CPU calls that waited for the GPU."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from distprof.intervals import EMPTY, Intervals, outermost
from distprof.run.tables import NO_THREAD, Launches, RankTables, among, distinct
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
    call_end = np.where(known, _pick(launches.end, at), 0)
    # Earliest time at which each launch could have taken effect.
    late = known & (call_start >= start)
    observed = (end - call_start)[late]
    typical = int(np.median(observed)) if len(observed) else DEFAULT_LATENCY_NS
    latency = np.where(late, LATENCY_LIMIT_NS, min(typical, LATENCY_LIMIT_NS))
    ready = np.maximum(call_end, call_start + latency)
    # Communication borders the gap, and its two sides are on different streams.
    is_comm = _pick(activity["kind"], at) == ActivityKind.COMMUNICATION
    is_comm |= among(start, timeline.communication.end)
    streams = activity["stream"]
    other_stream = is_comm & ~_ended_with(activity, streams, _pick(streams, at), start)
    correlation = np.where(row >= 0, _pick(activity["correlation"], at), 0)
    within_launch = _ended_with(activity, activity["correlation"], correlation, start)
    del row, late, latency, is_comm  # memory of a rank peaks here
    return Gaps(
        start=start,
        end=end,
        launch=np.where(known, np.clip(call_start, start, end), start),
        ready=np.where(known, np.clip(ready, start, end), start),
        call=np.where(known, _pick(launches.row, at), ABSENT),
        call_start=call_start,
        thread=np.where(known, _pick(launches.thread, at), NO_THREAD).astype(np.int32),
        other_stream=known & other_stream,
        within_launch=(correlation > 0) & within_launch,
    )


def _idle_of(timeline: Timeline, launches: Launches, windows: Intervals) -> Intervals:
    """All time outside the busy set, from the first window, activity or launch to the last."""
    busy = (timeline.computation, timeline.communication, timeline.exposed_copy)
    sets = (windows, *busy, timeline.message_wait)
    times = [launches.start[launches.known], *(edge for one in sets for edge in one)]
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


def named(rows: Table, pattern: re.Pattern[str]) -> NDArray[np.bool_]:
    """Mask of the rows whose name the pattern finds."""
    return rows.coded("name").finds(pattern)


def is_loading(host: Table) -> NDArray[np.bool_]:
    """Mask over host rows: the training loop waits for its next batch, or loads it."""
    return named(host, INPUT_RANGES)


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
    host, activity = tables.host, tables.activity
    names = host.coded("name")
    blocks, copies = names.isin(BLOCKING_CALLS), names.isin(COPY_CALLS)
    # Asynchronous copies may block until their end, too, but never those of pinned memory, whose
    # calls may still outlast a short copy.
    own = np.flatnonzero(launches.known & ~named(activity, _PINNED))
    call = launches.row[own]
    long_enough = host["end_ns"][call] - host["start_ns"][call] >= BLOCKING_COPY_NS
    outlasted = host["end_ns"][call] >= activity["end_ns"][own]
    waited = call[long_enough & outlasted]
    blocks[waited] |= copies[waited]
    rows = np.flatnonzero(blocks)
    thread = host.coded("thread").codes[rows]
    rows = rows[np.lexsort((-host["end_ns"][rows], host["start_ns"][rows], thread))]
    start, end = host["start_ns"][rows], host["end_ns"][rows]
    thread = host.coded("thread").codes[rows]
    keep = np.zeros(len(rows), dtype=np.bool_)
    for code in distinct(thread).tolist():
        mine = np.flatnonzero(thread == code)
        keep[mine[outermost(start[mine], end[mine])]] = True
    return host.take(rows[keep])


QUEUE = 1_024
"""Launches that CUDA's queue holds; a CPU that is further ahead waits for room."""

LONG_NS = 20_000
"""A shorter call hardly waited. A CPU whose launches all take this long does not run far ahead."""

MIN_PENDING = QUEUE // 2
"""Fewer pending activities do not fill a queue."""

NEARLY_FULL = 0.9
"""Share of the most activities pending in a long call. Streams have separate queues, so no fixed
number means full."""


def waits_for_room(activity: Table, launches: Launches) -> Intervals:
    """Launch calls that returned while the queue was full, sorted by their end.

    A CPU that never waits for results runs ahead of its GPU until the queue of launched work is
    full. From then on a launch call returns only when an earlier activity has started, so its
    duration is the GPU's time. A long call with few activities pending has another cause, such as a
    lock, a module load or a preempted thread.
    """
    rows = np.flatnonzero(launches.known & (launches.end - launches.start >= LONG_NS))
    _, first = np.unique(launches.row[rows], return_index=True)
    start, end = launches.start[rows[first]], launches.end[rows[first]]
    if len(start) == 0:
        return Intervals(start, end)
    # Activities launched but not started when each call returned. Those without a recorded launch
    # count as launched before the capture.
    runs = activity["kind"] != ActivityKind.ANNOTATION
    started = np.sort(activity["start_ns"][runs], kind="stable")
    launched = np.sort(launches.end[runs & launches.known], kind="stable")
    pending = int((runs & ~launches.known).sum()) + np.searchsorted(launched, end, side="right")
    pending = pending - np.searchsorted(started, end, side="right")
    kept = np.flatnonzero(pending >= max(MIN_PENDING, NEARLY_FULL * float(pending.max())))
    kept = kept[np.argsort(end[kept], kind="stable")]
    return Intervals(start[kept], end[kept])
