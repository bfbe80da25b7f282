"""Attribution of one rank's idle time to causes: an exact partition of every gap.

A *gap* ``[g0, g1)`` is a longest stretch in which the device neither computes, communicates nor
copies. Its *next activity* is the first to start at ``g1`` (of several, the one launched first);
``[l0, l1)`` is the host's call that launched it, found by correlation. The gap is divided, and a
later line takes only what the earlier ones left:

1. *input*: the part of ``[g0, l0)`` that data-loading ranges on the launching thread cover.
2. *sync*: let ``B`` be the time that the launching thread spent blocked in synchronising calls that
   ended in the gap and before ``l0``. Without them the host would have been ``B`` earlier: the last
   ``B`` ns of the host's part (line 3) are theirs. One that returned at once takes next to nothing.
3. *host*: the gap until the launch could have taken effect: ``[g0, max(l1, l0 + latency))``. The
   latency is at most :data:`LATENCY_LIMIT_NS` for work launched after the gap opened, and this
   rank's typical latency for work launched before.
4. *comm_wait*: the rest, where the next activity was launched in time and waited for another
   stream, and it, or what ended at ``g0``, is communication.
5. *unknown*: the rest. It holds the device's own pause between kernels that were queued in time,
   gaps at the end of the capture, and gaps whose next activity has no launch record.

Where the next activity has no launch record, only data-loading ranges (of any thread) explain a
gap; on traces without any launch record, as from CPU-only jobs, waiting for a collective on the
host (:data:`WAIT_CALLS`) counts as *comm_wait*.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distprof.analyzers.blocking_calls import blocking_calls, rows_by_thread
from distprof.analyzers.breakdown import Timeline
from distprof.analyzers.context import SyncStats
from distprof.analyzers.launches import NO_THREAD, Launches, join_launches
from distprof.intervals import (
    EMPTY,
    Intervals,
    covered,
    intersect,
    subtract,
    union,
)
from distprof.run.tables import RankTables, intervals_of
from distprof.schema import Int64Array, Table
from distprof.terms import ActivityKind, IdleCause

__all__ = [
    "INPUT_RANGES",
    "WAIT_CALLS",
    "IdleCauses",
    "attribute_idle",
]

INPUT_RANGES = re.compile(
    r"^enumerate\(Data(Loader|Pipe)\)#|DataLoader\w*\.__next__|^distprof:input\b"
)
"""Names of host ranges in which the training loop waits for its next batch."""

WAIT_CALLS = re.compile(r"\bwait_tensor$|^c10d::(wait|_wait)|^Work::wait")
"""Names of host ranges in which a thread waits for a collective."""

LATENCY_LIMIT_NS = 50_000
DEFAULT_LATENCY_NS = 10_000
CLOCK_SLACK_NS = 10_000  # host and device times of one trace agree about this well

_LAST = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleCauses:
    """Idle time of one rank by cause, over the whole capture.

    Args:
        causes: Disjoint sets of intervals; what they leave of the idle time is unknown.
        late: Mask over ACTIVITY: launched while the device had nothing left to do.
        launched: Mask over ACTIVITY: the launch is on record.
        sync_calls: Synchronising calls inside the windows.
    """

    causes: dict[IdleCause, Intervals]
    late: NDArray[np.bool_]
    launched: NDArray[np.bool_]
    sync_calls: tuple[SyncStats, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Gaps:
    """Every idle stretch with what ends it; arrays of one length.

    ``launch`` is when the call that launched the next activity began, clipped to the gap; ``ready``
    when that call could have taken effect, clipped too. Both are ``start`` without a record.
    """

    start: Int64Array
    end: Int64Array
    launch: Int64Array
    ready: Int64Array
    call_start: Int64Array
    thread: NDArray[np.int32]
    waited_for_comm: NDArray[np.bool_]


def attribute_idle(tables: RankTables, timeline: Timeline, windows: Intervals) -> IdleCauses:
    """Why the device was idle, gap by gap, as this module's docstring defines it.

    Args:
        tables: The rank's tables, with host rows.
        timeline: The sets of its activities.
        windows: The analysed windows; only the figures of synchronising calls depend on them.
    """
    launches = join_launches(tables.activity, tables.host)
    gaps = _find_gaps(tables.activity, timeline, launches, windows)
    input_part = _input_part(tables.host, gaps)
    calls = blocking_calls(tables, launches)
    blocked, blamed = _blocked_before(gaps, calls)
    sync_rows = Intervals(np.maximum(gaps.start, gaps.ready - blocked), gaps.ready)
    sync = subtract(union(sync_rows), input_part)
    host = subtract(subtract(union(Intervals(gaps.start, gaps.ready)), input_part), sync)
    inside = union(windows)
    sync_ns = covered(sync_rows, intersect(sync, inside))
    return IdleCauses(
        causes={
            IdleCause.INPUT: input_part,
            IdleCause.SYNC: sync,
            IdleCause.HOST: host,
            IdleCause.COMM_WAIT: _comm_wait_part(tables.host, gaps, launches, input_part),
        },
        late=_launched_in(gaps, launches),
        launched=launches.known,
        sync_calls=_sync_stats(calls, inside, blamed, sync_ns),
    )


# Gaps -------------------------------------------------------------------------------------------


def _find_gaps(
    activity: Table, timeline: Timeline, launches: Launches, windows: Intervals
) -> _Gaps:
    start, end = _idle_of(timeline, launches, windows)
    row = _next_rows(activity, launches, end)
    exists = row >= 0
    at = np.maximum(row, 0)
    known = exists & launches.known[at] if len(launches.known) else exists
    call_start = np.where(known, _pick(launches.start, at), 0)
    call_end = np.where(known, _pick(launches.end, at), 0)
    ready = _ready(start, end, call_start, call_end, known)
    return _Gaps(
        start=start,
        end=end,
        launch=np.where(known, np.clip(call_start, start, end), start),
        ready=np.where(known, np.clip(ready, start, end), start),
        call_start=call_start,
        thread=np.where(known, _pick(launches.thread, at), NO_THREAD).astype(np.int32),
        waited_for_comm=known & _waited_for_comm(activity, timeline, at, exists, start),
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
    ]
    low = [int(array.min()) for array in times if array.size]
    high = [int(array.max()) for array in times if array.size]
    return timeline.idle(min(low), max(high)) if low else EMPTY


def _next_rows(activity: Table, launches: Launches, gap_end: Int64Array) -> Int64Array:
    """For each gap, the row of the activity that starts at its end; -1 where none does."""
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
    """When the launch could have taken effect."""
    late = known & (call_start >= start)
    seen = (end - call_start)[late]
    typical = int(np.median(seen)) if len(seen) else DEFAULT_LATENCY_NS
    latency = np.where(late, LATENCY_LIMIT_NS, min(typical, LATENCY_LIMIT_NS))
    result: Int64Array = np.maximum(call_end, call_start + latency)
    return result


def _waited_for_comm(
    activity: Table,
    timeline: Timeline,
    row: Int64Array,
    exists: NDArray[np.bool_],
    gap_start: Int64Array,
) -> NDArray[np.bool_]:
    """Whether communication is on either side of the gap, and its two sides on other streams."""
    is_comm = _pick(activity["kind"], row) == ActivityKind.COMMUNICATION
    after_comm = np.isin(gap_start, timeline.communication.end)
    own_stream_went_on = _ended_on_stream(activity, _pick(activity["stream"], row), gap_start)
    result: NDArray[np.bool_] = exists & (is_comm | after_comm) & ~own_stream_went_on
    return result


def _ended_on_stream(activity: Table, stream: Int64Array, when: Int64Array) -> NDArray[np.bool_]:
    """Whether an activity of that stream ended at that very moment."""
    result = np.zeros(len(when), dtype=np.bool_)
    streams = activity["stream"]
    for number in np.unique(stream).tolist():
        asked = stream == number
        result[asked] = np.isin(when[asked], activity["end_ns"][streams == number])
    return result


# Causes -----------------------------------------------------------------------------------------


def _input_part(host: Table, gaps: _Gaps) -> Intervals:
    """Gap time before the launch that data loading on the launching thread covers."""
    rows = host.take(_named(host, INPUT_RANGES))
    if len(rows) == 0:
        return EMPTY
    until = np.where(gaps.thread == NO_THREAD, gaps.end, gaps.launch)
    parts = [_covered_part(gaps, until, gaps.thread == NO_THREAD, intervals_of(rows))]
    for thread, of_thread in _by_thread(rows):
        parts.append(_covered_part(gaps, until, gaps.thread == thread, of_thread))
    return _join(parts)


def _comm_wait_part(host: Table, gaps: _Gaps, launches: Launches, taken: Intervals) -> Intervals:
    if launches.known.any():
        held = gaps.waited_for_comm
        return union(Intervals(gaps.ready[held], gaps.end[held]))
    rows = host.take(_named(host, WAIT_CALLS))
    everywhere = np.ones(len(gaps.start), dtype=np.bool_)
    return subtract(_covered_part(gaps, gaps.end, everywhere, intervals_of(rows)), taken)


def _covered_part(
    gaps: _Gaps, until: Int64Array, mask: NDArray[np.bool_], ranges: Intervals
) -> Intervals:
    return intersect(union(Intervals(gaps.start[mask], until[mask])), union(ranges))


def _join(parts: list[Intervals]) -> Intervals:
    return union(
        Intervals(
            np.concatenate([part.start for part in parts]),
            np.concatenate([part.end for part in parts]),
        )
    )


def _launched_in(gaps: _Gaps, launches: Launches) -> NDArray[np.bool_]:
    """Mask over activities: the launch call began while the device was idle."""
    if len(gaps.start) == 0:
        return np.zeros(len(launches.known), dtype=np.bool_)
    at = np.searchsorted(gaps.start, launches.start, side="right") - 1
    in_gap = (at >= 0) & (launches.start < gaps.end[np.maximum(at, 0)])
    result: NDArray[np.bool_] = launches.known & in_gap
    return result


# Synchronising calls ------------------------------------------------------------------------------


def _blocked_before(gaps: _Gaps, calls: Table) -> tuple[Int64Array, Int64Array]:
    """For each gap, the blocked time that delayed its launch, and the row of the longest call.

    Returns:
        ns per gap, and the row in ``calls`` (-1 where no call ended in the gap before its launch).
    """
    blocked = np.zeros(len(gaps.start), dtype=np.int64)
    blamed = np.full(len(gaps.start), -1, dtype=np.int64)
    start, end = intervals_of(calls)
    for thread, rows in rows_by_thread(calls):
        mine = np.flatnonzero(gaps.thread == thread)
        before = np.concatenate(([0], np.cumsum(end[rows] - start[rows])))
        first = np.searchsorted(end[rows], gaps.start[mine] - CLOCK_SLACK_NS, side="left")
        last = np.searchsorted(end[rows], gaps.call_start[mine], side="right")
        some = last > first
        mine, first, last = mine[some], first[some], last[some]
        blocked[mine] = before[last] - before[first]
        blamed[mine] = rows[_longest(end[rows] - start[rows], first, last)]
    return blocked, blamed


def _longest(length: Int64Array, first: Int64Array, last: Int64Array) -> Int64Array:
    """For each range ``first:last`` (not empty) of ``length``, the position of its maximum."""
    counts = last - first
    which = np.repeat(np.arange(len(first)), counts)
    offsets = np.cumsum(counts) - counts
    position = np.arange(len(which)) - offsets[which] + first[which]
    order = np.lexsort((length[position], which))
    result: Int64Array = position[order[np.cumsum(counts) - 1]]
    return result


def _sync_stats(
    calls: Table, inside: Intervals, blamed: Int64Array, idle_ns: Int64Array
) -> tuple[SyncStats, ...]:
    start, end = intervals_of(calls)
    blocked = covered(Intervals(start, end), inside)
    starts_inside = covered(Intervals(start, start + 1), inside) > 0
    idle = np.zeros(len(calls), dtype=np.int64)
    np.add.at(idle, blamed[blamed >= 0], idle_ns[blamed >= 0])
    names = calls.coded("name")
    counted = starts_inside | (blocked > 0) | (idle > 0)
    return tuple(
        SyncStats(
            name=names.values[code],
            count=int((starts_inside & (names.codes == code)).sum()),
            blocked_ns=int(blocked[names.codes == code].sum()),
            idle_ns=int(idle[names.codes == code].sum()),
        )
        for code in np.unique(names.codes[counted]).tolist()
    )


# Rows ---------------------------------------------------------------------------------------------


def _named(host: Table, pattern: re.Pattern[str]) -> NDArray[np.bool_]:
    names = host.coded("name")
    return names.where([pattern.search(name) is not None for name in names.values])


def _by_thread(rows: Table) -> Iterator[tuple[int, Intervals]]:
    start, end = intervals_of(rows)
    for code, of_thread in rows_by_thread(rows):
        yield code, Intervals(start[of_thread], end[of_thread])


def _pick(values: NDArray[Any], at: Int64Array) -> NDArray[Any]:
    """``values[at]``, zeros where there is nothing to pick from."""
    return values[at] if len(values) else np.zeros(len(at), dtype=values.dtype)
