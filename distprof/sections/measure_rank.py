"""Everything that is measured on one rank alone, from its tables and its windows."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from distprof.intervals import EMPTY, Intervals, covered, subtract, union
from distprof.run.tables import RankTables, encode, intervals_of
from distprof.schema import ABSENT, Int64Array, Table
from distprof.sections.collectives.trains import measure_trains
from distprof.sections.context import MainLine, RankAnalysis, RankContext, StageSlots
from distprof.sections.gradients.traffic import gradient_traffic
from distprof.sections.idle.measure import IdleCauses, attribute_idle
from distprof.sections.idle.result import RankIdle
from distprof.sections.input.measure import measure_input
from distprof.sections.kernels.measure import kernel_stats, kernel_steps
from distprof.sections.overlap.measure import overlap_by_axis, rank_overlap
from distprof.sections.pipeline.slots import (
    exposed_waits,
    measure_marks,
    measure_slots,
    message_waits,
    needed_at,
)
from distprof.sections.stragglers.sequences import attention_time
from distprof.sections.time.copies import measure_copies
from distprof.sections.time.measure import (
    Timeline,
    break_down,
    rank_waterfall,
    timeline_of,
    waits_of,
)
from distprof.sections.whatif.segments import StageLine, main_line
from distprof.terms import ActivityKind, IdleCause

__all__ = ["among_kernels", "begins_beside", "capture_window", "measure_rank"]

BEGINNING_NS = 20_000
"""A kernel ends and the next one starts within less."""

_LEAST_SHARE = 0.2
"""Streams of copies and of reductions that accompany communication compute less than this."""


def begins_beside(collectives: Table, computation: Intervals) -> NDArray[np.bool_]:
    """For each row, whether computation covers most of its first 20 µs.

    Something that was asked for ahead begins while what was asked for before is computed; something
    that is needed at once begins when the computation before it has ended.
    """
    start, end = intervals_of(collectives)
    beginning = Intervals(start, np.minimum(end, start + BEGINNING_NS))
    length = beginning.end - beginning.start
    beside: NDArray[np.bool_] = (2 * covered(beginning, computation) >= length) & (length > 0)
    return beside


def among_kernels(tables: RankTables, *, is_cpu: bool) -> NDArray[np.bool_]:
    """For each row of COLLECTIVES, whether its stream holds a fifth of all computation or more.

    Work of one stream follows in order: a collective there hides behind nothing. Empty on a CPU,
    whose threads are no streams.
    """
    if is_cpu:
        return np.empty(0, np.bool_)
    rows = tables.activity["kind"] == ActivityKind.COMPUTATION
    start, end = intervals_of(tables.activity)
    streams, which = encode(tables.activity["stream"][rows])
    busy = np.bincount(which, weights=(end - start)[rows], minlength=len(streams))
    main = streams[(busy >= _LEAST_SHARE * busy.sum()) & (busy > 0) & (streams != ABSENT)]
    among: NDArray[np.bool_] = np.isin(tables.collectives["stream"], main)
    return among


# Everything that is measured on one rank alone, from its tables and its windows ------------------

NOTED_LATE_NS = 500_000
"""A gloo thread may note a collective's end this long after the training thread continued."""


def measure_rank(tables: RankTables, context: RankContext) -> RankAnalysis:
    """Measure one rank inside its windows.

    Pure: the same tables and context give the same analysis. Linear in the rows but for sorting
    them; the number of windows adds only a search each.

    Args:
        tables: The rank's tables.
        context: Its windows, and what matching found out about its collectives.

    Raises:
        ValueError: If the context does not fit the tables.
    """
    _check(tables, context)
    rank, windows = context.rank, context.windows
    timeline = timeline_of(tables.activity)
    steps = break_down(rank, context.steps, windows, timeline)
    inside = _starts_inside(tables.activity, windows)
    idle_ns = sum(step.idle_ns for step in steps)
    causes = attribute_idle(tables, timeline, windows) if tables.has_host else None
    idle = _rank_idle(rank, idle_ns, windows, causes, tables.activity, inside) if causes else None
    exposed_ns, exposed_wait_ns = _exposed_rows(tables.collectives, context, timeline)
    window = _window_of(_moment_of(tables.collectives, context), windows)
    messages = message_waits(tables, context)
    slots = measure_slots(tables, context, timeline, messages)
    return RankAnalysis(
        rank=rank,
        steps=steps,
        overlap=rank_overlap(rank, windows, timeline),
        axes=overlap_by_axis(
            rank, windows, timeline, tables.collectives, context.axis, context.axis_names
        ),
        idle=idle,
        sync_calls=causes.sync_calls if causes else (),
        waterfall=rank_waterfall(
            rank, steps, windows, timeline, tables.collectives, context.wait_end_ns, idle
        ),
        kernels=kernel_stats(tables.activity, inside),
        kernel_steps=kernel_steps(tables.activity, windows),
        trains=()
        if context.is_cpu
        else measure_trains(tables.collectives, window, timeline.computation),
        copies=measure_copies(tables.activity, windows, timeline.exposed_copy),
        exposed_ns=exposed_ns,
        exposed_wait_ns=exposed_wait_ns,
        collective_step=window,
        input_ns=_per_window(windows, causes, IdleCause.INPUT),
        computation_ns=covered(windows, timeline.computation),
        idle_host_ns=_per_window(windows, causes, IdleCause.HOST),
        idle_comm_wait_ns=_per_window(windows, causes, IdleCause.COMM_WAIT),
        is_cpu=context.is_cpu,
        stages=measure_marks(tables, windows, timeline, is_cpu=context.is_cpu),
        slots=slots,
        message_wait_ns=exposed_waits(messages, timeline, windows),
        attention_ns=attention_time(tables.activity, windows),
        line=_line(tables, context, timeline, causes, slots),
        window_start_ns=windows.start,
        window_end_ns=windows.end,
        row_axis=context.axis,
        row_axis_names=context.axis_names,
        input=measure_input(tables, windows, timeline),
        row_hidden_ns=covered(intervals_of(tables.collectives), timeline.computation),
        row_begins_beside=begins_beside(tables.collectives, timeline.computation),
        row_among_kernels=among_kernels(tables, is_cpu=context.is_cpu),
        gradients=gradient_traffic(
            tables,
            context,
            timeline,
            causes.launches if causes else None,
            (window, exposed_ns, exposed_wait_ns),
        ),
    )


def _line(
    tables: RankTables,
    context: RankContext,
    timeline: Timeline,
    causes: IdleCauses | None,
    slots: StageSlots | None,
) -> MainLine | None:
    windows, stages = context.windows, None
    if windows.size and slots is not None and len(slots):
        stages = StageLine(
            slots=union(Intervals(slots.start_ns, slots.end_ns)),
            needed_ns=needed_at(tables.collectives, slots, int(windows.start[0])),
        )
    lag_ns = NOTED_LATE_NS if context.is_cpu else 0
    return main_line(tables, windows, timeline, causes, stages, lag_ns=lag_ns)


def capture_window(activity: Table) -> Intervals:
    """The whole capture as one window: the span of the device's activities.

    Communication and copies included, annotations not; no window where the device did nothing.
    """
    rows = activity["kind"] != ActivityKind.ANNOTATION
    if not rows.any():
        return EMPTY
    start, end = intervals_of(activity)
    return Intervals.of((int(start[rows].min()), int(end[rows].max())))


def _check(tables: RankTables, context: RankContext) -> None:
    rows = len(tables.collectives)
    if len(context.wait_end_ns) != rows or len(context.axis) != rows:
        raise ValueError(f"rank {context.rank}: the context is not about its {rows} collectives")
    start, end = context.windows
    if len(context.steps) != len(start):
        raise ValueError(f"rank {context.rank}: {len(context.steps)} steps, {len(start)} windows")
    if (end < start).any() or (start[1:] < end[:-1]).any():
        raise ValueError(f"rank {context.rank}: windows must be in order and disjoint")


def _starts_inside(activity: Table, windows: Intervals) -> NDArray[np.bool_]:
    """Mask of the activities that start inside a window."""
    start = activity["start_ns"]
    if windows.size == 0:
        return np.zeros(len(start), dtype=np.bool_)
    at = np.searchsorted(windows.start, start, side="right") - 1
    result: NDArray[np.bool_] = (at >= 0) & (start < windows.end[np.maximum(at, 0)])
    return result


def _moment_of(collectives: Table, context: RankContext) -> Int64Array:
    """For each row, the moment that says to which window it belongs.

    That is its last nanosecond, as a device's step lasts until all that it launched has ended. A
    step on the host ends when training continues, which may be before a backend's thread has: there
    it is the moment when it was asked for.
    """
    start, end = intervals_of(collectives)
    if context.is_cpu and not context.is_capture:
        asked = collectives["enqueue_ns"]
        return np.where(asked == ABSENT, start, asked)
    return np.maximum(start, end - 1)


def _window_of(moment: Int64Array, windows: Intervals) -> Int64Array:
    """For each moment, the window that holds it; ABSENT where none does."""
    if windows.size == 0:
        return np.full(len(moment), ABSENT, dtype=np.int64)
    at = np.searchsorted(windows.start, moment, side="right") - 1
    held = (at >= 0) & (moment < windows.end[np.maximum(at, 0)])
    return np.where(held, at, ABSENT).astype(np.int64)


def _exposed_rows(
    collectives: Table, context: RankContext, timeline: Timeline
) -> tuple[Int64Array, Int64Array]:
    """For each collective, its exposed time inside the windows, and that of its wait.

    What several collectives expose at the same time is counted once, as it is lost once: with the
    wait, if one of them waits, else with the transfer; with the one that began it first. Rows so
    add up to the rank's exposed communication.
    """
    idle_of_work = subtract(union(context.windows), timeline.computation)
    waiting = waits_of(collectives, context.wait_end_ns)
    waits = covered(_own_part(waiting), idle_of_work)
    moving = Intervals(waiting.end, collectives["end_ns"])
    transfers = covered(_own_part(moving), subtract(idle_of_work, union(waiting)))
    return waits + transfers, np.where(context.wait_end_ns == ABSENT, ABSENT, waits)


def _own_part(intervals: Intervals) -> Intervals:
    """Of each interval what no interval that began earlier covers, its beginning cut off."""
    start, end = intervals
    order = np.argsort(start, kind="stable")
    covered_until = np.empty_like(end)
    covered_until[order] = np.concatenate(
        (start[order[:1]], np.maximum.accumulate(end[order])[:-1])
    )
    own_start = np.maximum(start, covered_until)
    return Intervals(own_start, np.maximum(own_start, end))


def _per_window(windows: Intervals, causes: IdleCauses | None, cause: IdleCause) -> Int64Array:
    return covered(windows, causes.causes[cause] if causes else EMPTY)


def _rank_idle(
    rank: int,
    idle_ns: int,
    windows: Intervals,
    causes: IdleCauses,
    activity: Table,
    inside: NDArray[np.bool_],
) -> RankIdle:
    """Causes as totals; what no cause explains is unknown, so that they add up."""
    ns = {cause: int(_per_window(windows, causes, cause).sum()) for cause in causes.causes}
    is_kernel = inside & np.isin(
        activity["kind"], (ActivityKind.COMPUTATION, ActivityKind.COMMUNICATION)
    )
    duration = (activity["end_ns"] - activity["start_ns"])[is_kernel]
    launched = is_kernel & causes.launched
    late = int((launched & causes.late).sum())
    return RankIdle(
        rank=rank,
        idle_ns=idle_ns,
        input_ns=ns[IdleCause.INPUT],
        sync_ns=ns[IdleCause.SYNC],
        host_ns=ns[IdleCause.HOST],
        comm_wait_ns=ns[IdleCause.COMM_WAIT],
        unknown_ns=idle_ns - sum(ns.values()),
        within_launch_ns=int(covered(windows, causes.within_launch).sum()),
        num_kernels=len(duration),
        median_kernel_ns=int(np.median(duration)) if len(duration) else None,
        late_launch_ratio=late / int(launched.sum()) if launched.any() else None,
    )
