"""Step boundaries: on the host, or on the device if it runs behind the host.

The host marks steps. A device that runs behind executes the kernels of step N while the host is in
step N + 1, so cutting its timeline at the host's marks would charge the work of one step to
another. If the device runs behind, the windows are those of the device: step N begins once its mark
has begun and the main stream has ended what earlier steps launched there. The main stream is the
one that computes most. It runs in launch order, while side streams prefetch ahead of it.
"""

from __future__ import annotations

import re

import msgspec
import numpy as np
from numpy.typing import NDArray

from distprof.intervals import Intervals, index_of, union
from distprof.run.tables import STEPS, distinct, join_launches, main_stream
from distprof.schema import ABSENT, Coded, Int64Array, Table
from distprof.terms import ActivityKind, StepSource

LAG_RATIO = 0.01  # of the device behind the host, in steps, above which its windows are used
# A step was cut if its ratio of device activities to launches is below this share of the median.
MIN_EXECUTED_RATIO = 0.9
MOST_EMPTY = 0.05  # of a step, in which nothing may be recorded at the ends of the capture
_MARK_SLACK_NS = 1_000  # marks that overlap by no more only show how times were rounded
_PROFILER_STEP = re.compile(r"^ProfilerStep#(\d{1,18})$")
_OPTIMIZER_STEP = re.compile(r"^Optimizer\.step#")


class Steps(msgspec.Struct, frozen=True, kw_only=True):
    """Steps of one rank and how they were found."""

    table: Table  # STEPS table.
    source: StepSource  # How they were found.
    note: str  # How they were found, as one sentence.
    num_overlapping: int = 0  # Marks that reach into the next one.
    num_empty: int = 0  # First and last marks of which a part holds no event.


class _Marks(msgspec.Struct, frozen=True, kw_only=True):
    """Steps as the host marks them: numbers, windows, and whether each is complete."""

    step: Int64Array
    start: Int64Array
    end: Int64Array
    complete: NDArray[np.bool_]
    source: StepSource
    word: str
    num_overlapping: int = 0

    def table(self) -> Table:
        return _table(self.step, self.start, self.end, self.complete)


def _table(step: Int64Array, start: Int64Array, end: Int64Array, complete: object) -> Table:
    whole = np.full(len(step), complete, dtype=np.bool_)
    return Table(STEPS, {"step": step, "start_ns": start, "end_ns": end, "complete": whole})


def find_steps(activity: Table, host: Table, *, first_ns: int, last_ns: int) -> Steps:
    """The steps of one rank in order of time, from its device's activity; windows never overlap.

    ``host`` has at least runtime calls and annotations, or is empty. ``first_ns`` and ``last_ns``
    are the start of the first and the end of the last event of any kind. The source says how steps
    were found: from the host's ProfilerStep annotations, else from the ends of Optimizer.step, else
    the capture as one window; DEVICE if the device runs more than 1 % of a step behind.
    """
    work = activity.take(np.flatnonzero(activity["kind"] != ActivityKind.ANNOTATION))
    marks = _profiler_steps(host) or _optimizer_steps(host, first_ns, last_ns)
    if marks is None:
        return _device_ranges(activity) or _capture(work, first_ns, last_ns)
    found = _steps_of(activity, work, host, marks)
    empty = _num_empty(marks, host, work)
    return msgspec.structs.replace(found, num_overlapping=marks.num_overlapping, num_empty=empty)


def _num_empty(marks: _Marks, host: Table, work: Table) -> int:
    """Whether the first mark begins long before all events, plus whether the last ends long after.

    Marks are written by the code that launches: right before its first event, right after its last.
    A program that waits or saves there without any event does so in its other steps, too; with one
    step, other ranks show it (:mod:`distprof.join.invariants`).
    """
    names = host.coded("name")
    events = ~names.where([bool(_PROFILER_STEP.match(value)) for value in names.values])
    if marks.source is not StepSource.PROFILER_STEP or not events.any():
        return 0
    first, last = int(host["start_ns"][events].min()), int(host["end_ns"][events].max())
    if len(work):
        first, last = min(first, int(work["start_ns"].min())), max(last, int(work["end_ns"].max()))
    length = marks.end - marks.start
    before, after = first - marks.start[0], marks.end[-1] - last
    is_early, is_late = before > MOST_EMPTY * length[0], after > MOST_EMPTY * length[-1]
    if len(length) < 2 or not (is_early or is_late):
        return int(is_early) + int(is_late)
    start = np.sort(np.concatenate((host["start_ns"][events], work["start_ns"])))
    end = np.sort(np.concatenate((host["end_ns"][events], work["end_ns"])))
    at = np.minimum(np.searchsorted(start, marks.start[1:]), len(start) - 1)
    usual_before = int((start[at] - marks.start[1:]).max())
    at = np.maximum(np.searchsorted(end, marks.end[:-1], side="right") - 1, 0)
    usual_after = int((marks.end[:-1] - end[at]).max())
    return int(is_early and before > 2 * usual_before) + int(is_late and after > 2 * usual_after)


def _steps_of(activity: Table, work: Table, host: Table, marks: _Marks) -> Steps:
    """Steps by the marks of the host, or by the device if it runs behind."""
    if len(work) == 0:
        return Steps(table=marks.table(), source=marks.source, note=_host_note(marks))
    launch = join_launches(work["correlation"], host).start
    launched = np.where(
        launch != ABSENT, index_of(launch, Intervals(marks.start, marks.end)), ABSENT
    )
    main = main_stream(work)
    if not (launched[main] >= 0).any():
        return _device_ranges(activity) or Steps(
            table=marks.table(),
            source=marks.source,
            note=f"{_host_note(marks)} No launch record shows where they are on the GPU.",
        )
    lag = _lag_ratio(work["end_ns"][main], launched[main], marks)
    if lag <= LAG_RATIO:
        return Steps(table=marks.table(), source=marks.source, note=_host_note(marks))
    table = _device_windows(work, launched, main, marks, _cut(launched, host, marks))
    note = (
        f"The GPU runs up to {100 * lag:.0f} % of a step behind the CPU: a step begins once its "
        f"{marks.word} has begun and the main GPU stream has ended the kernels of the one before."
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
    times = host["start_ns"][rows], host["end_ns"][rows]
    step, start, end = _merge_by_number(numbers, *times)
    complete = np.ones(len(step), dtype=np.bool_)
    complete[-1] = not _unfinished(host, start, end)
    order = np.argsort(times[0], kind="stable")
    return _Marks(
        step=step,
        start=start,
        end=end,
        complete=complete,
        source=StepSource.PROFILER_STEP,
        word="ProfilerStep",
        num_overlapping=int((times[1][order][:-1] > times[0][order][1:] + _MARK_SLACK_NS).sum()),
    )


def _numbered(names: Coded) -> tuple[Int64Array, Int64Array]:
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
    index = index_of(host["start_ns"][_optimizer_rows(host)], Intervals(start, end))
    counts = np.bincount(index[index >= 0], minlength=len(start))
    return bool((counts[:-1] > 0).all() and counts[-1] == 0)


def _optimizer_rows(host: Table) -> NDArray[np.intp]:
    names = host.coded("name")
    found = names.where([bool(_OPTIMIZER_STEP.match(value)) for value in names.values])
    return np.flatnonzero(found)


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
    rows = _optimizer_rows(host)
    codes = host.coded("name").codes[rows]
    best: Int64Array = np.empty(0, dtype=np.int64)
    for code in distinct(codes):
        own = rows[codes == code]
        ends = union(Intervals(host["start_ns"][own], host["end_ns"][own])).end
        if len(best) == 0 or (len(ends), -ends[-1:].sum()) < (len(best), -best[-1]):
            best = ends
    return best


def _lag_ratio(ends: Int64Array, launched: Int64Array, marks: _Marks) -> float:
    """Longest time from a step's end to the end of its last activity, as a share of the step."""
    known = launched >= 0
    last = np.full(len(marks.step), np.iinfo(np.int64).min)
    np.maximum.at(last, launched[known], ends[known])
    busy = last > np.iinfo(np.int64).min
    late = (last - marks.end)[busy]
    length = np.maximum(marks.end - marks.start, 1)[busy]
    return float((late / length).max(initial=0.0))


def _device_windows(
    work: Table,
    launched: Int64Array,
    main: NDArray[np.bool_],
    marks: _Marks,
    cut: NDArray[np.bool_],
) -> Table:
    """Contiguous windows: a step begins once its CPU has begun it and the GPU has ended the last.

    So a GPU that is behind is measured by its own work, and a CPU that pauses before its first
    launch pauses in its own step.
    """
    count = len(marks.step)
    begins = main & (launched >= 0)
    first = np.full(count, np.iinfo(np.int64).max)
    np.minimum.at(first, launched[begins], work["start_ns"][begins])
    idle = first == np.iinfo(np.int64).max  # nothing launched: the host's mark is all there is
    first[idle] = marks.start[idle]
    before = main & (launched < 0) & (work["start_ns"] < first[0])
    done = np.full(count + 1, np.iinfo(np.int64).min)
    done[0] = work["end_ns"][before].max(initial=np.iinfo(np.int64).min)
    np.maximum.at(done, launched[begins] + 1, work["end_ns"][begins])
    done = np.maximum.accumulate(done)
    # Activities that were launched last and never ran would have run after all others.
    unseen = idle & cut & (np.arange(count) > launched[begins].max(initial=ABSENT))
    first[unseen] = np.maximum(first[unseen], done[-1])
    start = np.maximum.accumulate(np.minimum(first, np.maximum(marks.start, done[:-1])))
    last = work["end_ns"][launched == count - 1].max(initial=max(marks.end[-1], start[-1]))
    return _table(marks.step, start, np.append(start[1:], last), marks.complete & ~cut)


def _cut(launched: Int64Array, host: Table, marks: _Marks) -> NDArray[np.bool_]:
    """Steps whose launches lack device activities, because the capture ended before they ran."""
    names, words = host.coded("name"), ("Launch", "Memcpy", "Memset")  # of kernels, graphs, copies
    rows = names.where([any(word in value for word in words) for value in names.values])
    called = host["start_ns"][rows & host.coded("category").isin(("runtime", "driver"))]
    index = index_of(called, Intervals(marks.start, marks.end))
    calls = np.bincount(index[index >= 0], minlength=len(marks.step))
    kernels = np.bincount(launched[launched >= 0], minlength=len(marks.step))
    ratio = kernels / np.maximum(calls, 1)
    usual = float(np.median(ratio))
    return (calls > 0) & (ratio < MIN_EXECUTED_RATIO * usual)


def _device_ranges(activity: Table) -> Steps | None:
    """Windows from ProfilerStep ranges on the device, for reads without launch records."""
    ranges = activity.take(activity["kind"] == ActivityKind.ANNOTATION)
    numbers, rows = _numbered(ranges.coded("name"))
    if len(rows) == 0:
        return None
    step, start, end = _merge_by_number(numbers, ranges["start_ns"][rows], ranges["end_ns"][rows])
    end[:-1] = start[1:]
    note = "Step windows are the ProfilerStep ranges on the GPU."
    return Steps(table=_table(step, start, end, True), source=StepSource.DEVICE, note=note)


def _capture(work: Table, first_ns: int, last_ns: int) -> Steps:
    if len(work):
        first_ns, last_ns = int(work["start_ns"].min()), int(work["end_ns"].max())
    step, start, end = (np.array([one]) for one in (0, first_ns, max(last_ns, first_ns)))
    table = _table(step, start, end, True)
    note = "The trace has no step marks: the whole capture is one step window."
    return Steps(table=table, source=StepSource.CAPTURE, note=note)
