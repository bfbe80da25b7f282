"""The main line of a rank: its own time, cut where it issues communication and waits for it.

A rank continues with its own work until it needs a collective or a message. While it is blocked, no
own time passes. Cuts are the moments at which it issued communication (a collective started on it,
a message was posted) and at which it continued after waiting. Between two cuts is a *segment* of
own time, classified by how it was spent. How long the rank was blocked is not kept, because it
depends on the other ranks: a simulation computes it.

A GPU's streams, or a CPU's threads, form one line together, as in the breakdown of a step: own time
is all time outside exposed communication. Exposed communication at whose end no collective ends
(work began again while a collective still ran) did not block the rank: it is own time, spent idle.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from distprof.intervals import EMPTY, Intervals, clip, covered, intersect, subtract, union
from distprof.run.tables import RankTables, distinct, ends_of_runs, intervals_of
from distprof.schema import ABSENT, Bools, Int64Array, Table
from distprof.sections.computation.savings import Savings
from distprof.sections.context import LaunchBounds, MainLine, Own, RankContext, StageSlots, Timeline
from distprof.sections.idle.launch_bounds import held_by_launches, launch_bounds
from distprof.sections.idle.measure import IdleCauses
from distprof.sections.pipeline.slots import needed_at
from distprof.sections.time.measure import direction_of
from distprof.sections.whatif import PAGEABLE
from distprof.terms import ActivityKind, CollectiveKind, IdleCause

PINNED_BYTES_PER_NS = 36.0
"""Bandwidth of copies from pinned memory: between 24 over PCIe 4.0 x16 and 50 over PCIe 5.0."""

MARGIN = 64
"""Rows before and after a line that may have partners in it: captures begin and end unevenly."""

QUEUED_NS = 20_000
"""A collective that starts this soon after another on its stream may have been ready before."""

_CAUSES = {
    Own.HOST: IdleCause.HOST,
    Own.INPUT: IdleCause.INPUT,
    Own.SYNC: IdleCause.SYNC,
    Own.PAUSE: IdleCause.PAUSE,
}

_GIVEN_AWAY = (
    *(CollectiveKind.ALL_REDUCE, CollectiveKind.REDUCE_SCATTER, CollectiveKind.REDUCE),
    CollectiveKind.SEND,
)
"""What a rank need not wait for before it continues: gradients, and what others work on."""


class StageLine(msgspec.Struct, frozen=True, kw_only=True):
    """When a rank's pipeline stages work and need communication, own clock."""

    slots: Mapping[int, Intervals]  # When each stage works; disjoint, in order.
    # int64 per row of COLLECTIVES: when they would need it to continue, had it come in time; ABSENT
    # if unknown.
    needed_ns: Int64Array


NOTED_LATE_NS, NOTED_LATE_RATIO = 500_000, 1 / 3
"""A gloo thread may record a collective's end this long after the training thread continued, and on
a busy machine, where it waits for a free CPU, after this share of the time that the rank waited."""

_Lag = tuple[int, float]

EARLY_NS = 5_000
"""A kernel may begin this long before the collective that it waited for ends: stamps are rounded,
and kernels of programmatic dependent launches begin in the tail of the one before."""


def rank_line(
    tables: RankTables,
    context: RankContext,
    timeline: Timeline,
    causes: IdleCauses | None,
    slots: StageSlots | None,
    savings: Savings | None,
) -> MainLine | None:
    """The main line, including what pipeline stages need."""
    windows, stages = context.windows, None
    if windows.size and slots is not None and len(slots):
        stages = StageLine(
            slots={
                stage: union(Intervals(slots.start_ns[mine], slots.end_ns[mine]))
                for stage in np.unique(slots.stage).tolist()
                for mine in (slots.stage == stage,)
            },
            needed_ns=needed_at(tables.collectives, slots, int(windows.start[0])),
        )
    lag = (NOTED_LATE_NS, NOTED_LATE_RATIO) if context.is_cpu else (EARLY_NS, 0.0)
    line = main_line(tables, windows, timeline, causes, stages, lag=lag, savings=savings)
    if line is None or context.simulated is None:
        return line
    low, high = context.simulated
    simulated = Intervals(windows.start[low:high], windows.end[low:high])
    part = main_line(tables, simulated, timeline, causes, stages, lag=lag, savings=savings)
    if part is None:
        return None
    # A line that covers a part of the recording has only the rows that affect it.
    inside = np.flatnonzero((part.issue != ABSENT) | (part.resume != ABSENT))
    first = max(int(inside[0]) - MARGIN, 0) if len(inside) else 0
    rows = slice(first, int(inside[-1]) + 1 + MARGIN if len(inside) else 0)
    kept = {name: getattr(part, name)[rows].copy() for name in MainLine.of_rows}
    return replace(part, first_row=first, held_ns=line.held_ns, first_window=low, **kept)


def main_line(
    tables: RankTables,
    windows: Intervals,
    timeline: Timeline,
    causes: IdleCauses | None,
    stages: StageLine | None = None,
    *,
    lag: _Lag = (0, 0.0),
    savings: Savings | None = None,
) -> MainLine | None:
    """Cut one rank's analysed time; linear in the rank's rows, except for sorting them.

    Windows are in order and disjoint; time between them also belongs to the line. A collective's
    end may be recorded up to ``lag`` after the rank continued: ns, or a share of the wait if that
    is longer. ``savings`` are what changes of the program would save. None without windows.
    """
    if windows.size == 0:
        return None
    line = int(windows.start[0]), int(windows.end[-1])
    collectives = tables.collectives
    issue_ns, leader, unheld_ns = _issue_times(tables, causes)
    end = collectives["end_ns"]
    issued = (issue_ns >= line[0]) & (issue_ns < line[1])
    held = issued & (unheld_ns >= line[0]) & (unheld_ns < issue_ns)
    ended = collectives["is_timed"] & (end > line[0]) & (end <= line[1])
    stretches = clip(timeline.exposed_comm, *line)
    held_up = ended.copy()
    held_up[ended] = ~_before_launch(tables.activity, end[ended], causes)
    exposed, continued_ns, blocked = _blocked(issue_ns, end, held_up, stretches, lag)
    exposed &= ~_passed_by(collectives["kind"], issue_ns, continued_ns, exposed, stretches)
    waits = clip(timeline.message_wait, *line)
    blocked = union(Intervals(*map(np.concatenate, zip(blocked, waits, strict=True))))
    window = np.minimum(np.searchsorted(windows.end, end, side="left"), windows.size - 1)
    resumed_ns = np.where(exposed, continued_ns, windows.end[window])
    hidden = np.zeros(len(end), np.bool_)
    if stages is not None:
        needed = stages.needed_ns
        exposed &= ~_needed_later(end, exposed, stretches, needed)
        hidden = ended & ~exposed & (needed >= end) & (needed <= line[1])
        resumed_ns = np.where(hidden, needed, resumed_ns)
    hard = np.concatenate((*windows, resumed_ns[exposed | hidden], waits.end))
    cuts = _Cuts.of(hard, np.concatenate((issue_ns[issued], unheld_ns[held])))
    idle_by = _with_stretches(causes.causes if causes else {}, subtract(stretches, blocked))
    spans = cuts.spans
    own = _own_time(spans, blocked, timeline, idle_by)
    # A rank may wait as soon as it has issued something: then there is no segment in between.
    kept = ((cuts.keys & 1) == 0) | own.any(axis=1)
    stage_ns, stage = _of_stages(spans, stages, timeline.computation)
    begin, own = spans.start[kept], own[kept]
    cuts = replace(cuts, segment=np.cumsum(kept) - 1)
    parts = {}
    if savings is not None:
        late = subtract(idle_by.get(IdleCause.HOST, EMPTY), blocked)
        for what, kernels in savings.spans.items():
            parts[Own.COMPUTATION, what] = covered(spans, kernels)
            parts[Own.HOST, what] = covered(spans, intersect(late, savings.idle[what]))
    for name, idle in (causes.named if causes else {}).items():
        parts[Own.PAUSE, name] = covered(spans, subtract(idle, blocked))
    needless = _needless_copying(tables.activity, timeline, spans)
    if needless.any():
        after = causes.after_copies if causes else EMPTY
        parts[Own.COPY, PAGEABLE] = needless
        parts[Own.SYNC, PAGEABLE] = covered(spans, subtract(after, blocked))
    opens = cuts.after_hard(windows.start)
    bounds = LaunchBounds.none()
    if causes is not None:
        bounds = launch_bounds(tables, windows, causes, begin, own.sum(axis=1))
    return MainLine(
        start_ns=line[0],
        own_ns=own,
        stage_ns=stage_ns[kept],
        stage=stage[kept],
        issue=np.where(issued, cuts.before_soft(issue_ns), ABSENT),
        leader=leader,
        unheld=np.where(held, cuts.before_soft(unheld_ns), ABSENT),
        copy_ns=np.where(held, issue_ns - unheld_ns, 0),
        resume=np.where(ended, cuts.after_hard(resumed_ns), ABSENT),
        exposed=exposed,
        wait_start_ns=waits.start,
        wait_end_ns=waits.end,
        wait_resume=cuts.after_hard(waits.end),
        opens=opens,
        closes=cuts.after_hard(windows.end),
        bounds=bounds,
        held_ns=held_by_launches(bounds, opens),
        begin_ns=begin - line[0],
        parts_ns={part: ns[kept] for part, ns in parts.items()},
    )


class _Cuts(msgspec.Struct, frozen=True, kw_only=True):
    """Moments in order: twice their time, plus one if the rank only issued something.

    At the same time, continuing comes before issuing. Times count from ``origin_ns``, because twice
    the time since the epoch may overflow. ``segment`` is the segment that each cut opens.
    """

    origin_ns: int
    keys: Int64Array
    segment: Int64Array

    @staticmethod
    def of(hard_ns: Int64Array, soft_ns: Int64Array) -> _Cuts:
        origin = int(hard_ns[0])
        keys = distinct(np.concatenate(((hard_ns - origin) * 2, (soft_ns - origin) * 2 + 1)))
        return _Cuts(origin_ns=origin, keys=keys, segment=np.arange(len(keys), dtype=np.int64))

    @property
    def spans(self) -> Intervals:
        """From each cut to the next; empty after the last."""
        time = (self.keys >> 1) + self.origin_ns
        return Intervals(time, np.concatenate((time[1:], time[-1:])))

    def before_soft(self, time: Int64Array) -> Int64Array:
        """The segment that ends where something is issued."""
        at = np.searchsorted(self.keys, (time - self.origin_ns) * 2 + 1)
        return self.segment[np.clip(at - 1, 0, len(self.keys) - 1)]

    def after_hard(self, time: Int64Array) -> Int64Array:
        """The segment that starts where the rank continues."""
        at = np.searchsorted(self.keys, (time - self.origin_ns) * 2)
        return self.segment[np.minimum(at, len(self.keys) - 1)]


def _issue_times(
    tables: RankTables, causes: IdleCauses | None
) -> tuple[Int64Array, Int64Array, Int64Array]:
    """When the rank was ready for each collective, and what it waited for before.

    The rank was ready when the collective started, unless the collective was queued. A collective
    that starts as another one ends, on its own stream or on one whose result it needs, may have
    been ready long before: once it was launched and the computation launched before it was done.
    One that starts as a copy from the CPU ends needs what was copied.

    Returns:
        int64 per row: the time; the row on another stream that it followed, ABSENT for none; and
        when it would have been ready without the copy, the same time if it needed none.
    """
    collectives = tables.collectives
    start, end = intervals_of(collectives)
    enqueue, stream = collectives["enqueue_ns"], collectives["stream"]
    # Rows that start as the one before them on their stream ends
    order = np.lexsort((start, stream))
    before, after = order[:-1], order[1:]
    since = start[after] - end[before]
    follows = (stream[before] == stream[after]) & (stream[before] != ABSENT)
    follows &= _right_after(since)
    queued = np.zeros(len(start), dtype=np.bool_)
    queued[after[follows]] = True
    leader = np.where(queued, ABSENT, _ended_before(start, end, stream))
    queued |= leader != ABSENT
    copied = _copied_before(tables.activity, start) & ~queued
    launched = (enqueue != ABSENT) & (enqueue <= start)
    queued, copied = queued & launched, copied & launched
    if causes is None or not (queued.any() or copied.any()):
        return start, np.full(len(start), ABSENT, dtype=np.int64), start
    ready = np.minimum(np.maximum(enqueue, _done_before(tables, causes, enqueue)), start)
    issue_ns = np.where(queued, ready, start)
    waited = queued & (leader != ABSENT) & (issue_ns <= end[leader])
    issue_ns = np.where(waited | (leader == ABSENT), issue_ns, start)
    return issue_ns, np.where(waited, leader, ABSENT), np.where(copied, ready, issue_ns)


def _right_after(since_ns: Int64Array) -> Bools:
    """Whether something that starts so long after the end of another may have waited for it."""
    return (since_ns >= -EARLY_NS) & (since_ns <= QUEUED_NS)


def _copied_before(activity: Table, start: Int64Array) -> Bools:
    """Rows that start as a copy from the CPU ends."""
    names = activity.coded("name")
    from_cpu = names.where([direction_of(name)[0] == "HtoD" for name in names.values])
    ends = np.sort(activity["end_ns"][from_cpu & (activity["kind"] == ActivityKind.COPY)])
    if len(ends) == 0:
        return np.zeros(len(start), dtype=np.bool_)
    last = np.searchsorted(ends, start + EARLY_NS, side="right") - 1
    since = start - ends[np.maximum(last, 0)]
    return _right_after(since)


def _ended_before(start: Int64Array, end: Int64Array, stream: Int64Array) -> Int64Array:
    """The last row on another stream that ended as each row started; ABSENT for none."""
    if len(start) == 0:
        return np.empty(0, dtype=np.int64)
    order = np.argsort(end, kind="stable")
    last = np.searchsorted(end[order], start + EARLY_NS, side="right") - 1
    last = order[np.maximum(last, 0)]
    since = start - end[last]
    follows = _right_after(since) & (stream != stream[last])
    follows &= (stream != ABSENT) & (stream[last] != ABSENT) & (start > start[last])
    return np.where(follows, last, ABSENT)


def _done_before(tables: RankTables, causes: IdleCauses, launched_ns: Int64Array) -> Int64Array:
    """When all computation launched before each moment was done."""
    # A CPU that runs ahead launched the first kernels of a capture before the capture began.
    # Computation that runs before the first one with a known launch was launched before all of
    # those.
    launches, activity = causes.launches, tables.activity
    computes = activity["kind"] == ActivityKind.COMPUTATION
    rows = np.flatnonzero(launches.known & computes)
    if len(rows) == 0:
        return launched_ns
    earlier = computes & (activity["start_ns"] < activity["start_ns"][rows].min())
    first = activity["end_ns"][earlier & ~launches.known].max(initial=np.iinfo(np.int64).min)
    rows = rows[np.argsort(launches.start[rows], kind="stable")]
    done = np.maximum.accumulate(activity["end_ns"][rows])
    at = np.searchsorted(launches.start[rows], launched_ns) - 1
    known = np.where(at < 0, launched_ns, done[np.maximum(at, 0)])
    result: Int64Array = np.maximum(known, first).astype(np.int64)
    return result


def _blocked(
    issue_ns: Int64Array, end: Int64Array, ended: Bools, stretches: Intervals, lag: _Lag
) -> tuple[Bools, Int64Array, Intervals]:
    """Rows that end while exposed, when the rank continued after each, and when it was blocked."""
    # A stretch blocks the rank up to the last end in it. Backend threads may record an end shortly
    # after the rank continued. The unexplained rest of a stretch is therefore also blocked if an
    # end follows within the lag, and within a time no longer than this rest.
    if stretches.size == 0:
        return np.zeros(len(end), np.bool_), end, EMPTY
    at = np.searchsorted(stretches.start, end, side="left") - 1
    exposed = ended & (at >= 0) & (end <= stretches.end[np.maximum(at, 0)])
    last = stretches.start.copy()
    np.maximum.at(last, at[exposed], end[exposed])
    continued_ns = end.copy()
    rows = np.flatnonzero(ended)
    rows = rows[np.argsort(end[rows], kind="stable")]
    stretch = np.flatnonzero(last < stretches.end)
    at = np.searchsorted(end[rows], stretches.end[stretch], side="right")
    stretch, at = stretch[at < len(rows)], at[at < len(rows)]
    since, row = stretches.end[stretch], rows[at]
    late, rest = end[row] - since, since - last[stretch]
    most = np.minimum(np.maximum(lag[0], lag[1] * rest), rest)
    fits = (late <= most) & (issue_ns[row] < since)
    # Of the stretches that a row may have ended, the longest
    order = np.flatnonzero(fits)[np.lexsort((rest[fits], row[fits]))]
    row, stretch = row[order], stretch[order]
    is_longest = ends_of_runs(row)
    row, stretch = row[is_longest], stretch[is_longest]
    exposed[row] = True
    continued_ns[row] = last[stretch] = stretches.end[stretch]
    return exposed, continued_ns, Intervals(stretches.start, last)


def _before_launch(activity: Table, end: Int64Array, causes: IdleCauses | None) -> Bools:
    """Rows after whose end the CPU launched the next kernel or copy, which it did not wait to do.

    That activity could not begin sooner without the collective, so it was not the collective that
    held it up.
    """
    works = np.isin(activity["kind"], (ActivityKind.COMPUTATION, ActivityKind.COPY))
    if causes is None or not works.any():
        return np.zeros(len(end), dtype=np.bool_)
    rows = np.flatnonzero(works)
    rows = rows[np.argsort(activity["start_ns"][rows], kind="stable")]
    at = np.searchsorted(activity["start_ns"][rows], end - EARLY_NS, side="left")
    following = rows[np.minimum(at, len(rows) - 1)]
    launched_ns = np.where(causes.launches.known[following], causes.launches.start[following], end)
    waits = np.searchsorted(causes.released_ns, (end - EARLY_NS, launched_ns), side="right")
    late: Bools = (launched_ns > end) & (waits[0] == waits[1])
    return late & (at < len(rows))


def _with_stretches(
    causes: Mapping[IdleCause, Intervals], free: Intervals
) -> Mapping[IdleCause, Intervals]:
    """Causes of idle time, with the exposed communication before it that did not block the rank."""
    if free.size == 0:
        return causes
    extended = {}
    for cause, idle in causes.items():
        at = np.minimum(np.searchsorted(free.end, idle.start), free.size - 1)
        start = np.where(free.end[at] == idle.start, free.start[at], idle.start)
        extended[cause] = Intervals(start, idle.end)
    return extended


def _passed_by(
    kind: NDArray[np.int8],
    issue_ns: Int64Array,
    end: Int64Array,
    exposed: Bools,
    stretches: Intervals,
) -> Bools:
    """Reductions and sends that end while the rank waits for another collective issued before."""
    # Nothing shows that the rank needed them: gradients are needed at the end of the step.
    result = np.zeros(len(end), dtype=np.bool_)
    rows = np.flatnonzero(exposed)
    rows = rows[np.argsort(end[rows], kind="stable")]
    stretch = np.searchsorted(stretches.start, end[rows], side="left")
    this, other = rows[:-1], rows[1:]
    order = np.sort(issue_ns)
    since = np.searchsorted(order, end[this], side="left")
    until = np.searchsorted(order, end[other], side="right")
    passed = (stretch[1:] == stretch[:-1]) & (since == until) & (end[this] < end[other])
    result[this[passed & np.isin(kind[this], _GIVEN_AWAY)]] = True
    return result


def _needed_later(
    end: Int64Array, exposed: Bools, stretches: Intervals, needed_ns: Int64Array
) -> Bools:
    """Receives that end while the rank waits for another one, which an earlier slot needs."""
    result = np.zeros(len(end), dtype=np.bool_)
    rows = np.flatnonzero(exposed & (needed_ns != ABSENT))
    stretch = np.searchsorted(stretches.start, end[rows], side="left") - 1
    first = np.full(stretches.size, np.iinfo(np.int64).max)
    np.minimum.at(first, stretch, needed_ns[rows])
    result[rows[needed_ns[rows] > first[stretch]]] = True
    return result


def _own_time(
    spans: Intervals, blocked: Intervals, timeline: Timeline, causes: Mapping[IdleCause, Intervals]
) -> Int64Array:
    """Own time between cuts by how it was spent; unexplained time is other."""
    own = np.zeros((spans.size, len(Own)), dtype=np.int64)
    own[:, Own.COMPUTATION] = covered(spans, timeline.computation)
    own[:, Own.COPY] = covered(spans, timeline.exposed_copy)
    for column, cause in _CAUSES.items():
        own[:, column] = covered(spans, subtract(causes.get(cause, EMPTY), blocked))
    free = spans.end - spans.start - covered(spans, blocked)
    own[:, Own.OTHER] = np.maximum(free - own.sum(axis=1), 0)
    return own


def _of_stages(
    spans: Intervals, stages: StageLine | None, computation: Intervals
) -> tuple[Int64Array, NDArray[np.int32]]:
    """Computation inside the marks of stages per span, and the stage that computes most in it."""
    total = np.zeros(spans.size, dtype=np.int64)
    most, stage = total.copy(), np.full(spans.size, ABSENT, dtype=np.int32)
    for number, slots in stages.slots.items() if stages is not None else ():
        ns = covered(spans, intersect(slots, computation))
        stage[ns > most] = number
        most, total = np.maximum(most, ns), total + ns
    return total, stage


def _needless_copying(activity: Table, timeline: Timeline, spans: Intervals) -> Int64Array:
    """Exposed time of copies from or to pageable memory beyond that of pinned memory, per span."""
    names = activity.coded("name")
    pageable = names.where([direction_of(name)[1] == "pageable" for name in names.values])
    rows = np.flatnonzero(pageable & (activity["kind"] == ActivityKind.COPY))
    copies = Intervals(activity["start_ns"][rows], activity["end_ns"][rows])
    length, sizes = copies.end - copies.start, np.maximum(activity["bytes"][rows], 0)
    total = int(length.sum())
    if total == 0:
        return np.zeros(spans.size, dtype=np.int64)
    pinned = np.minimum(sizes / PINNED_BYTES_PER_NS, length).sum()
    exposed = covered(spans, intersect(union(copies), timeline.exposed_copy))
    needless: Int64Array = np.rint(exposed * (1 - pinned / total)).astype(np.int64)
    return needless
