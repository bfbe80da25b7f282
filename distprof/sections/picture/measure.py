"""What one rank did in the steps that are drawn, on its own clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np

from distprof.escape import shorten
from distprof.intervals import EMPTY, Intervals, clip, intersect, subtract, union
from distprof.run.tables import RankTables, distinct, encode, ends_of_runs, intervals_of, parts_by
from distprof.schema import ABSENT, Coded, Int64Array, Table
from distprof.sections.context import RankContext, RankLane, RankStep, Timeline
from distprof.sections.picture import COMPUTATION, COPY, IDLE, MESSAGE_WAIT, TRANSFER, UNSPLIT, WAIT
from distprof.sections.time.measure import split_exposed
from distprof.terms import ActivityKind

MOST_IN_LANE = 700
"""Most pieces of a stream or thread that are kept, the longest ones."""

MOST_STREAMS, MOST_THREADS, MOST_LEVELS = 6, 2, 3
_LONGEST_NAME = 90


def steps_to_draw(windows: Mapping[int, Intervals], simulated: tuple[int, int] | None) -> list[int]:
    """Indices of the window nearest to the median length and of the longest one, by the mean rank.

    The first is among the simulated ones, so that it can be drawn repaired. Without windows, the
    only one is the whole capture.
    """
    if not windows:
        return [0]
    lengths = np.mean([one.end - one.start for one in windows.values()], axis=0)
    low, high = simulated or (0, len(lengths))
    chosen = lengths[low:high]
    # of two that are as near, the shorter
    median = low + int(np.lexsort((chosen, np.abs(chosen - np.median(lengths))))[0])
    longest = int(np.argmax(lengths))
    return [median] if longest == median else [median, longest]


def rank_drawn(
    context: RankContext,
    timeline: Timeline,
    collectives: Table,
    wait_end_ns: Int64Array,
    tables: RankTables,
    load_host: Callable[[], Table] | None,
) -> tuple[RankStep, ...]:
    """The steps to draw, split by class; the first with its streams and CPU threads."""
    found: list[RankStep] = []
    for window in context.drawn:
        low, high = (int(ends[window]) if window < len(ends) else 0 for ends in context.windows)
        if high <= low:
            continue
        kind, end = _split(context, timeline, collectives, wait_end_ns, low, high)
        lanes: tuple[RankLane, ...] = ()
        if not found and context.is_explained:
            host = load_host() if load_host is not None and tables.has_host else tables.host
            lanes = (*_streams(tables.activity, low, high), *_threads(host, low, high))
        kind, end = fewer(kind, end - low, context.drawn_pieces)
        found.append(RankStep(window=window, kind=kind, end_ns=end, lanes=lanes))
    return tuple(found)


def _split(
    context: RankContext,
    timeline: Timeline,
    collectives: Table,
    wait_end_ns: Int64Array,
    low: int,
    high: int,
) -> tuple[Int64Array, Int64Array]:
    """Class and end of each piece in ``[low, high)``; pieces follow each other."""
    begun, ended = intervals_of(collectives)
    rows = np.flatnonzero((begun < high) & (ended > low))
    inside, until = collectives.take(rows), wait_end_ns[rows]
    wait, message_wait, transfer, unsplit = split_exposed(
        clip(timeline.exposed_comm, low, high), inside, until
    )
    messages = clip(timeline.message_wait, low, high)
    sets = {
        COMPUTATION: (clip(timeline.computation, low, high),),
        WAIT: (wait,),
        MESSAGE_WAIT: (message_wait, messages),
        UNSPLIT: (unsplit,),
        COPY: (clip(timeline.exposed_copy, low, high),),
    }
    start, end = intervals_of(inside)
    for axis in range(len(context.axis_names)):
        chosen = context.axis[rows] == axis
        if chosen.any() and transfer.size:
            of_axis = intersect(transfer, union(Intervals(start[chosen], end[chosen])))
            transfer = subtract(transfer, of_axis)
            sets[TRANSFER + axis] = (of_axis,)
    parts = [(kind, part) for kind, of_kind in sets.items() for part in of_kind if part.size]
    return _in_a_row(parts, low, high)


def _in_a_row(
    parts: list[tuple[int, Intervals]], low: int, high: int
) -> tuple[Int64Array, Int64Array]:
    """Disjoint sets as pieces in a row, with idle between them; neighbours of a class joined."""
    start = np.concatenate([EMPTY.start, *(part.start for _, part in parts)])
    end = np.concatenate([EMPTY.end, *(part.end for _, part in parts)])
    kind = np.concatenate([EMPTY.start, *(np.full(part.size, kind) for kind, part in parts)])
    order = np.argsort(start, kind="stable")
    start, end, kind = start[order], end[order], kind[order]
    edges = np.stack((start, end), axis=1).ravel()
    ends = np.append(edges, high)
    kinds = np.full(len(ends), IDLE, np.int64)  # before each piece, and after the last
    kinds[1::2] = kind
    return without_empty(kinds, ends, low)


def without_empty(kind: Int64Array, end: Int64Array, start: int) -> tuple[Int64Array, Int64Array]:
    """Pieces in a row without empty ones; neighbours of a class are joined."""
    kept = np.diff(end, prepend=start) > 0
    kind, end = kind[kept], end[kept]
    last = ends_of_runs(kind)
    return kind[last], end[last]


def fewer(kind: Int64Array, end_ns: Int64Array, most: int) -> tuple[Int64Array, Int64Array]:
    """At most ``most`` pieces of equal width, each of the class that is owed most time so far.

    The time of each class therefore stays right to within a piece, also that of gaps which are
    shorter than one.
    """
    if len(kind) <= most:
        return kind, end_ns
    edges = np.linspace(0, int(end_ns[-1]), most + 1).round().astype(np.int64)[1:]
    cuts = distinct(np.concatenate((end_ns, edges)))
    kinds = kind[np.searchsorted(end_ns, cuts)]
    cells = np.searchsorted(edges, cuts)
    used, code = encode(kinds)
    spent = np.zeros((most, len(used)))
    np.add.at(spent, (cells, code), np.diff(cuts, prepend=0))
    widths = np.diff(edges, prepend=0)
    owed, chosen = np.zeros(len(used)), np.empty(most, np.int64)
    for cell in range(most):
        owed += spent[cell]
        chosen[cell] = best = owed.argmax()
        owed[best] -= widths[cell]
    last = ends_of_runs(chosen)
    return used[chosen[last]], edges[last]


def _streams(activity: Table, low: int, high: int) -> Iterator[RankLane]:
    """The streams with most activity, by number."""
    start, end = intervals_of(activity)
    inside = (start < high) & (end > low) & (activity["kind"] != ActivityKind.ANNOTATION)
    rows = np.flatnonzero(inside)
    by_stream = parts_by(activity["stream"][rows], rows)
    busiest = sorted(by_stream, key=lambda stream: -len(by_stream[stream]))[:MOST_STREAMS]
    for stream in sorted(busiest):
        name = "stream unknown" if stream == ABSENT else f"stream {stream}"
        chosen = by_stream[stream]
        yield _lane(
            name, Intervals(start[chosen], end[chosen]), activity.coded("name"), chosen, low
        )


def _threads(host: Table, low: int, high: int) -> Iterator[RankLane]:
    """The threads with most operators and calls, each by level of nesting."""
    start, end = intervals_of(host)
    rows = np.flatnonzero((start < high) & (end > low) & (end > start))
    threads = host.coded("thread")
    by_thread = parts_by(threads.codes[rows].astype(np.int64), rows)
    busiest = sorted(by_thread, key=lambda code: -len(by_thread[code]))[:MOST_THREADS]
    for code in busiest:
        chosen = by_thread[code]
        chosen = chosen[np.lexsort((-end[chosen], start[chosen]))]
        level = _levels(start[chosen], end[chosen])
        for depth in range(min(int(level.max()) + 1, MOST_LEVELS)):
            at = chosen[level == depth]
            thread = threads.values[code].rpartition("/")[2]
            name = f"CPU thread {thread}" + (f", level {depth + 1}" if depth else "")
            yield _lane(name, Intervals(start[at], end[at]), host.coded("name"), at, low)


def _levels(start: Int64Array, end: Int64Array) -> Int64Array:
    """How many of the intervals before it, sorted by start, hold the start of each."""
    opened: list[int] = []
    levels = np.empty(len(start), np.int64)
    for place, (begin, until) in enumerate(zip(start.tolist(), end.tolist(), strict=True)):
        while opened and opened[-1] <= begin:
            opened.pop()
        levels[place] = len(opened)
        opened.append(until)
    return levels


def _lane(title: str, spans: Intervals, names: Coded, rows: Int64Array, low: int) -> RankLane:
    """A lane with its longest pieces, in order of start."""
    longest = np.argsort(spans.start - spans.end, kind="stable")[:MOST_IN_LANE]
    kept = longest[np.argsort(spans.start[longest], kind="stable")]
    used, code = encode(names.codes[rows[kept]])
    short = [shorten(names.values[place], _LONGEST_NAME) for place in used.tolist()]
    return RankLane(
        title=title,
        start_ns=spans.start[kept] - low,
        end_ns=spans.end[kept] - low,
        name=Coded.merged(code.astype(np.int32), short),
    )
