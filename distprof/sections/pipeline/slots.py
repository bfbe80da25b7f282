"""Slots of the pipeline stages of one rank, from marks or annotations in its trace.

The probes mark the work of a stage, for example as ``distprof:pp stage=1 op=F mb=3``, without its
waits for other stages. Work is the computation inside a mark, which may also contain collectives of
other axes and CPU stalls.

A slot spans its computation. Waiting for a message inside a range, as in torch's annotations, is
cut off. If the profiler also draws the names on the GPU timeline, those ranges count. Otherwise a
slot spans the kernels that were launched inside the CPU range, from the first start to the last
end, because the times of the CPU range only show when it launched them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from distprof.intervals import Intervals, covered, index_of, intersect, subtract, union
from distprof.run.tables import RankTables, intervals_of, join_launches, numbers_in, runs_of
from distprof.schema import ABSENT, Bools, Int64Array, Table
from distprof.sections.context import NamedRanges, RankContext, StageMarks, StageSlots, Timeline
from distprof.terms import MESSAGES, ActivityKind, CollectiveKind, SlotKind

UNKNOWN_STAGE = -1
"""The name lacks the stage. The rank then holds one stage, known from its place in the group."""

_MARK = re.compile(r"^distprof:pp stage=(\d{1,6}) op=([FBIWL]) mb=(\d{1,9})\Z")
_TORCH = re.compile(r"^PP:(\d{1,6})([FBIW])(\d{1,9})\Z")
_PAIR = re.compile(r"^PP:\((\d{1,6})F(\d{1,9});(\d{1,6})([BI])(\d{1,9})\)OVERLAP_F_B\Z")
_PLAIN = re.compile(r"^(Forward|Backward) (\d{1,9})\Z")

_KINDS = {
    "F": SlotKind.FORWARD,
    "B": SlotKind.BACKWARD,
    "I": SlotKind.BACKWARD_INPUT,
    "W": SlotKind.BACKWARD_WEIGHT,
    "L": SlotKind.LOSS,
}


class SlotName(NamedTuple):
    """Slot described by a name; ``part`` is its part of the range, as shares (start, end)."""

    stage: int
    kind: SlotKind
    micro_batch: int
    part: tuple[float, float] = (0.0, 1.0)


Parser = Callable[[str], Sequence[SlotName]]
_NAMES_OF_RANKS = 1 << 14  # most ranks use the same names


@lru_cache(_NAMES_OF_RANKS)
def parse_mark(name: str) -> tuple[SlotName, ...]:
    """The slot of a probe's mark; empty for any other name."""
    found = _MARK.match(name)
    return (SlotName(int(found[1]), _KINDS[found[2]], int(found[3])),) if found else ()


@lru_cache(_NAMES_OF_RANKS)
def parse_torch(name: str) -> tuple[SlotName, ...]:
    """The slot, or both slots, of torch's annotation; empty for any other name.

    A forward and a backward under one name run one after the other. The forward is assumed to take
    the first third.
    """
    if found := _TORCH.match(name):
        return (SlotName(int(found[1]), _KINDS[found[2]], int(found[3])),)
    if found := _PAIR.match(name):
        return (
            SlotName(int(found[1]), SlotKind.FORWARD, int(found[2]), (0.0, 1 / 3)),
            SlotName(int(found[3]), _KINDS[found[4]], int(found[5]), (1 / 3, 1.0)),
        )
    if found := _PLAIN.match(name):
        kind = SlotKind.FORWARD if found[1] == "Forward" else SlotKind.BACKWARD
        return (SlotName(UNKNOWN_STAGE, kind, int(found[2])),)
    return ()


# Work of each stage on one rank, from the probes' marks ------------------------------------------


def rank_stages(
    tables: RankTables, windows: Intervals, timeline: Timeline, is_cpu: bool
) -> tuple[StageMarks, ...]:
    """Each stage that the rank holds, ascending; empty without marks."""
    annotations = tables.activity["kind"] == ActivityKind.ANNOTATION
    for table, allowed in ((tables.activity, annotations), (tables.host, None)):
        marks = _marks(table, allowed)
        if marks is not None:
            rows, stage, micro_batch = marks
            if table is tables.host and not is_cpu:
                spans, launched = _launched_inside(tables, intervals_of(rows))
                rows = rows.with_columns(start_ns=spans.start, end_ns=spans.end).take(launched)
                stage, micro_batch = stage[launched], micro_batch[launched]
            return tuple(
                _of_stage(int(number), rows.take(stage == number), windows, timeline, batches)
                for number in np.unique(stage)
                for batches in (micro_batch[stage == number],)
            )
    return ()


def _marks(table: Table, allowed: Bools | None) -> tuple[Table, Int64Array, Int64Array] | None:
    """Marked rows, with their stage and micro-batch."""
    names = table.coded("name")
    parsed = [parse_mark(name) for name in names.values]
    if not any(parsed):
        return None
    labels = [(mark[0].stage, mark[0].micro_batch) if mark else (-1, -1) for mark in parsed]
    stage, batch = np.array(labels, dtype=np.int64)[names.codes].T
    chosen = stage >= 0 if allowed is None else (stage >= 0) & allowed
    if not chosen.any():
        return None
    return table.take(chosen), stage[chosen], batch[chosen]


def _of_stage(
    stage: int, rows: Table, windows: Intervals, timeline: Timeline, micro_batch: Int64Array
) -> StageMarks:
    marked = union(intervals_of(rows))
    work = intersect(marked, timeline.computation)
    step = index_of(rows["start_ns"], windows)
    inside = step >= 0
    pairs = np.unique(np.stack((step[inside], micro_batch[inside])), axis=1)
    return StageMarks(
        stage=stage,
        work_ns=covered(windows, work),
        num_micro_batches=np.bincount(pairs[0], minlength=windows.size).astype(np.int64),
    )


# Slots of one rank, from marks or annotations ----------------------------------------------------

MARKS = "distprof marks"
TORCH = "torch annotations"
_LAUNCHED = ", kernels launched inside"
_SET_UP = 0.02  # Share of a slot's computation that may precede its wait, such as creating a buffer

_NOT_PIPELINES = ("cp", "tp", "ep", "dp", "dp_shard", "dp_replicate")
"""Axes whose messages belong to rings or exchanges, not to a pipeline."""

_LATEST = np.iinfo(np.int64).max


def rank_slots(
    tables: RankTables, context: RankContext, timeline: Timeline, messages: Intervals
) -> StageSlots | None:
    """Slots inside the analysed windows, by start; None if no name describes a slot."""
    for parser, origin in ((parse_mark, MARKS), (parse_torch, TORCH)):
        for on_device in (True, False):
            ranges = _ranges_of(tables, parser, on_device)
            if ranges is None:
                continue
            how = ""
            if not on_device and not context.is_cpu:
                ranges, how = _of_kernels(tables, ranges), _LAUNCHED
            slots = _slots_of(ranges, context.windows, timeline, messages, origin + how)
            return replace(slots, is_sure=origin == MARKS) if len(slots) else None
    return None


def _of_kernels(tables: RankTables, ranges: NamedRanges) -> NamedRanges:
    """CPU ranges replaced by the spans of the kernels launched inside; empty ones are left out."""
    spans, launched = _launched_inside(tables, Intervals(ranges.start_ns, ranges.end_ns))
    kernels = replace(ranges, start_ns=spans.start, end_ns=spans.end)
    kernels = kernels.take(np.flatnonzero(launched))
    return kernels.take(np.lexsort((kernels.end_ns, kernels.start_ns)))


def _launched_inside(tables: RankTables, ranges: Intervals) -> tuple[Intervals, Bools]:
    """From the first start to the last end of the kernels launched inside each range.

    Launches of all threads count: while the annotated thread waits for backward, autograd's thread
    launches. The mask says which ranges launched a kernel.
    """
    launches = join_launches(tables.activity["correlation"], tables.host)
    rows = np.flatnonzero((tables.activity["kind"] == ActivityKind.COMPUTATION) & launches.known)
    rows = rows[np.argsort(launches.start[rows], kind="stable")]
    launched = launches.start[rows]
    first = np.searchsorted(launched, ranges.start, side="left")
    last = np.searchsorted(launched, ranges.end, side="left")
    some: Bools = first < last
    bounds = np.stack((first[some], last[some]), axis=1).ravel()
    start, end = (column[rows] for column in intervals_of(tables.activity))
    low, high = ranges.start.copy(), ranges.end.copy()
    if some.any():
        low[some] = np.minimum.reduceat(np.append(start, _LATEST), bounds)[::2]
        high[some] = np.maximum.reduceat(np.append(end, -_LATEST), bounds)[::2]
    return Intervals(low, high), some


def rank_messages(tables: RankTables, context: RankContext) -> Intervals:
    """Times in which the rank received, or was blocked in a send or receive; sorted by end."""
    activity = tables.activity
    blocked = intervals_of(activity.take(activity["kind"] == ActivityKind.WAITING))
    rows = tables.collectives
    other = [i for i, name in enumerate(context.axis_names) if name in _NOT_PIPELINES]
    chosen = np.isin(rows["kind"], MESSAGES) & rows["is_timed"] & ~np.isin(context.axis, other)
    messages = intervals_of(rows.take(chosen))
    start = np.concatenate((blocked.start, messages.start))
    end = np.concatenate((blocked.end, messages.end))
    order = np.argsort(end, kind="stable")
    return Intervals(start[order], end[order])


# Ranges -------------------------------------------------------------------------------------------


def _ranges_of(tables: RankTables, parser: Parser, on_device: bool) -> NamedRanges | None:
    """Ranges that the names of one table describe; None if there are none."""
    table = tables.activity if on_device else tables.host
    names = table.coded("name")
    parsed = [tuple(parser(name)) for name in names.values]
    if not any(parsed):
        return None
    allowed = (
        table["kind"] == ActivityKind.ANNOTATION
        if on_device
        else table.coded("category").equals("annotation")
    )
    parts = [_named(table, parsed, number, allowed) for number in (0, 1)]
    found = [part for part in parts if part is not None]
    if not found:
        return None
    ranges = NamedRanges(
        **{
            name: np.concatenate([getattr(part, name) for part, _ in found])
            for name in NamedRanges.__struct_fields__
        }
    )
    by_start = np.argsort(ranges.start_ns, kind="stable")
    ranges, rows = ranges.take(by_start), np.concatenate([rows for _, rows in found])[by_start]
    place = (table["stream"] if on_device else table.coded("thread").codes)[rows]
    name = (ranges.stage, ranges.kind, ranges.micro_batch)
    keys = (numbers_in(*name, place), *name)  # streams or threads share the slots of a name
    order = np.lexsort(keys)
    first, _ = runs_of(*(key[order] for key in keys))
    ranges = ranges.take(order)
    start = np.minimum.reduceat(ranges.start_ns, first)
    end = np.maximum.reduceat(ranges.end_ns, first)
    merged = replace(ranges.take(first), start_ns=start, end_ns=end)
    return merged.take(np.lexsort((end, start)))


def _named(
    table: Table, parsed: list[tuple[SlotName, ...]], number: int, allowed: Bools
) -> tuple[NamedRanges, NDArray[np.intp]] | None:
    """The ``number``-th slot of each name, with its rows."""
    codes = table.coded("name").codes
    rows = np.flatnonzero(
        allowed & np.array([len(slots) > number for slots in parsed], np.bool_)[codes]
    )
    if not len(rows):
        return None
    fields = [slots[number] if len(slots) > number else _NO_SLOT for slots in parsed]
    of_name = codes[rows]
    start, end = table["start_ns"][rows], table["end_ns"][rows]
    share = np.array([name.part for name in fields], np.float64)[of_name]
    length = end - start
    return NamedRanges(
        stage=np.array([name.stage for name in fields], np.int32)[of_name],
        kind=np.array([name.kind for name in fields], np.int8)[of_name],
        micro_batch=np.array([name.micro_batch for name in fields], np.int32)[of_name],
        start_ns=start + (length * share[:, 0]).astype(np.int64),
        end_ns=start + np.rint(length * share[:, 1]).astype(np.int64),
    ), rows


_NO_SLOT = SlotName(0, SlotKind.FORWARD, 0)


# Slots --------------------------------------------------------------------------------------------


def _slots_of(
    ranges: NamedRanges, windows: Intervals, timeline: Timeline, waits: Intervals, origin: str
) -> StageSlots:
    """Slots of the ranges that start in a window, cut to their computation."""
    step = index_of(ranges.start_ns, windows)
    rows = np.flatnonzero(step >= 0)
    ranges, step = ranges.take(rows), step[rows]
    start = _after_waits(ranges, waits, timeline.computation)
    start, end = _cut(start, ranges.end_ns, timeline.computation)
    order = np.lexsort((end, start))
    start, end = start[order], end[order]
    return StageSlots(
        origin=origin,
        stage=ranges.stage[order],
        kind=ranges.kind[order],
        micro_batch=ranges.micro_batch[order],
        step=step[order].astype(np.int64),
        start_ns=start,
        end_ns=end,
        work_ns=covered(Intervals(start, end), timeline.computation),
        wait_end_ns=_wait_ends(start, end, waits),
    )


def _after_waits(ranges: NamedRanges, waits: Intervals, computation: Intervals) -> Int64Array:
    """Start of each range, after an initial wait with almost no computation before it."""
    exposed = subtract(union(waits), computation)
    if exposed.size == 0 or len(ranges.start_ns) == 0:
        return ranges.start_ns
    at = np.minimum(np.searchsorted(exposed.end, ranges.start_ns, side="right"), exposed.size - 1)
    before = covered(Intervals(ranges.start_ns, exposed.start[at]), computation)
    within = covered(Intervals(ranges.start_ns, ranges.end_ns), computation)
    first = (exposed.end[at] > ranges.start_ns) & (exposed.end[at] < ranges.end_ns)
    return np.where(first & (before <= _SET_UP * within), exposed.end[at], ranges.start_ns)


def _cut(start: Int64Array, end: Int64Array, computation: Intervals) -> tuple[Int64Array, ...]:
    """Bounds of the computation inside ranges; ranges without computation do not change."""
    if computation.size == 0 or len(start) == 0:
        return start, end
    first = np.minimum(np.searchsorted(computation.end, start, side="right"), computation.size - 1)
    last = np.maximum(np.searchsorted(computation.start, end, side="left") - 1, 0)
    low = np.maximum(start, computation.start[first])
    high = np.minimum(end, computation.end[last])
    some = (low < high) & (computation.end[first] > start) & (computation.start[last] < end)
    return np.where(some, low, start), np.where(some, high, end)


def _wait_ends(start: Int64Array, end: Int64Array, waits: Intervals) -> Int64Array:
    """End of the last wait between the end of the slot before and each slot's start."""
    if waits.size == 0 or len(start) == 0:
        return np.full(len(start), ABSENT, dtype=np.int64)
    at = np.searchsorted(waits.end, start, side="right") - 1
    before = np.concatenate(([np.iinfo(np.int64).min], np.maximum.accumulate(end)[:-1]))
    found = (at >= 0) & (waits.end[np.maximum(at, 0)] > before)
    return np.where(found, waits.end[np.maximum(at, 0)], ABSENT).astype(np.int64)


def rank_message_wait_ns(messages: Intervals, timeline: Timeline, windows: Intervals) -> Int64Array:
    """Exposed waiting time for messages per window."""
    return covered(windows, subtract(union(messages), timeline.computation))


# When a stage needs a received message: at the start of the slot that uses it --------------------

_RECEIVES = (CollectiveKind.RECV, CollectiveKind.SEND_RECV)
_BACKWARDS = (SlotKind.BACKWARD, SlotKind.BACKWARD_INPUT)


def needed_at(collectives: Table, slots: StageSlots, since_ns: int) -> Int64Array:
    """Start of the slot that needs each row of COLLECTIVES, ns on the rank's clock.

    ABSENT except for timed receives that ended before the start of a slot. Messages before
    ``since_ns`` belong to slots that are not analysed.
    """
    needed = np.full(len(collectives), ABSENT, dtype=np.int64)
    received = np.isin(collectives["kind"], _RECEIVES) & collectives["is_timed"]
    starts = np.unique(slots.start_ns)
    received &= (collectives["end_ns"] > since_ns) & (collectives["end_ns"] <= starts[-1])
    for peer in np.unique(collectives["peer"][received]):
        rows = np.flatnonzero(received & (collectives["peer"] == peer))
        rows = rows[np.argsort(collectives["end_ns"][rows], kind="stable")]
        end = collectives["end_ns"][rows]
        start = _of_one_kind(slots, end)
        if start is None:
            start = starts[np.searchsorted(starts, end)]
        needed[rows] = start
    return needed


def _of_one_kind(slots: StageSlots, end: Int64Array) -> Int64Array | None:
    """Starts of the slots that a peer's messages are for, if each ended before its own slot.

    Forwards take messages from one side, backwards from the other. The pipeline's first stage has
    nothing to receive for its forwards, and the last one nothing for its backwards.
    """
    stage, first, last = slots.stage, slots.stage.min(), slots.stage.max()
    for kinds, at_the_end in (((SlotKind.FORWARD,), first), (_BACKWARDS, last)):
        of_kind = np.isin(slots.kind, kinds)
        for chosen in (of_kind, of_kind & (stage != at_the_end)):
            starts = np.sort(slots.start_ns[chosen])
            if len(starts) == len(end) and (end <= starts).all():
                return starts
    return None
