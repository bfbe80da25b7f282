"""Launch calls that waited for room in the GPU's queue.

A CPU that never waits for results runs ahead of its GPU until the queue of launched work is full:
about a thousand entries on CUDA. From then on a launch call returns only when an earlier activity
has started, so its duration is the GPU's time, not the CPU's. A long call with few activities
pending has another cause, such as a lock, a module load or a preempted thread.
"""

from __future__ import annotations

import numpy as np

from distprof.intervals import Intervals
from distprof.run.tables import Launches
from distprof.schema import Int64Array, Table
from distprof.terms import ActivityKind

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
    """Launch calls that returned while the queue was full, sorted by their end."""
    rows = np.flatnonzero(launches.known & (launches.end - launches.start >= LONG_NS))
    _, first = np.unique(launches.row[rows], return_index=True)
    start, end = launches.start[rows[first]], launches.end[rows[first]]
    if len(start) == 0:
        return Intervals(start, end)
    pending = _pending(activity, launches, end)
    kept = np.flatnonzero(pending >= max(MIN_PENDING, NEARLY_FULL * float(pending.max())))
    kept = kept[np.argsort(end[kept], kind="stable")]
    return Intervals(start[kept], end[kept])


def _pending(activity: Table, launches: Launches, at: Int64Array) -> Int64Array:
    """Number of activities launched but not started at each moment.

    Activities without a recorded launch count as launched before the capture.
    """
    runs = activity["kind"] != ActivityKind.ANNOTATION
    started = np.sort(activity["start_ns"][runs], kind="stable")
    launched = np.sort(launches.end[runs & launches.known], kind="stable")
    earlier = int((runs & ~launches.known).sum())
    pending: Int64Array = (
        earlier
        + np.searchsorted(launched, at, side="right")
        - np.searchsorted(started, at, side="right")
    )
    return pending
