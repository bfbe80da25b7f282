"""How early a rank's GPU could run its segments, given when its CPU launched the kernels.

A GPU that waits for other ranks hides how slowly its CPU launches, because the CPU catches up
during the wait. If the other ranks came sooner, the GPU would wait for launches instead. A segment
therefore starts no sooner than the launches of its kernels, counted from the last time the CPU
waited for the GPU: from there the CPU runs at its own pace. Before the first wait, launches count
from the start of the first window. A CPU that never waits gives no bounds.

A launch call that waits for room in the queue also waits for the GPU, but only until it reaches an
activity about a thousand launches earlier.
"""

from __future__ import annotations

import numpy as np

from distprof.intervals import Intervals
from distprof.run.tables import RankTables, ends_of_runs, intervals_of
from distprof.schema import Int64Array
from distprof.sections.context import LaunchBounds
from distprof.sections.idle.measure import IdleCauses
from distprof.terms import ActivityKind


def launch_bounds(
    tables: RankTables,
    windows: Intervals,
    causes: IdleCauses,
    start_ns: Int64Array,
    own_ns: Int64Array,
) -> LaunchBounds:
    """Launch bounds that the own time of the segments does not imply already.

    Windows are in order and disjoint. ``start_ns`` of segments is on the rank's clock, ascending;
    the last segment is empty.
    """
    launches = causes.launches
    starts, ends = intervals_of(tables.activity)
    known = launches.known & (tables.activity["kind"] == ActivityKind.COMPUTATION)
    known &= (starts >= start_ns[0]) & (starts < start_ns[-1])
    rows = np.flatnonzero(known)
    called = np.minimum(launches.end[rows], starts[rows])
    # When the CPU continued after each wait; if it waits at all, the first window's start too
    released_ns = causes.released_ns
    inside = released_ns[(released_ns > windows.start[0]) & (released_ns <= windows.end[-1])]
    released = np.concatenate((windows.start[:1], inside)) if len(inside) else inside
    release = np.searchsorted(released, called, side="right") - 1
    rows, called, release = (part[release >= 0] for part in (rows, called, release))
    end_ns = start_ns + own_ns
    segment = np.searchsorted(start_ns, starts[rows], side="right") - 1
    after = np.searchsorted(end_ns, released[release], side="left")
    later = (after < segment) & (ends[rows] <= end_ns[segment])
    rows, called, segment, after = (part[later] for part in (rows, called, segment, after))
    begin = called - (starts[rows] - start_ns[segment])
    return _largest(after, segment, begin - end_ns[after], own_ns)


def _largest(
    after: Int64Array, segment: Int64Array, delay: Int64Array, own_ns: Int64Array
) -> LaunchBounds:
    """The largest bound per pair of segments, without those that own time implies."""
    if len(after) == 0:
        return LaunchBounds.none()
    order = np.lexsort((delay, after, segment))
    after, segment, delay = after[order], segment[order], delay[order]
    last = ends_of_runs(after, segment)
    after, segment, delay = after[last], segment[last], delay[last]
    before = np.concatenate(([0], np.cumsum(own_ns)))
    excess = delay - (before[segment] - before[after + 1])
    kept = excess > 0
    return LaunchBounds(
        after=after[kept], segment=segment[kept], delay_ns=delay[kept], excess_ns=excess[kept]
    )


def held_by_launches(bounds: LaunchBounds, opens: Int64Array) -> Int64Array:
    """Delay of each window by launches, beyond the delay of the windows before it.

    ``opens`` is the first segment of each window, ascending. The delay after one wait of the CPU
    grows until its next wait. Delays after several waits add up.
    """
    held = np.zeros(len(opens), dtype=np.int64)
    window = np.searchsorted(opens, bounds.segment, side="right") - 1
    order = np.lexsort((bounds.excess_ns, window, bounds.after))
    after, window, excess = bounds.after[order], window[order], bounds.excess_ns[order]
    last = ends_of_runs(after, window)
    after, window, excess = after[last], window[last], excess[last]
    is_first = np.diff(after, prepend=-1) != 0
    # running maximum after each wait: the lift keeps the groups apart
    lift = (np.cumsum(is_first) - 1) * (int(excess.max(initial=0)) + 1)
    grown = np.maximum.accumulate(excess + lift) - lift
    np.add.at(held, window, grown - np.where(is_first, 0, np.roll(grown, 1)))
    return held
