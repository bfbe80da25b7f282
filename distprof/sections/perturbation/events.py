"""One rank's recording as events that depend on each other: what a profiler can delay, and why.

A *checkpoint* is a moment of the training thread: a launch, the start and end of a call that waits,
of a load and of a garbage collection. Threads that launch take turns (backward runs on a thread of
its own while the main thread waits), so they form one line. Between two checkpoints is CPU time,
which the profiler made longer by a cost for each event that it recorded there.

An *activity* is work of the GPU, or a collective of a CPU rank. It starts once it was launched, the
activity before it on its stream has ended, and so has one on another stream, if it started just
after that. Durations of activities are kept: a profiler adds little to them.
"""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from distprof.intervals import EMPTY, Intervals, index_of, outermost, subtract, union
from distprof.run.tables import (
    MODULE_CATEGORY,
    Launches,
    RankTables,
    distinct,
    intervals_of,
    join_launches,
    main_stream,
)
from distprof.schema import ABSENT, Int64Array, Table
from distprof.sections.idle.gaps import QUEUE, blocking_calls, is_loading, waits_for_room
from distprof.terms import ActivityKind, CollectiveKind

SLACK_NS = 10_000
"""Times of one trace agree to about this: an activity may seem to start before its cause."""

LATENCY_NS = 50_000
"""Longest time until a launch, or a dependency between streams, takes effect."""

CALL_NS = 5_000
"""CPU time of a call that waits, apart from waiting."""

NOTED_LATE_NS = 500_000
"""A gloo thread may record a collective's end this long after the training thread continued."""

SHORTEST_WAIT_NS = 50_000
"""A shorter gap between two operators of a CPU rank is not a wait for a collective."""

LEAST_LAUNCHES = 0.01
"""Share of the launches from which a thread belongs to the training thread's line."""


class Part:
    """How the CPU spent the time before a checkpoint: values of :attr:`RankEvents.part`."""

    WORK = 0
    INPUT = 1
    COLLECTION = 2
    WAIT = 3


class Edges(msgspec.Struct, frozen=True, kw_only=True):
    """Dependencies: ``target`` starts no sooner than ``delay_ns`` after the end of ``source``."""

    # int64, numbers of checkpoints, or of activities counted after all checkpoints.
    source: Int64Array
    target: Int64Array  # The same.
    delay_ns: Int64Array  # int64.

    @staticmethod
    def joined(parts: list[tuple[Int64Array, Int64Array, Int64Array]]) -> Edges:
        """All edges of some lists."""
        source, target, delay = (
            np.concatenate([np.asarray(part[i], np.int64) for part in parts]) for i in range(3)
        )
        return Edges(source=source, target=target, delay_ns=delay)


class RankEvents(msgspec.Struct, frozen=True, kw_only=True):
    """The events of one rank, own clock: C checkpoints, A activities."""

    rank: int  # Global rank.
    is_cpu: bool  # Whether CPU threads did the work.
    check_ns: Int64Array  # int64, shape ``(C,)``, ascending.
    work_ns: Int64Array  # int64, CPU time since the checkpoint before, without waiting.
    part: NDArray[np.int8]  # int8, a :class:`Part`: how that time was spent.
    half_ops: Int64Array  # int64, starts and ends of operators and annotations in it.
    half_calls: Int64Array  # int64, starts and ends of launch calls in it.
    row: Int64Array  # int64, shape ``(A,)``, row of each activity in ACTIVITY.
    start_ns: Int64Array  # int64.
    end_ns: Int64Array  # int64.
    # bool, whether the stream of each activity is the one that computes most; False on CPU ranks.
    is_main: NDArray[np.bool_]
    # int64, earliest start of activities that depend on nothing recorded; 0 if they do.
    release_ns: Int64Array
    edges: Edges  # Dependencies, apart from the line of checkpoints itself.
    of_collective: Int64Array  # int64 per row of COLLECTIVES: its activity, ABSENT without one.
    # int64 per row of COLLECTIVES: the checkpoint at which it was posted, ABSENT unless the row has
    # no transfer time.
    posted: Int64Array
    receives: NDArray[np.bool_]  # bool per row of COLLECTIVES: whether it receives a message.
    # int64, checkpoints that end a wait for a message; ``wait_start`` those that begin it.
    wait: Int64Array
    wait_start: Int64Array  # int64.

    @property
    def num_checkpoints(self) -> int:
        """C."""
        return len(self.check_ns)

    @property
    def num_activities(self) -> int:
        """A."""
        return len(self.row)


def find_events(
    rank: int, tables: RankTables, *, is_cpu: bool, collections: Intervals = EMPTY
) -> RankEvents | None:
    """The events of one rank; None if the trace does not show the CPU.

    The tables have every host row. ``collections`` are garbage collections of the training thread,
    a set; own clock.
    """
    if not tables.has_host or len(tables.host) == 0:
        return None
    kind, coded = tables.activity["kind"], tables.host.coded("thread")
    launches = join_launches(tables.activity["correlation"], tables.host)
    if is_cpu:
        rows = np.flatnonzero(kind == ActivityKind.COMMUNICATION)
        threads = distinct(coded.codes[tables.host.coded("category").equals("cpu_op")])
    else:
        rows = np.flatnonzero(kind != ActivityKind.ANNOTATION)
        count = np.bincount(launches.thread[launches.known])
        threads = np.flatnonzero(count > LEAST_LAUNCHES * max(int(count.sum()), 1)).astype(np.int32)
    if len(threads) == 0:
        return None
    activity = rows[np.argsort(tables.activity["start_ns"][rows], kind="stable")]
    is_frame = tables.host.coded("category").equals(MODULE_CATEGORY)
    host = tables.host.take(np.isin(coded.codes, threads) & ~is_frame)
    line = _cpu_ranks_line(tables, activity) if is_cpu else _gpu_ranks_line(tables, launches, host)
    return _assembled(rank, tables, host, activity, launches, line, collections, is_cpu=is_cpu)


# Which rows ---------------------------------------------------------------------------------------


class _Line(msgspec.Struct, frozen=True, kw_only=True):
    """Waits of the training thread's line, ascending and disjoint."""

    waits: Intervals  # When it waited.
    row: Int64Array  # int64 per wait: row of ACTIVITY that ended it, ABSENT if not known.
    is_message: NDArray[np.bool_]  # bool per wait: for a message whose transfer time is not known.
    for_room: Intervals  # When launch calls waited for room in the GPU's queue, a set.
    loads: Intervals  # When it loaded its batch or waited for it, a set.


def _gpu_ranks_line(tables: RankTables, launches: Launches, host: Table) -> _Line:
    """Calls that waited for the GPU, and the activity that each waited for."""
    calls = blocking_calls(tables, launches)
    calls = calls.take(calls.coded("thread").isin(host.coded("thread").values))
    begin, end = intervals_of(calls)
    kept = outermost(begin, end)
    kept = kept[begin[kept] < end[kept]]
    begin, end = begin[kept], end[kept]
    activity = tables.activity
    rows = np.flatnonzero((activity["kind"] != ActivityKind.ANNOTATION) & launches.known)
    rows = rows[np.argsort(activity["end_ns"][rows], kind="stable")]
    at = np.searchsorted(activity["end_ns"][rows], end + SLACK_NS, side="right") - 1
    row = np.full(len(begin), ABSENT, np.int64)
    for _ in range(8):  # a call waits for nothing that was launched after it began
        open_ = np.flatnonzero((row == ABSENT) & (at >= 0))
        if len(open_) == 0:
            break
        candidate = rows[at[open_]]
        fits = launches.start[candidate] <= begin[open_]
        row[open_[fits]] = candidate[fits]
        at[open_[~fits]] -= 1
    return _Line(
        waits=Intervals(begin, end),
        row=row,
        is_message=np.zeros(len(begin), np.bool_),
        for_room=union(waits_for_room(activity, launches)),
        loads=union(intervals_of(host.take(np.flatnonzero(is_loading(host))))),
    )


def _cpu_ranks_line(tables: RankTables, activity: Int64Array) -> _Line:
    """Gaps between operators that end with a collective, and waits for messages."""
    kind = tables.activity["kind"]
    start, end = intervals_of(tables.activity)
    works = kind == ActivityKind.COMPUTATION
    blocked = kind == ActivityKind.WAITING
    work = union(Intervals(start[works], end[works]))
    message = union(Intervals(start[blocked], end[blocked]))
    gaps = subtract(Intervals(work.end[:-1], work.start[1:]), message)
    gaps = Intervals(*(part[gaps.end - gaps.start >= SHORTEST_WAIT_NS] for part in gaps))
    ends = end[activity]
    order = np.argsort(ends, kind="stable")
    at = np.searchsorted(ends[order], gaps.end + NOTED_LATE_NS, side="right") - 1
    row = np.full(gaps.size, ABSENT, np.int64)
    known = np.flatnonzero(at >= 0)
    candidate = activity[order[at[known]]]
    fits = (end[candidate] > gaps.start[known]) & (start[candidate] < gaps.end[known])
    row[known[fits]] = candidate[fits]
    gaps, row = Intervals(gaps.start[row != ABSENT], gaps.end[row != ABSENT]), row[row != ABSENT]
    both = Intervals(*(np.concatenate(pair) for pair in zip(gaps, message, strict=True)))
    order = np.argsort(both.start, kind="stable")
    return _Line(
        waits=Intervals(both.start[order], both.end[order]),
        row=np.concatenate((row, np.full(message.size, ABSENT, np.int64)))[order],
        is_message=np.repeat([False, True], [gaps.size, message.size])[order],
        for_room=EMPTY,
        loads=union(intervals_of(tables.host.take(np.flatnonzero(is_loading(tables.host))))),
    )


# Events -------------------------------------------------------------------------------------------


def _assembled(
    rank: int,
    tables: RankTables,
    host: Table,
    activity: Int64Array,
    launches: Launches,
    line: _Line,
    collections: Intervals,
    *,
    is_cpu: bool,
) -> RankEvents:
    start, end = (times[activity] for times in intervals_of(tables.activity))
    launch = _launch_times(tables, activity, launches)
    # When each message without a transfer time was posted.
    posts = np.where(tables.collectives["is_timed"], ABSENT, tables.collectives["start_ns"])
    low, high = int(host["start_ns"].min()), int(host["end_ns"].max())
    pauses = subtract(collections, line.waits)
    pauses = Intervals(*(np.clip(part, low, high) for part in pauses))
    check = distinct(
        np.concatenate(
            (
                [low, high],
                launch[launch != ABSENT],
                posts[posts != ABSENT],
                *line.waits,
                *line.for_room,
                *line.loads,
                *pauses,
                *intervals_of(tables.steps),
            )
        ).astype(np.int64)
    )
    part, work = _parts(check, line, pauses)
    count = len(check)
    index = count + np.arange(len(activity), dtype=np.int64)
    launched = np.where(launch == ABSENT, ABSENT, np.searchsorted(check, launch))
    edges, release = _activity_edges(
        tables.activity["stream"][activity], start, end, launch, launched, index
    )
    edges += _wait_edges(line, activity, check, end, index)
    edges.append(_room(launch, launched, end, index))
    is_call = host.coded("category").isin(("runtime", "driver", "sync"))
    called = tables.host.take(distinct(launches.row[launches.known]))
    return RankEvents(
        rank=rank,
        is_cpu=is_cpu,
        check_ns=check,
        work_ns=work,
        part=part,
        half_ops=_between(host.take(~is_call), check),
        half_calls=_between(called, check),
        row=activity,
        start_ns=start,
        end_ns=end,
        is_main=main_stream(tables.activity.take(activity)) & (not is_cpu),
        release_ns=release,
        edges=Edges.joined(edges),
        of_collective=_of_collectives(tables, activity),
        posted=np.where(posts == ABSENT, ABSENT, np.searchsorted(check, posts)),
        receives=tables.collectives["kind"] == CollectiveKind.RECV,
        wait=np.searchsorted(check, line.waits.end[line.is_message]),
        wait_start=np.searchsorted(check, line.waits.start[line.is_message]),
    )


def _launch_times(tables: RankTables, activity: Int64Array, launches: Launches) -> Int64Array:
    """When the CPU requested each activity: its launch, or the operator of a CPU collective."""
    requested = np.where(launches.known, launches.start, ABSENT)[activity]
    rows = _of_collectives(tables, activity)
    known = np.flatnonzero(rows != ABSENT)
    enqueued = tables.collectives["enqueue_ns"][known]
    at = rows[known]
    lacks = (requested[at] == ABSENT) & (enqueued != ABSENT)
    requested[at[lacks]] = enqueued[lacks]
    return requested


def _of_collectives(tables: RankTables, activity: Int64Array) -> Int64Array:
    """For each row of COLLECTIVES, the position of its activity; ABSENT without one."""
    rows = tables.collectives
    found = np.full(len(rows), ABSENT, np.int64)
    if len(rows) == 0 or len(activity) == 0:
        return found
    start, end = (times[activity] for times in intervals_of(tables.activity))
    order = np.lexsort((end, start))
    at = np.searchsorted(start[order], rows["start_ns"], side="left")
    at = np.minimum(at, len(order) - 1)
    for _ in range(4):  # several may start at once
        candidate = order[at]
        fits = (start[candidate] == rows["start_ns"]) & (end[candidate] == rows["end_ns"])
        fits &= rows["is_timed"] & (found == ABSENT)
        found[fits] = candidate[fits]
        at = np.minimum(at + 1, len(order) - 1)
    return found


def _parts(
    check: Int64Array, line: _Line, pauses: Intervals
) -> tuple[NDArray[np.int8], Int64Array]:
    """How the time before each checkpoint was spent, and the CPU time in it."""
    span = np.diff(check, prepend=check[:1])
    begin = check - span
    middle = begin + span // 2
    part = np.full(len(check), Part.WORK, np.int8)
    work = span.copy()
    for value, intervals in ((Part.INPUT, line.loads), (Part.COLLECTION, pauses)):
        part[index_of(middle, intervals) >= 0] = value
    waits = union(line.waits)
    for intervals in (waits, line.for_room):
        inside = index_of(middle, intervals) >= 0
        part[inside] = Part.WAIT
        work[inside] = np.minimum(span[inside], CALL_NS)
    return part, work


def _between(rows: Table, check: Int64Array) -> Int64Array:
    """Starts and ends of rows that are before each checkpoint and not before the one before it."""
    times = np.sort(np.concatenate(intervals_of(rows)), kind="stable")
    before = np.searchsorted(times, check, side="left")
    return np.diff(before, prepend=before[:1])


def _activity_edges(
    stream: Int64Array,
    start: Int64Array,
    end: Int64Array,
    launch: Int64Array,
    launched: Int64Array,
    index: Int64Array,
) -> tuple[list[tuple[Int64Array, Int64Array, Int64Array]], Int64Array]:
    """Edges to activities from their launch, the one before on the stream, and other streams."""
    count = len(start)
    order = np.lexsort((start, stream))
    before = np.full(count, ABSENT, np.int64)
    same = stream[order[1:]] == stream[order[:-1]]
    before[order[1:][same]] = order[:-1][same]
    has_before, has_launch = before != ABSENT, launch != ABSENT
    free_ns = np.where(has_before, end[before], ABSENT)
    latency = np.where(has_launch, np.maximum(start - launch, 0), 0)
    late = has_launch & (launch >= free_ns) & (latency < LATENCY_NS)
    usual = int(np.median(latency[late])) if late.any() else SLACK_NS
    least = np.minimum(latency, usual)
    called = np.where(has_launch, launch + least, ABSENT)
    ready = np.maximum(free_ns, called)
    other = _other_streams(stream, start, end, ready)
    by_other = other != ABSENT
    by_launch = ~by_other & has_launch & (called >= free_ns)
    by_stream = ~by_other & ~by_launch & has_before
    edges = [
        (launched[has_launch], index[has_launch], np.where(by_launch, latency, least)[has_launch]),
        (
            index[before[has_before]],
            index[has_before],
            np.where(by_stream, start - free_ns, np.minimum(start - free_ns, 0))[has_before],
        ),
        (index[other[by_other]], index[by_other], (start - end[other])[by_other]),
    ]
    rests = ~(has_launch | has_before | by_other)
    release = np.where(rests | (~has_launch & ~has_before), start, 0)
    return edges, release.astype(np.int64) if count else np.empty(0, np.int64)


def _other_streams(
    stream: Int64Array, start: Int64Array, end: Int64Array, ready: Int64Array
) -> Int64Array:
    """The activity on another stream whose end each one seems to have waited for; ABSENT: none."""
    found = np.full(len(start), ABSENT, np.int64)
    if len(start) == 0:
        return found
    order = np.argsort(end, kind="stable")
    at = np.searchsorted(end[order], start + 1_000, side="right") - 1
    for _ in range(4):
        candidate = order[np.maximum(at, 0)]
        since = start - end[candidate]
        fits = (found == ABSENT) & (at >= 0) & (stream[candidate] != stream)
        fits &= (since <= LATENCY_NS) & (end[candidate] > ready) & (start[candidate] < start)
        found[fits] = candidate[fits]
        at -= 1
    return found


def _wait_edges(
    line: _Line, activity: Int64Array, check: Int64Array, end: Int64Array, index: Int64Array
) -> list[tuple[Int64Array, Int64Array, Int64Array]]:
    """Edges from activities to the end of the calls that waited for them."""
    known = np.flatnonzero(line.row != ABSENT)
    if len(known) == 0:
        return []
    order = np.argsort(activity, kind="stable")
    at = order[np.searchsorted(activity[order], line.row[known])]
    begin, until = line.waits.start[known], line.waits.end[known]
    own = until - np.maximum(end[at], begin)
    return [
        (index[at], np.searchsorted(check, until), np.where(end[at] > begin, until - end[at], own)),
        (np.searchsorted(check, begin), np.searchsorted(check, until), np.maximum(own, 0)),
    ]


def _room(
    launch: Int64Array, launched: Int64Array, end: Int64Array, index: Int64Array
) -> tuple[Int64Array, Int64Array, Int64Array]:
    """Edges that keep the CPU from being further ahead than the queue allows."""
    rows = np.flatnonzero(launch != ABSENT)
    rows = rows[np.argsort(launch[rows], kind="stable")]
    if len(rows) <= QUEUE:
        none = np.empty(0, np.int64)
        return none, none, none
    earlier, later = rows[:-QUEUE], rows[QUEUE:]
    kept = end[earlier] <= launch[later]
    return index[earlier[kept]], launched[later[kept]], np.zeros(int(kept.sum()), np.int64)
