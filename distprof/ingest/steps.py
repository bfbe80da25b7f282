"""Step boundaries: on the host, or on the device if it runs behind the host.

The host marks steps. A device that runs behind executes the kernels of step N while the host is in
step N + 1, so cutting its timeline at the host's marks would charge the work of one step to
another. If the device runs behind, the windows are those of the device: from the first activity
that step N launched on the main stream to the first one that step N + 1 launched there. The main
stream is the one that computes most. It runs in launch order, while side streams prefetch ahead of
it.
"""

from __future__ import annotations

import re

import msgspec
import numpy as np
from numpy.typing import NDArray

from distprof.intervals import Intervals, union
from distprof.run.tables import STEPS, distinct, encode, join_launches
from distprof.schema import ABSENT, Coded, Int64Array, Table
from distprof.terms import ActivityKind, StepSource

__all__ = ["Steps", "find_steps"]

LAG_RATIO = 0.01
"""Lag of the device behind the host, as a share of a step, above which its own windows are used."""

MIN_EXECUTED_RATIO = 0.9
"""A step was cut if its ratio of device activities to launches is below this share of the median.
"""

_PROFILER_STEP = re.compile(r"^ProfilerStep#(\d{1,18})$")
_OPTIMIZER_STEP = re.compile(r"^Optimizer\.step#")


class Steps(msgspec.Struct, frozen=True, kw_only=True):
    """Steps of one rank and how they were found.

    Args:
        table: STEPS table.
        source: How they were found.
        note: How they were found, as one sentence.
    """

    table: Table
    source: StepSource
    note: str


class _Marks(msgspec.Struct, frozen=True, kw_only=True):
    """Steps as the host marks them: numbers, windows, and whether each is complete."""

    step: Int64Array
    start: Int64Array
    end: Int64Array
    complete: NDArray[np.bool_]
    source: StepSource
    word: str

    def table(self) -> Table:
        """The STEPS table of these windows."""
        columns = {
            "step": self.step,
            "start_ns": self.start,
            "end_ns": self.end,
            "complete": self.complete,
        }
        return Table(STEPS, columns)


def find_steps(activity: Table, host: Table, *, first_ns: int, last_ns: int) -> Steps:
    """The steps of one rank.

    Args:
        activity: ACTIVITY table of the device.
        host: HOST table with at least runtime calls and annotations; may be empty.
        first_ns: Start of the first event of any kind.
        last_ns: End of the last event of any kind.

    Returns:
        Steps in order of time. Windows never overlap. The source says how they were found: from the
        host's ProfilerStep annotations, else from the ends of Optimizer.step, else the capture as
        one window; DEVICE if the device runs more than 1 % of a step behind.
    """
    work = activity.take(np.flatnonzero(activity["kind"] != ActivityKind.ANNOTATION))
    marks = _profiler_steps(host) or _optimizer_steps(host, first_ns, last_ns)
    if marks is None:
        return _device_ranges(activity) or _capture(work, first_ns, last_ns)
    if len(work) == 0:
        return Steps(table=marks.table(), source=marks.source, note=_host_note(marks))
    called, launched = _launching_step(work, host, marks)
    main = _main_stream(work)
    if not (launched[main] >= 0).any():
        return _device_ranges(activity) or Steps(
            table=marks.table(),
            source=marks.source,
            note=f"{_host_note(marks)} No launch record shows where they are on the GPU.",
        )
    lag = _lag_ratio(work["end_ns"][main], launched[main], marks)
    if lag <= LAG_RATIO:
        return Steps(table=marks.table(), source=marks.source, note=_host_note(marks))
    begins = marks.end[-1] + _usual_delay(called[main], launched[main], marks)
    table = _device_windows(work, launched, main, marks, _cut(launched, host, marks), begins)
    note = (
        f"The GPU runs up to {100 * lag:.0f} % of a step behind the CPU: a step window on the "
        f"main GPU stream goes from the first kernel that a {marks.word} launched to the first "
        "kernel of the next."
    )
    return Steps(table=table, source=StepSource.DEVICE, note=note)


def _host_note(marks: _Marks) -> str:
    if marks.source is StepSource.OPTIMIZER:
        return "Steps end where Optimizer.step annotations end on the CPU."
    return "Step windows are the ProfilerStep annotations on the CPU."


def _profiler_steps(host: Table) -> _Marks | None:
    numbers, rows = _numbered(host.coded("name"))
    if len(rows) == 0:
        return None
    step, start, end = _merge_by_number(numbers, host["start_ns"][rows], host["end_ns"][rows])
    complete = np.ones(len(step), dtype=np.bool_)
    complete[-1] = not _unfinished(host, start, end)
    return _Marks(
        step=step,
        start=start,
        end=end,
        complete=complete,
        source=StepSource.PROFILER_STEP,
        word="ProfilerStep",
    )


def _numbered(names: Coded) -> tuple[Int64Array, Int64Array]:
    """Number and row of each ProfilerStep annotation."""
    matches = [_PROFILER_STEP.match(value) for value in names.values]
    numbers = np.array([int(m.group(1)) if m else ABSENT for m in matches], dtype=np.int64)
    if len(numbers) == 0:
        return numbers, numbers
    of_row: Int64Array = numbers[names.codes]
    rows = np.flatnonzero(of_row >= 0)
    return of_row[rows], rows


def _merge_by_number(
    numbers: Int64Array, start: Int64Array, end: Int64Array
) -> tuple[Int64Array, Int64Array, Int64Array]:
    """One window per step number, in order of time, without overlap."""
    step, which = np.unique(numbers, return_inverse=True)
    first = np.full(len(step), np.iinfo(np.int64).max)
    last = np.full(len(step), np.iinfo(np.int64).min)
    np.minimum.at(first, which, start)
    np.maximum.at(last, which, end)
    order = np.argsort(first, kind="stable")
    step, first, last = step[order], first[order], last[order]
    last[:-1] = np.minimum(last[:-1], first[1:])
    return step, first, last


def _unfinished(host: Table, start: Int64Array, end: Int64Array) -> bool:
    """Whether the last step lacks an optimizer step that every earlier step has."""
    if len(start) < 2:
        return False
    steps = host["start_ns"][_rows_named(host, _OPTIMIZER_STEP)]
    index = np.searchsorted(start, steps, side="right") - 1
    inside = (index >= 0) & (steps < end[np.maximum(index, 0)])
    counts = np.bincount(index[inside], minlength=len(start))
    return bool((counts[:-1] > 0).all() and counts[-1] == 0)


def _rows_named(host: Table, pattern: re.Pattern[str]) -> NDArray[np.intp]:
    names = host.coded("name")
    rows: NDArray[np.intp] = np.flatnonzero(
        names.where([bool(pattern.match(value)) for value in names.values])
    )
    return rows


def _optimizer_steps(host: Table, first_ns: int, last_ns: int) -> _Marks | None:
    """Windows between the ends of optimizer steps; parts before and after are incomplete."""
    ends = _optimizer_ends(host)
    if len(ends) < 2:
        return None
    bounds = np.concatenate(([min(first_ns, ends[0])], ends, [max(last_ns, ends[-1])]))
    bounds = bounds.astype(np.int64)
    complete = np.ones(len(bounds) - 1, dtype=np.bool_)
    complete[[0, -1]] = False
    return _Marks(
        step=np.arange(len(complete), dtype=np.int64),
        start=bounds[:-1],
        end=bounds[1:],
        complete=complete,
        source=StepSource.OPTIMIZER,
        word="optimizer step",
    )


def _optimizer_ends(host: Table) -> Int64Array:
    """Step ends of the optimizer that steps least often; of several, the one that ends last."""
    rows = _rows_named(host, _OPTIMIZER_STEP)
    codes = host.coded("name").codes[rows]
    best: Int64Array = np.empty(0, dtype=np.int64)
    for code in distinct(codes):
        own = rows[codes == code]
        ends = union(Intervals(host["start_ns"][own], host["end_ns"][own])).end
        if len(best) == 0 or (len(ends), -ends[-1:].sum()) < (len(best), -best[-1]):
            best = ends
    return best


def _launching_step(work: Table, host: Table, marks: _Marks) -> tuple[Int64Array, Int64Array]:
    """When each activity was launched, and the index of the step that did; ABSENT if unknown."""
    launch = join_launches(work["correlation"], host).start
    index = np.searchsorted(marks.start, launch, side="right") - 1
    known = (launch != ABSENT) & (index >= 0)
    known &= launch < marks.end[np.maximum(index, 0)]
    return launch, np.where(known, index, ABSENT).astype(np.int64)


def _usual_delay(called: Int64Array, launched: Int64Array, marks: _Marks) -> int:
    """Median delay from a step's mark to its first launch onto the main stream, ns."""
    known = launched >= 0
    first = np.full(len(marks.step), np.iinfo(np.int64).max)
    np.minimum.at(first, launched[known], called[known])
    some = first < np.iinfo(np.int64).max
    return int(np.median((first - marks.start)[some])) if some.any() else 0


def _lag_ratio(ends: Int64Array, launched: Int64Array, marks: _Marks) -> float:
    """Longest time from a step's end to the end of its last activity, as a share of the step."""
    known = launched >= 0
    last = np.full(len(marks.step), np.iinfo(np.int64).min)
    np.maximum.at(last, launched[known], ends[known])
    busy = last > np.iinfo(np.int64).min
    late = (last - marks.end)[busy]
    length = np.maximum(marks.end - marks.start, 1)[busy]
    return float((late / length).max(initial=0.0))


def _main_stream(work: Table) -> NDArray[np.bool_]:
    """Mask of the activities on the stream that computes most, or is busiest if none computes."""
    streams, which = encode(work["stream"] - ABSENT)  # from 0 on, which are encoded faster
    busy = (work["end_ns"] - work["start_ns"]).astype(np.float64)
    computing = work["kind"] == ActivityKind.COMPUTATION
    if computing.any():
        busy = np.where(computing, busy, 0.0)
    totals = np.bincount(which, weights=busy, minlength=len(streams))
    mask: NDArray[np.bool_] = which == int(totals.argmax())
    return mask


def _device_windows(
    work: Table,
    launched: Int64Array,
    main: NDArray[np.bool_],
    marks: _Marks,
    cut: NDArray[np.bool_],
    next_ns: int,
) -> Table:
    """Contiguous windows on the device's timeline.

    The last window ends where the next step would begin: at its own last activity if the CPU was
    ahead, else when the CPU would have launched the first activity of the next step (``next_ns``).
    So a stall at the end of the last step belongs to it, as in all other steps.
    """
    count = len(marks.step)
    begins = main & (launched >= 0)
    first = np.full(count, np.iinfo(np.int64).max)
    np.minimum.at(first, launched[begins], work["start_ns"][begins])
    idle = first == np.iinfo(np.int64).max  # nothing launched: the host's mark is all there is
    first[idle] = marks.start[idle]
    # Activities that were launched last and never ran would have run after all others.
    unseen = idle & cut & (np.arange(count) > launched[begins].max(initial=ABSENT))
    done = work["end_ns"][begins].max(initial=marks.start[0])
    first[unseen] = np.maximum(first[unseen], done)
    start = np.maximum.accumulate(first)
    last = work["end_ns"][launched == count - 1].max(
        initial=max(marks.end[-1], start[-1]) if idle[-1] else start[-1]
    )
    columns = {
        "step": marks.step,
        "start_ns": start,
        "end_ns": np.append(start[1:], max(last, next_ns)),
        "complete": marks.complete & ~cut,
    }
    return Table(STEPS, columns)


def _cut(launched: Int64Array, host: Table, marks: _Marks) -> NDArray[np.bool_]:
    """Steps whose launches lack device activities, because the capture ended before they ran."""
    called = _kernel_launches(host)
    index = np.searchsorted(marks.start, called, side="right") - 1
    inside = (index >= 0) & (called < marks.end[np.maximum(index, 0)])
    calls = np.bincount(index[inside], minlength=len(marks.step))
    kernels = np.bincount(launched[launched >= 0], minlength=len(marks.step))
    ratio = kernels / np.maximum(calls, 1)
    usual = float(np.median(ratio))
    cut: NDArray[np.bool_] = (calls > 0) & (ratio < MIN_EXECUTED_RATIO * usual)
    return cut


def _kernel_launches(host: Table) -> Int64Array:
    """Starts of the calls that launch kernels, graphs or copies, int64 ns."""
    names = host.coded("name")
    words = ("Launch", "Memcpy", "Memset")
    rows = names.where([any(word in value for word in words) for value in names.values])
    rows &= host.coded("category").isin(("runtime", "driver"))
    starts: Int64Array = host["start_ns"][rows]
    return starts


def _device_ranges(activity: Table) -> Steps | None:
    """Windows from ProfilerStep ranges on the device, for reads without launch records."""
    ranges = activity.take(activity["kind"] == ActivityKind.ANNOTATION)
    numbers, rows = _numbered(ranges.coded("name"))
    if len(rows) == 0:
        return None
    step, start, end = _merge_by_number(numbers, ranges["start_ns"][rows], ranges["end_ns"][rows])
    end[:-1] = start[1:]
    table = Table(
        STEPS,
        {
            "step": step,
            "start_ns": start,
            "end_ns": end,
            "complete": np.ones(len(step), dtype=np.bool_),
        },
    )
    note = "Step windows are the ProfilerStep ranges on the GPU."
    return Steps(table=table, source=StepSource.DEVICE, note=note)


def _capture(work: Table, first_ns: int, last_ns: int) -> Steps:
    """The whole capture as one window."""
    if len(work):
        first_ns, last_ns = int(work["start_ns"].min()), int(work["end_ns"].max())
    table = Table(
        STEPS,
        {
            "step": np.zeros(1, dtype=np.int64),
            "start_ns": np.array([first_ns], dtype=np.int64),
            "end_ns": np.array([max(last_ns, first_ns)], dtype=np.int64),
            "complete": np.ones(1, dtype=np.bool_),
        },
    )
    note = "The trace has no step marks: the whole capture is one step window."
    return Steps(table=table, source=StepSource.CAPTURE, note=note)
