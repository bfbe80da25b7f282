"""Idle time of the GPU that is due to a pause of its CPU.

Idle time during a pause other than a call that waits for the GPU is that pause's. More may follow:
a pause of ``B`` ns that drained the GPU's queue (it ended in a gap, or within the clock slack of
one) put the CPU ``B`` ns behind. Without it, each later launch would come ``B`` ns sooner, less the
idle time that the GPU would have been spared by then. So the CPU's part of that gap and of the
following ones is charged to the pause, up to ``B`` in total. Pauses add up: of several, the last
one that is not yet used up is charged. That ends once the CPU runs as far ahead of the GPU again.
No lead is longer than the queue: the time since the activity a thousand launches ago started. A
shorter pause is charged with its own duration, in its own gap only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import msgspec
import numpy as np
from numpy.typing import NDArray

from distprof.intervals import Intervals, covered
from distprof.run.tables import Launches
from distprof.schema import Int64Array, Table
from distprof.sections.context import PauseStats
from distprof.sections.idle.cpu_pauses import PauseKind, Pauses
from distprof.sections.idle.gaps import QUEUE, Gaps

CLOCK_SLACK_NS = 10_000  # CPU and GPU times of one trace agree to about this precision

DRAINING_NS = 20_000  # a call that returns sooner hardly waited


class Blame(msgspec.Struct, frozen=True, kw_only=True):
    """For each gap, the CPU's part that is charged to a pause, and the pause (-1: none)."""

    ns: Int64Array
    pause: Int64Array


def blame_pauses(
    gaps: Gaps,
    rest_ns: Int64Array,
    left_ns: Int64Array,
    pauses: Pauses,
    activity: Table,
    launches: Launches,
    threads: NDArray[np.int32],
) -> Blame:
    """Charge the rest of gaps to the pauses that delayed launches.

    ``rest_ns`` is the time of each gap that is due to the CPU, without what pauses took of it
    themselves, and ``left_ns`` the length of each pause without its part in gaps. ``threads`` are
    the codes of the launching threads.
    """
    ns = np.zeros(len(gaps.start), dtype=np.int64)
    pause = np.full(len(gaps.start), -1, dtype=np.int64)
    mine = np.flatnonzero(np.isin(gaps.thread, threads))
    if len(mine) == 0 or len(pauses) == 0:
        return Blame(ns=ns, pause=pause)
    mine = mine[np.argsort(gaps.call_start[mine], kind="stable")]
    own, longest = _ended_in(gaps, mine, pauses, left_ns)
    launched = np.flatnonzero(launches.known & np.isin(launches.thread, threads))
    launched = launched[np.argsort(launches.start[launched], kind="stable")]
    launch, runs = launches.start[launched], activity["start_ns"][launched]
    kind = np.where(longest >= 0, pauses.kind[np.maximum(longest, 0)], -1).astype(np.int64)
    carried, source = _carried(gaps.call_start[mine], rest_ns[mine], own, kind, launch, runs)
    is_carried = carried > own
    ns[mine] = np.minimum(np.maximum(own, carried), rest_ns[mine])
    pause[mine] = np.where(is_carried, longest[source], longest)
    return Blame(ns=ns, pause=pause)


def _ended_in(
    gaps: Gaps, mine: Int64Array, pauses: Pauses, left_ns: Int64Array
) -> tuple[Int64Array, Int64Array]:
    """For each gap, the longest pause that ended in it before its launch, and all time of its kind.

    Both without time in gaps. The slack makes neighbouring gaps overlap. A pause counts in the
    first gap it may have caused.
    """
    end = pauses.end
    first = np.searchsorted(end, gaps.start[mine] - CLOCK_SLACK_NS, side="left")
    last = np.searchsorted(end, gaps.call_start[mine], side="right")
    first = np.maximum(first, np.concatenate(([0], last))[: len(last)])  # last never falls
    last = np.maximum(first, last)
    longest = np.full(len(mine), -1, dtype=np.int64)
    some = np.flatnonzero(last > first)
    longest[some] = _longest(left_ns, first[some], last[some])
    own = np.zeros(len(mine), dtype=np.int64)
    for kind in PauseKind:
        before = np.concatenate(([0], np.cumsum(np.where(pauses.kind == kind, left_ns, 0))))
        of_kind = (longest >= 0) & (pauses.kind[np.maximum(longest, 0)] == kind)
        own[of_kind] = (before[last] - before[first])[of_kind]
    return own, longest


def _carried(
    call_start: Int64Array,
    host_ns: Int64Array,
    own: Int64Array,
    kind: Int64Array,
    launch: Int64Array,
    runs: Int64Array,
) -> tuple[Int64Array, Int64Array]:
    """What draining pauses are charged with in each gap, and the gap in which that pause ended."""
    # ``host_ns`` of a gap can be charged, and ``own`` is the time in pauses of ``kind`` that ended
    # in it. Launches are ascending, and ``runs`` is when the GPU started each.
    charged, source = np.zeros_like(own), np.zeros_like(own)
    drains = np.flatnonzero(own >= DRAINING_NS)
    if len(drains) == 0:
        return charged, source
    number = np.searchsorted(launch, call_start[drains], side="left")
    oldest = runs[np.clip(number - QUEUE, 0, len(runs) - 1)]
    most = np.maximum(call_start[drains] - oldest, 0).tolist()
    number = np.append(number, len(launch))
    ends = np.append(drains[1:], len(own)).tolist()
    ahead = runs - launch
    lost: deque[tuple[int, int]] = deque()  # gap in which a pause ended, and what is left of it
    lead = 0  # the sum of what is left
    for at, (drain, end, limit) in enumerate(zip(drains.tolist(), ends, most, strict=True)):
        lost.append((drain, int(own[drain])))
        lead = _limited(lost, lead + int(own[drain]), limit)
        caught_up = np.flatnonzero(ahead[number[at] : number[at + 1]] >= lead)[:1] + number[at]
        stop = end
        if len(caught_up):
            until = np.searchsorted(call_start, launch[caught_up[0]], side="right")
            stop = max(min(int(until), end), drain + 1)
        lead -= _charge(lost, kind, host_ns[drain:stop], charged[drain:stop], source[drain:stop])
        if len(caught_up):
            lost.clear()
            lead = 0
    return charged, source


def _limited(lost: deque[tuple[int, int]], total: int, limit: int) -> int:
    """The total of all, after the oldest were reduced until it is within the limit."""
    while total > limit and len(lost) > 1:
        drain, left = lost.popleft()
        dropped = min(left, total - limit)
        total -= dropped
        if left > dropped:
            lost.appendleft((drain, left - dropped))
    return total


def _charge(
    lost: deque[tuple[int, int]],
    kind: Int64Array,
    host_ns: Int64Array,
    charged: Int64Array,
    source: Int64Array,
) -> int:
    """The time charged to gaps, last pauses first; writes to the last two arguments."""
    # Of a gap that several kinds of pauses explain, only the part of the largest kind is charged.
    whole = np.cumsum(host_ns)
    left_ns = int(whole[-1])
    reached: list[int] = []
    of: list[int] = []
    while left_ns and lost:
        drain, left = lost.pop()
        used = min(left, left_ns)
        left_ns -= used
        reached.append(used + (reached[-1] if reached else 0))
        of.append(drain)
        if left > used:
            lost.append((drain, left - used))
    if reached:
        before = whole - host_ns
        charged[:] = np.clip(reached[-1] - before, 0, host_ns)
        ends, causes = np.array(reached), np.array(of, np.int64)
        piece = np.minimum(np.searchsorted(ends, before, side="right"), len(of) - 1)
        source[:] = causes[piece]
        last = np.searchsorted(ends, before + charged, side="left")
        for at in np.flatnonzero((last > piece) & (charged > 0)).tolist():
            among = slice(int(piece[at]), int(last[at]) + 1)
            edges = np.clip(ends[among], before[at], before[at] + charged[at])
            amounts = np.diff(edges, prepend=before[at])
            kinds = kind[causes[among]]
            most = max(set(kinds.tolist()), key=lambda one: int(amounts[kinds == one].sum()))
            charged[at] = amounts[kinds == most].sum()
            source[at] = causes[among][np.where(kinds == most, amounts, -1).argmax()]
    return int(whole[-1]) - left_ns


def _longest(length: Int64Array, first: Int64Array, last: Int64Array) -> Int64Array:
    """For each range ``first:last`` (not empty) of ``length``, the position of its maximum."""
    counts = last - first
    which = np.repeat(np.arange(len(first)), counts)
    offsets = np.cumsum(counts) - counts
    position = np.arange(len(which)) - offsets[which] + first[which]
    order = np.lexsort((length[position], which))
    result: Int64Array = position[order[np.cumsum(counts) - 1]]
    return result


def pause_stats(
    pauses: Pauses, inside: Intervals, during: Intervals, blame: Blame, idle_ns: Int64Array
) -> Iterator[PauseStats]:
    """Count, CPU time and idle time caused, by kind and name, inside the windows."""
    start, end = pauses.start, pauses.end
    blocked = covered(Intervals(start, end), inside)
    idle = np.where(
        pauses.kind == PauseKind.SYNC, 0, covered(Intervals(start, end), during)
    ).astype(np.int64)
    charged = blame.pause >= 0
    np.add.at(idle, blame.pause[charged], idle_ns[charged])
    instant = covered(Intervals(start, start + 1), inside) > 0
    counted = instant | (blocked > 0) | (idle > 0)  # a pause may begin before the first window
    for kind in PauseKind:
        for code, name in enumerate(pauses.names):
            chosen = counted & (pauses.kind == kind) & (pauses.name == code)
            if chosen.any():
                yield PauseStats(
                    kind=kind.label,
                    name=name,
                    count=int(chosen.sum()),
                    blocked_ns=int(blocked[chosen].sum()),
                    idle_ns=int(idle[chosen].sum()),
                )
