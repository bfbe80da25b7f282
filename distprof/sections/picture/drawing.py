"""One step of all ranks put on the common clock, folded and packed; with its waits and repairs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from distprof.intervals import Intervals
from distprof.join.waits import MemberBlocks
from distprof.run.run import Rank, Run
from distprof.run.tables import distinct, intervals_of
from distprof.schema import ABSENT, Coded, Int64Array, Table
from distprof.sections.context import RankAnalyses, RankAnalysis, RankStep, StageSlots
from distprof.sections.picture import (
    CLASSES,
    TRANSFER,
    AlikeRanks,
    DrawnLane,
    DrawnRank,
    DrawnStep,
    DrawnWait,
    StepPicture,
    encode_numbers,
    packed_split,
)
from distprof.sections.picture.repaired import repaired_steps
from distprof.sections.whatif import RepairPlan
from distprof.sections.whatif.plan import Simulation
from distprof.terms import CollectiveKind, SlotKind
from distprof.units import format_bytes

UNITS = 1 << 18
"""Units of a step: 1.5 µs in one of 400 ms."""

MOST_ROWS = 16
"""Ranks above which those that are alike are folded, and most rows after that."""

ALIKE_RATIO = 0.04
"""Share of the step that ranks of one row may spend differently."""

MOST_WAITS = 12
MOST_CALLS = 300_000
"""Collectives and slots of all ranks in a step; above that, they are left out."""

_BINS = 64


class _Placed(msgspec.Struct, frozen=True, kw_only=True):
    """The drawn steps of ranks on one clock."""

    analysis: RankAnalysis
    rank: Rank
    step: RankStep
    start_ns: int  # Start of the window, since the first rank's.


def draw_step(
    run: Run, analyses: RankAnalyses, simulation: Simulation | None, plan: RepairPlan
) -> StepPicture:
    """The step of median length, drawn for every rank, and after the repairs of the plan."""
    first = next((one for one in analyses.values() if one.drawn), None)
    if first is None:
        return StepPicture()
    axes = tuple(sorted({axis for one in analyses.values() for axis in one.row_axis_names}))
    placed = [_placed(run, analyses, step.window) for step in first.drawn]
    groups = alike_ranks(placed[0][0])
    kinds = ("median", "longest") if analyses.window == "steps" else ("capture",)
    steps = [
        _step(run, axes, of_step, kind) for (of_step, _), kind in zip(placed, kinds, strict=False)
    ]
    if simulation is not None:
        shown = [group.shown for group in groups]
        windows = [step.window for step in first.drawn]
        unit_of = {at: step.unit_ns for at, step in zip(windows, steps, strict=False)}
        repaired = [*repaired_steps(simulation, plan, shown, axes, unit_of)]
        steps = [
            msgspec.structs.replace(step, repaired=tuple(one for of, one in repaired if of == at))
            for at, step in zip(windows, steps, strict=False)
        ]
    is_one_clock = placed[0][1]
    return StepPicture(
        axes=axes,
        groups=groups,
        steps=tuple(steps),
        is_one_clock=is_one_clock,
        notes=tuple(_notes(placed[0][0], is_one_clock)),
    )


def _notes(placed: Sequence[_Placed], is_one_clock: bool) -> Iterator[str]:
    if not is_one_clock:
        yield "Clocks of different ranks cannot be compared, so the step of each rank begins at 0."
    if sum(map(_calls_in, placed)) > MOST_CALLS:
        yield "Single collectives are left out: there are too many."


def _placed(run: Run, analyses: RankAnalyses, window: int) -> tuple[list[_Placed], bool]:
    """A drawn window of all ranks, and whether their starts are comparable."""
    found = [
        (one, step) for one in analyses.values() for step in one.drawn if step.window == window
    ]
    starts = [
        int(run.clock.to_common(one.rank, one.window_start_ns[window : window + 1])[0])
        for one, _ in found
    ]
    origin = min(starts)
    is_one_clock = max(starts) - origin <= max(int(step.end_ns[-1]) for _, step in found)
    placed = [
        _Placed(
            analysis=one,
            rank=run.rank(one.rank),
            step=step,
            start_ns=start - origin if is_one_clock else 0,
        )
        for (one, step), start in zip(found, starts, strict=True)
    ]
    return placed, is_one_clock


# Ranks that are alike ----------------------------------------------------------------------------


def alike_ranks(placed: Sequence[_Placed]) -> tuple[AlikeRanks, ...]:
    """Ranks folded into at most :data:`MOST_ROWS` rows: each rank goes to the most similar row.

    The first row shows the rank closest to the median of all; each further row the rank that is
    least like the rows so far, until all are alike. Up to :data:`MOST_ROWS` ranks, each is a row.
    """
    numbers = [one.rank.rank for one in placed]
    if len(numbers) <= MOST_ROWS:
        return tuple(AlikeRanks(ranks=(rank,), shown=rank) for rank in numbers)
    spent = np.stack([_spent(one.step) for one in placed])
    centre = int(np.abs(spent - np.median(spent, axis=0)).sum(axis=1).argmin())
    centres, nearest = [centre], np.zeros(len(numbers), np.int64)
    least = _unlike(spent, centre)
    while len(centres) < MOST_ROWS and least.max() > ALIKE_RATIO:
        centres.append(int(least.argmax()))
        distance = _unlike(spent, centres[-1])
        nearest[distance < least] = len(centres) - 1
        least = np.minimum(least, distance)
    found = [
        AlikeRanks(
            ranks=tuple(numbers[i] for i in np.flatnonzero(nearest == row).tolist()),
            shown=numbers[centre],
        )
        for row, centre in enumerate(centres)
    ]
    return tuple(sorted(found, key=lambda group: group.ranks))


def _spent(step: RankStep) -> Int64Array:
    """Share of the step in each class, in each of its :data:`_BINS` parts, as one row."""
    length = max(int(step.end_ns[-1]), 1)
    edges = np.linspace(0, length, _BINS + 1).astype(np.int64)[1:]
    cuts = distinct(np.concatenate((step.end_ns, edges)))
    kind = np.minimum(step.kind[np.searchsorted(step.end_ns, cuts)], TRANSFER)
    cell = np.searchsorted(edges, cuts)
    spent = np.bincount(
        cell * (TRANSFER + 1) + kind,
        np.diff(cuts, prepend=0) / length,
        minlength=_BINS * (TRANSFER + 1),
    )
    return spent


def _unlike(spent: Int64Array, row: int) -> Int64Array:
    """Share of the step that each rank spends differently from one of them."""
    difference: Int64Array = np.abs(spent - spent[row]).sum(axis=1) / 2
    return difference


# Packing ------------------------------------------------------------------------------------------


def _step(run: Run, axes: Sequence[str], placed: Sequence[_Placed], kind: str) -> DrawnStep:
    span = max(one.start_ns + int(one.step.end_ns[-1]) for one in placed)
    names: dict[str, int] = {}
    unit = max(-(-span // UNITS), 1)
    has_calls = sum(map(_calls_in, placed)) <= MOST_CALLS
    ranks = [
        DrawnRank(
            rank=one.rank.rank,
            split=packed_split(
                _common_kinds(one, axes), one.step.end_ns + one.start_ns, one.start_ns, unit
            ),
            lanes=tuple(_lanes(one, names, unit, has_calls=has_calls)),
        )
        for one in placed
    ]
    numbers = placed[0].analysis.steps
    window = placed[0].step.window
    return DrawnStep(
        kind=kind,
        step=None if kind == "capture" else numbers[window].step,
        mean_ns=round(sum(int(one.step.end_ns[-1]) for one in placed) / len(placed)),
        span_ns=span,
        unit_ns=unit,
        names=tuple(names),
        ranks=tuple(ranks),
        waits=tuple(_waits(run, placed, unit)) if len(placed) > 1 else (),
    )


def _common_kinds(one: _Placed, axes: Sequence[str]) -> Int64Array:
    """Classes of pieces, with axes numbered as in the picture."""
    own = np.array([axes.index(axis) for axis in one.analysis.row_axis_names], np.int64)
    numbers = np.concatenate((np.arange(len(CLASSES)), own + TRANSFER))
    return numbers[one.step.kind]


def packed_lane(spans: Intervals, name: Int64Array, unit: int) -> str:
    """Pieces of a lane, as in :attr:`DrawnLane.pieces`: of overlapping ones the earlier counts."""
    order = np.argsort(spans.start, kind="stable")
    start = np.rint(spans.start[order] / unit).astype(np.int64)
    end = np.maximum(np.rint(spans.end[order] / unit).astype(np.int64), start + 1)
    until = np.maximum.accumulate(np.concatenate(([0], end)))
    start = np.maximum(start, until[:-1])
    kept = end > start
    start, end = start[kept], end[kept]
    gap = start - np.concatenate(([0], end[:-1])) if len(end) else start
    columns = (gap, end - start, name[order][kept])
    return encode_numbers(np.stack(columns, axis=1).ravel().astype(np.int64))


def _lanes(
    one: _Placed, names: dict[str, int], unit: int, *, has_calls: bool
) -> Iterator[DrawnLane]:
    """Collectives, pipeline slots, then streams and threads; those without pieces are left out."""
    if has_calls:
        yield from _collectives(one, names, unit)
        yield from _slots(one, names, unit)
    for lane in one.step.lanes:
        spans = Intervals(lane.start_ns + one.start_ns, lane.end_ns + one.start_ns)
        inside = np.flatnonzero(spans.end > 0)
        spans = Intervals(np.maximum(spans.start[inside], 0), spans.end[inside])
        pieces = packed_lane(spans, lane.name.take(inside).numbered(names), unit)
        if pieces:
            yield DrawnLane(name=lane.title, pieces=pieces)


def _bounds(one: _Placed) -> tuple[int, int]:
    """The drawn window on the rank's own clock."""
    window = one.step.window
    return (int(one.analysis.window_start_ns[window]), int(one.analysis.window_end_ns[window]))


def _inside(spans: Intervals, one: _Placed) -> Int64Array:
    low, high = _bounds(one)
    return np.flatnonzero((spans.start < high) & (spans.end > low))


def _in_picture(spans: Intervals, one: _Placed) -> Intervals:
    """Parts of intervals on the rank's own clock inside the window, in picture time."""
    low, high = _bounds(one)
    shift = one.start_ns - low
    start, end = (np.clip(ends, low, high) + shift for ends in spans)
    return Intervals(start, end)


def _calls_in(one: _Placed) -> int:
    slots = one.analysis.slots
    num_slots = 0 if slots is None else int((slots.step == one.step.window).sum())
    return len(_inside(intervals_of(one.rank.collectives), one)) + num_slots


def _collectives(one: _Placed, names: dict[str, int], unit: int) -> Iterator[DrawnLane]:
    table = one.rank.collectives
    rows = _inside(intervals_of(table), one)
    if not len(rows):
        return
    number = call_names(one.analysis, table, rows).numbered(names)
    start, end = intervals_of(table)
    spans = _in_picture(Intervals(start[rows], end[rows]), one)
    yield DrawnLane(name="communication", pieces=packed_lane(spans, number, unit))


def call_names(analysis: RankAnalysis | None, collectives: Table, rows: Int64Array) -> Coded:
    """Kind, axis and size of rows of COLLECTIVES, for example ``all_reduce dp 16.8 MB``."""
    axis = np.zeros(len(collectives), np.int64)
    labels: tuple[str, ...] = ("",)
    if analysis is not None and len(analysis.row_axis) == len(collectives):
        axis, labels = analysis.row_axis.astype(np.int64), analysis.row_axis_names
    columns = (collectives["kind"].astype(np.int64), axis, collectives["bytes"])
    keys = np.stack([column[rows] for column in columns], axis=1)
    classes, code = np.unique(keys, axis=0, return_inverse=True)
    names = []
    for kind, at, size in classes.tolist():
        shown = "" if size == ABSENT else format_bytes(size)
        words = (CollectiveKind(kind).label, labels[at] if labels else "", shown)
        names.append(" ".join(filter(None, words)))
    return Coded.merged(code.ravel().astype(np.int32), names)


def slot_names(slots: StageSlots, rows: Int64Array) -> list[str]:
    """Action, micro-batch and stage of slots, for example ``forward of micro-batch 3, stage 0``."""
    columns = (slots.kind, slots.micro_batch, slots.stage)
    return [
        f"{SlotKind(kind).label} of micro-batch {micro_batch}, stage {stage}"
        for kind, micro_batch, stage in np.stack(columns, axis=1)[rows].tolist()
    ]


def _slots(one: _Placed, names: dict[str, int], unit: int) -> Iterator[DrawnLane]:
    slots = one.analysis.slots
    if slots is None:
        return
    spans = Intervals(slots.start_ns, slots.end_ns)
    rows = _inside(spans, one)
    if not len(rows):
        return
    number = Coded.encode(slot_names(slots, rows)).numbered(names)
    chosen = _in_picture(Intervals(spans.start[rows], spans.end[rows]), one)
    yield DrawnLane(name="pipeline slots", pieces=packed_lane(chosen, number, unit))


# Waits --------------------------------------------------------------------------------------------


class _Members(msgspec.Struct, frozen=True, kw_only=True):
    """Members of one collective, arrays of equal length."""

    row: Int64Array  # int64, among the COLLECTIVES rows of all ranks.
    rank: NDArray[np.int32]
    start_ns: Int64Array  # int64, own clock.
    waited_ns: Int64Array  # int64, exposed wait.


def _waits(run: Run, placed: Sequence[_Placed], unit: int) -> list[DrawnWait]:
    """The collectives in the step whose members wait longest for the last of them."""
    by_rank = {one.rank.rank: one for one in placed}
    lengths = [len(rank.collectives) for rank in run.ranks]
    first = dict(zip((rank.rank for rank in run.ranks), np.cumsum([0, *lengths]), strict=False))
    inside, waited = np.zeros(sum(lengths), np.bool_), np.zeros(sum(lengths), np.int64)
    for rank, one in by_rank.items():
        analysis, base = one.analysis, first[rank]
        rows = np.flatnonzero(analysis.collective_step == one.step.window)
        inside[base + rows] = True
        waited[base + rows] = np.maximum(analysis.exposed.wait_ns[rows], 0)
    found: list[tuple[int, DrawnWait]] = []
    for block in MemberBlocks(run.matches, run.ranks, ["start_ns"]):
        sizes = np.diff(block.first, append=len(block.row))
        instance = np.repeat(np.arange(len(sizes)), sizes)
        total = np.bincount(instance, np.where(inside[block.row], waited[block.row], 0), len(sizes))
        for number in np.argsort(-total, kind="stable")[:MOST_WAITS].tolist():
            if total[number] > 0:
                low = int(block.first[number])
                members = slice(low, low + int(sizes[number]))
                of_members = _Members(
                    row=block.row[members],
                    rank=block.rank[members],
                    start_ns=block.columns[0][members],
                    waited_ns=waited[block.row[members]],
                )
                wait = _wait(run, by_rank, first, of_members, unit)
                found += [(int(total[number]), wait)] if wait is not None else []
    found.sort(key=lambda one: -one[0])
    return sorted((wait for _, wait in found[:MOST_WAITS]), key=lambda wait: wait.end)


def _wait(
    run: Run, by_rank: Mapping[int, _Placed], first: Mapping[int, int], members: _Members, unit: int
) -> DrawnWait | None:
    """One collective; None if the clocks do not show who was last, or it is not drawn."""
    common = np.array(
        [
            int(run.clock.to_common(number, members.start_ns[place : place + 1])[0])
            for place, number in enumerate(members.rank.tolist())
        ]
    )
    last, longest = int(common.argmax()), int(members.waited_ns.argmax())
    late, waiting = int(members.rank[last]), int(members.rank[longest])
    error = run.clock.residual_between(late, waiting)
    wait_ns = int(common[last] - common[longest])
    if late == waiting or not {late, waiting} <= by_rank.keys() or wait_ns <= (error or 0):
        return None
    one = by_rank[waiting]
    begin = int(members.start_ns[longest]) - _bounds(one)[0] + one.start_ns
    place = np.array([int(members.row[longest]) - first[waiting]])
    return DrawnWait(
        name=call_names(one.analysis, one.rank.collectives, place).decode()[0],
        late_rank=late,
        waiting_rank=waiting,
        start=max(round(begin / unit), 0),
        end=max(round((begin + wait_ns) / unit), 0),
        wait_ns=int(members.waited_ns.sum()),
        num_waiting=int((members.waited_ns > 0).sum()),
    )
