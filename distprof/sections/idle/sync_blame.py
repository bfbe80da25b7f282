"""How much of the idle time would not be there if no host call had waited for the device.

A call that blocked the launching thread for ``B`` ns and drained the device's queue (it ended in a
gap, or within the clocks' slack of one) put the host ``B`` ns behind. The host's part of that gap
and of the next ones is the call's doing, up to ``B`` in all, until the host is as far ahead of the
device again as it had been set back, or another call drains the queue. A call that returned at once
is to blame for what it lasted, in its own gap.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from distprof.intervals import Intervals, covered
from distprof.run.tables import Launches, distinct, intervals_of
from distprof.schema import Int64Array, Table
from distprof.sections.context import SyncStats
from distprof.sections.idle.gaps import Gaps, rows_by_thread

__all__ = ["SyncBlame", "blame_calls", "sync_stats"]

CLOCK_SLACK_NS = 10_000  # host and device times of one trace agree about this well
DRAINING_NS = 20_000  # a call that returns sooner hardly waited
_NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncBlame:
    """For each gap, how much of the host's part is due to calls, and which call (-1 for none)."""

    ns: Int64Array
    call: Int64Array


def blame_calls(
    gaps: Gaps, host_ns: Int64Array, calls: Table, activity: Table, launches: Launches
) -> SyncBlame:
    """Blame synchronising calls for the gaps that their threads filled late.

    Args:
        gaps: The idle stretches.
        host_ns: For each, the time that is the host's or its calls'.
        calls: Synchronising calls, in order of thread and time, none nested.
        activity: ACTIVITY table.
        launches: Its launches.
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
        from_before = carried > own
        ns[mine] = np.minimum(np.maximum(own, carried), host_ns[mine])
        call[mine] = np.where(from_before, longest[source], longest)
    return SyncBlame(ns=ns, call=call)


def _ended_in(
    gaps: Gaps, mine: Int64Array, calls: Table, rows: Int64Array
) -> tuple[Int64Array, Int64Array]:
    """For each gap, the blocked time that ended in it before its launch, and the longest call.

    The slack makes neighbouring gaps overlap: a call counts in the first one that it can have made.
    """
    start, end = (times[rows] for times in intervals_of(calls))
    before = np.concatenate(([0], np.cumsum(end - start)))
    first = np.searchsorted(end, gaps.start[mine] - CLOCK_SLACK_NS, side="left")
    last = np.searchsorted(end, gaps.call_start[mine], side="right")
    first = np.maximum(first, np.concatenate(([0], last))[: len(last)])  # last only grows
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
    """What draining calls still have to answer for at each gap, and the gap they ended in.

    Args:
        call_start: For each gap of one thread, when its launch began, ascending.
        host_ns: For each gap, what there is to blame.
        own: For each gap, time blocked in calls that ended in it.
        launch: Launches of that thread.
        delay: Of each, how long the device took to get there.
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
    """For each drain, when a launch was first as far ahead of the device as it had blocked."""
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
    """Count, host time and blame of each synchronising call, inside the windows.

    Args:
        calls: Synchronising calls, rows of HOST.
        inside: The windows as a set.
        blamed: For each gap, the call to blame, -1 for none.
        idle_ns: For each gap, its idle time inside the windows that synchronising calls caused.
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
