"""The step of all ranks, drawn: an SVG that needs no script, its data for the script, its table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec
import numpy as np
from msgspec.structs import replace

from distprof.documents.html.blocks import (
    EMPTY,
    Markup,
    bullets,
    captioned,
    element,
    figure_number,
    folded,
    grid,
    legend,
    picture,
    scrolled,
    sentence,
    slug,
    untouched,
)
from distprof.escape import each_text, plain, short_ranks
from distprof.sections.picture import (
    IDLE,
    TRANSFER,
    AlikeRanks,
    DrawnLane,
    DrawnRank,
    DrawnStep,
    DrawnWait,
    RepairedStep,
    StepPicture,
    lane_pieces,
    packed_split,
    pieces_of,
)
from distprof.sections.picture.measure import fewer
from distprof.sections.table import Cell, Column
from distprof.sections.whatif import RepairPlan
from distprof.terms import SlotKind
from distprof.units import capitalized, format_duration, signed

KINDS = (
    *("computation", "exposed_wait", "exposed_wait", "exposed_comm_unsplit", "exposed_copy"),
    "rest",
)
"""Colour and hatching in the style sheet of each class; transfers have a shade for each axis."""

SHADES = 6
"""Shades of transfers; further axes share the last one."""

MOST_PIECES = 300
"""Pieces of a row without the script: a page of 16 rows and its repaired step takes 100 kB."""

MOST_IN_TABLE = 64
_WIDE, _HIGH, _PITCH, _GUTTER = 1_000, 14, 20, 26
_SLOT = 12
_LANE = "pipeline slots"
_LATEST = 1 << 40
_NO_PLAN = RepairPlan()


class Evidence(msgspec.Struct, frozen=True):
    """Where in the picture the evidence of a finding is."""

    anchor: str  # Id of the finding.
    ranks: tuple[int, ...]  # Its ranks; empty for all.
    steps: tuple[int, ...]  # Its steps; empty for all.


class _Below(msgspec.Struct, frozen=True, kw_only=True):
    """A step under the first, on its scale: repaired, or of another run."""

    option: str  # Its name in a list.
    said: str  # What follows a rank of it, for example ``repaired``.
    title: str  # The line above it.
    span_ns: int  # From the first rank's start to the last rank's end.
    ranks: tuple[DrawnRank, ...]  # A rank for each row, in units of the first step.
    groups: tuple[AlikeRanks, ...]  # The ranks of each row.
    waits: tuple[DrawnWait, ...] = ()


class _Data(msgspec.Struct, frozen=True, kw_only=True):
    """What the script draws."""

    classes: tuple[str, ...]
    kinds: tuple[str, ...]  # Names of colours in the style sheet, by class.
    groups: tuple[AlikeRanks, ...]
    steps: tuple[DrawnStep, ...]
    captions: tuple[str, ...]  # One for each step.
    below: tuple[tuple[_Below, ...], ...]  # Under each step.
    alike: str = "Ranks that spend it alike share a row, which shows one of them."
    title: str = ""  # The line above the first step.
    said: str = ""  # What follows a rank of it.
    late: tuple[int, ...] = ()
    # Ranks of each node, and of each group of a mesh axis: names of both by kind.
    folds: dict[str, dict[str, tuple[int, ...]]] = {}
    found: tuple[Evidence, ...] = ()

    def classes_used(self) -> list[int]:
        """Classes of the first step and of the one under it."""
        ranks = (*self.steps[0].ranks, *(rank for one in self.below[0][:1] for rank in one.ranks))
        return sorted({kind for rank in ranks for _, _, kind in _pieces(self.classes, rank)})


def picture_figure(
    drawn: StepPicture,
    late: Sequence[int] = (),
    folds: dict[str, dict[str, tuple[int, ...]]] | None = None,
    found: Sequence[Evidence] = (),
    plan: RepairPlan = _NO_PLAN,
) -> Markup:
    """The step as a figure, with ranks marked as late and the evidence of findings; may be empty.

    ``folds`` has the ranks of each node and of each group, by the kind of group. Lengths of the
    plan's repairs are means of all steps.
    """
    if not drawn.steps:
        return EMPTY
    step = drawn.steps[0]
    data = _Data(
        classes=drawn.classes,
        kinds=_kinds(drawn.axes),
        groups=drawn.groups,
        steps=tuple(replace(one, repaired=()) for one in drawn.steps),
        captions=tuple(capitalized(_caption(drawn, one, plan.step_ns)) for one in drawn.steps),
        below=tuple(
            tuple(_repaired(one, drawn.groups, plan) for one in step.repaired)
            for step in drawn.steps
        ),
        late=tuple(late),
        folds=folds or {},
        found=tuple(found),
    )
    return _figure(data, drawn.notes, [_twin(drawn, step, frozenset(late), plan=plan)])


def pictures_figure(named: Sequence[tuple[str, StepPicture]]) -> Markup:
    """Steps of two runs below each other on one scale; empty without any."""
    known = [(name, drawn, drawn.steps[0]) for name, drawn in named if drawn.steps]
    if not known:
        return EMPTY
    axes = tuple(dict.fromkeys(axis for _, drawn, _ in known for axis in drawn.axes))
    unit_ns = max(step.unit_ns for _, _, step in known)
    (name, drawn), *others = ((name, _aligned(drawn, axes, unit_ns)) for name, drawn, _ in known)
    step = drawn.steps[0]
    data = _Data(
        classes=drawn.classes,
        kinds=_kinds(axes),
        groups=drawn.groups,
        steps=(step,),
        captions=(
            "A step of each run on one scale." if others else capitalized(_caption(drawn, step)),
        ),
        below=(
            tuple(
                _Below(
                    option=other,
                    said=other,
                    title=f"{capitalized(other)}: {_caption(below, below.steps[0])}",
                    span_ns=below.steps[0].span_ns,
                    ranks=below.steps[0].ranks,
                    groups=below.groups,
                    waits=below.steps[0].waits,
                )
                for other, below in others
            ),
        ),
        title=f"{capitalized(name)}: {_caption(drawn, step)}",
        said=name,
    )
    changed = [_changed_text(drawn, below) for _, below in others]
    twins = [
        _twin(one, one.steps[0], frozenset(), f"{name}: ") for name, one in ((name, drawn), *others)
    ]
    return _figure(data, changed, twins)


def _figure(data: _Data, sentences: Iterable[str], twins: Sequence[Markup]) -> Markup:
    alike = f" {data.alike}" if any(len(group.ranks) > 1 for group in data.groups) else ""
    return captioned(
        data.captions[0] + alike,
        _svg(data),
        element("script", _json(data), type="application/json", class_="data"),
        legend(
            [(f"k-{data.kinds[kind]}", data.classes[kind]) for kind in data.classes_used()]
            + [(f"w-{kind}", f"{kind} slot") for kind in _slots_of(data.steps[0])]
        ),
        *(sentence(text) for text in sentences if text),
        *twins,
        class_="step-picture",
        id="picture",
    )


def _repaired(one: RepairedStep, groups: tuple[AlikeRanks, ...], plan: RepairPlan) -> _Below:
    return _Below(
        option=f"after repair {one.number}: {one.done}",
        said="repaired",
        title=_repair_text(one, plan),
        span_ns=one.span_ns,
        ranks=one.ranks,
        groups=groups,
    )


def _kinds(axes: Sequence[str]) -> tuple[str, ...]:
    return (*KINDS, *(f"axis{min(number, SHADES - 1)}" for number in range(len(axes))))


def _json(data: _Data) -> Markup:
    """Data for the script: no character of it ends the element, starts a comment or is unseen."""
    text = msgspec.json.encode(each_text(msgspec.to_builtins(data), plain)).decode()
    for mark in "<>&":
        text = text.replace(mark, f"\\u{ord(mark):04x}")
    return untouched(text)


_WHICH = {"median": "nearest to the median length", "longest": "the longest"}


def _caption(drawn: StepPicture, step: DrawnStep, all_ns: int | None = None) -> str:
    length = format_duration(step.mean_ns)
    mean = "" if step.step is None else _mean_text(all_ns, step.mean_ns)
    which = _WHICH.get(step.kind, "")
    number = f"step {step.step}, {which}" if which else f"step {step.step}"
    what = "the whole capture" if step.step is None else number
    if len(step.ranks) == 1 and not any(len(group.ranks) > 1 for group in drawn.groups):
        return f"{what}: {length}{mean}."
    clock = ", on one clock" if drawn.is_one_clock else ""
    return f"{what}: {length} on the mean rank{clock}{mean}."


def _mean_text(all_ns: int | None, of_step_ns: int) -> str:
    """The mean of all steps, which the plan counts, where it reads differently from this one."""
    mean = format_duration(all_ns) if all_ns else ""
    return f"; mean of all steps: {mean}" if mean not in ("", format_duration(of_step_ns)) else ""


# Without a script ---------------------------------------------------------------------------------


def _svg(data: _Data) -> Markup:
    """The first step, and the first of those below it."""
    step = data.steps[0]
    longest_ns = max([step.span_ns, *(one.span_ns for one in data.below[0][:1])])
    rows = _Rows(data, longest_ns / max(step.unit_ns, 1))
    by_rank = {rank.rank: rank for rank in step.ranks}
    if data.title:
        rows.title(data.title)
    shown = [by_rank[group.shown] for group in data.groups if group.shown in by_rank]
    rows.add(shown, data.groups, step.waits)
    for one in data.below[0][:1]:
        rows.title(one.title)
        rows.add(one.ranks, one.groups, one.waits)
    return rows.drawn()


class _Rows:
    """Rows of ranks one below another, with names on the left."""

    def __init__(self, data: _Data, scale: float) -> None:
        self._data, self._step, self._scale = data, data.steps[0], max(scale, 1)
        self._late = frozenset(data.late)
        self._height = 0
        self._names: list[Markup] = []
        self._shapes: list[Markup] = []
        self._numbers: list[Markup] = []

    def title(self, text: str) -> None:
        """A line of text across all rows."""
        self._height += _GUTTER
        at = self._height - 8
        self._names.append(element("text", text, x=0, y=at, class_="title"))

    def add(
        self, ranks: Iterable[DrawnRank], groups: Iterable[AlikeRanks], waits: Sequence[DrawnWait]
    ) -> None:
        """A row for each rank, and arrows for their waits."""
        group_of = {group.shown: group for group in groups}
        middle: dict[int, float] = {}
        for rank in ranks:
            group = group_of.get(rank.rank)
            at = self._height
            for one in group.ranks if group is not None else (rank.rank,):
                middle.setdefault(one, at + _HIGH / 2)
            self._names.append(
                element("text", _name(rank.rank, group, self._late), x=0, y=at + _HIGH - 3)
            )
            self._shapes += self._row(rank, at)
            self._height += _PITCH
            self._slots(rank)
        self._arrows(waits, middle)

    def _row(self, rank: DrawnRank, at: int) -> Iterator[Markup]:
        pieces = _pieces(self._data.classes, rank)
        if not pieces:
            return
        first, last = pieces[0][0], pieces[-1][1]
        kind, end = fewer(
            np.array([kind for _, _, kind in pieces], np.int64),
            np.array([end - first for _, end, _ in pieces], np.int64),
            MOST_PIECES,
        )
        starts = np.concatenate(([0], end[:-1])) + first
        yield self._path([(first, last)], at, _HIGH, "k-rest")  # the ground below all others
        for one in sorted(set(kind.tolist()) - {IDLE}):
            chosen = kind == one
            ends = zip(starts[chosen].tolist(), (end[chosen] + first).tolist(), strict=True)
            yield self._path(list(ends), at, _HIGH, f"k-{self._data.kinds[one]}")

    def _slots(self, rank: DrawnRank) -> None:
        """The slots of a pipeline below the row, with the numbers of micro-batches that fit."""
        lane = next((lane for lane in rank.lanes if lane.name == _LANE), None)
        if lane is None:
            return
        at = self._height - _PITCH + _HIGH + 1
        by_kind: dict[str, list[tuple[int, int]]] = {}
        for start, end, name in lane_pieces(lane.pieces):
            text = self._step.names[name] if name < len(self._step.names) else ""
            by_kind.setdefault(_slot_kind(text), []).append((start, end))
            number = text.partition("micro-batch ")[2].partition(",")[0]
            if (end - start) / self._scale > 0.012 * len(number):
                middle = f"{50 * (start + end) / self._scale:.4g}%"
                self._numbers.append(element("text", number, x=middle, y=at + _SLOT - 3))
        self._shapes += [self._path(ends, at, _SLOT, f"w-{kind}") for kind, ends in by_kind.items()]
        self._height += _SLOT + 4

    def _path(self, ends: Sequence[tuple[int, int]], at: float, high: int, kind: str) -> Markup:
        ratio = _WIDE / self._scale
        boxes = []
        for start, end in ends:
            low, wide = figure_number(round(start * ratio, 1)), round((end - start) * ratio, 1)
            boxes.append(f"M{low} {at}h{figure_number(max(wide, 0.1))}v{high}H{low}z")
        return element("path", d="".join(boxes), class_=kind)

    def _arrows(self, waits: Sequence[DrawnWait], middle: dict[int, float]) -> None:
        """From the rank that waits longest to the one that begins last, where both have rows."""
        for wait in waits:
            ends = middle.get(wait.waiting_rank), middle.get(wait.late_rank)
            if ends[0] is None or ends[1] is None or ends[0] == ends[1] or self._is_short(wait):
                continue
            x = figure_number(round(wait.end * _WIDE / self._scale, 1))
            title = element("title", wait_text(wait))
            line = f"M{x} {figure_number(ends[0])}V{figure_number(ends[1])}"
            self._shapes.append(element("path", title, d=line, class_="arrow"))
            dot = f"M{x} {figure_number(ends[1])}h0"
            self._shapes.append(element("path", d=dot, class_="arrow-end"))

    def _is_short(self, wait: DrawnWait) -> bool:
        return (wait.end - wait.start) * 100 < self._scale

    def drawn(self) -> Markup:
        """All rows, with an axis."""
        step, high = self._step, self._height + _GUTTER
        label = f"{self._data.captions[0]} The same as a table follows."
        marks = [
            element(
                "text",
                format_duration(self._scale * step.unit_ns * part / 4) if part else "0",
                x=f"{25 * part}%",
                y=high - 6,
                class_="end" if part == 4 else "middle" if part else None,
            )
            for part in range(5)
        ]
        strips = picture(
            *self._shapes,
            label=label,
            viewBox=f"0 0 {_WIDE} {high}",
            preserveAspectRatio="none",
            height=high,
        )
        over = (element("g", *self._numbers, class_="numbers"), element("g", *marks, class_="axis"))
        return element(
            "div",
            element("svg", *self._names, height=high, class_="names", aria_hidden="true"),
            strips,
            element("svg", *over, height=high, aria_hidden="true"),
            class_="static",
        )


def _slot_kind(name: str) -> str:
    """Colour in the style sheet of a slot such as ``forward of micro-batch 3``."""
    return name.partition(" of ")[0].replace("_", "-")


def ranks_with_slots(step: DrawnStep) -> dict[int, DrawnLane]:
    """Ranks whose pipeline slots are drawn, and the slots."""
    lanes = ((rank.rank, lane) for rank in step.ranks for lane in rank.lanes)
    return {rank: lane for rank, lane in lanes if lane.name == _LANE}


def _slots_of(step: DrawnStep) -> list[str]:
    """Kinds of the slots of pipelines in a step."""
    lanes = ranks_with_slots(step).values()
    used = {name for lane in lanes for _, _, name in lane_pieces(lane.pieces)}
    found = {_slot_kind(step.names[name]) for name in used if name < len(step.names)}
    return [slug(kind.name) for kind in SlotKind if slug(kind.name) in found]


def _name(rank: int, group: AlikeRanks | None, late: frozenset[int]) -> str:
    ranks = group.ranks if group is not None else (rank,)
    mark = "▲ " if late & {*ranks} else ""
    if len(ranks) == 1:
        return f"{mark}rank {rank}"
    return f"{mark}{len(ranks):,} like rank {rank}"


def _repair_text(one: RepairedStep, plan: RepairPlan) -> str:
    planned = [repair.step_ns for repair in plan.repairs[one.number - 1 : one.number]]
    mean = _mean_text(planned[0], one.mean_ns) if planned else ""
    length = format_duration(one.mean_ns)
    return f"After repair {one.number}, simulated: {length}{mean} ({one.done})"


def wait_text(wait: DrawnWait) -> str:
    """A collective that waits, as a sentence."""
    ranks = "rank" if wait.num_waiting == 1 else "ranks"
    return (
        f"{wait.name}: rank {wait.late_rank} begins last; {wait.num_waiting} {ranks} wait "
        f"{format_duration(wait.wait_ns)} together, rank {wait.waiting_rank} longest"
    )


# Two runs ----------------------------------------------------------------------------------------


def _aligned(drawn: StepPicture, axes: tuple[str, ...], unit_ns: int) -> StepPicture:
    """The picture of the first step with these axes, in these units."""
    step = drawn.steps[0]
    ratio = step.unit_ns / unit_ns
    numbers = np.array([*range(TRANSFER), *(TRANSFER + axes.index(axis) for axis in drawn.axes)])

    def moved(rank: DrawnRank) -> DrawnRank:
        pieces = np.array(_pieces(drawn.classes, rank), np.int64).reshape(-1, 3)
        start = int(pieces[0, 0] * ratio) if len(pieces) else 0
        ends = np.rint(pieces[:, 1] * ratio).astype(np.int64)
        return replace(rank, split=packed_split(numbers[pieces[:, 2]], ends, start, 1), lanes=())

    waits = [
        replace(wait, start=round(wait.start * ratio), end=round(wait.end * ratio))
        for wait in step.waits
    ]
    step = replace(
        step, unit_ns=unit_ns, names=(), ranks=tuple(map(moved, step.ranks)), waits=tuple(waits)
    )
    return replace(drawn, axes=axes, steps=(step,))


def _changed_text(first: StepPicture, second: StepPicture) -> str:
    """The change between two aligned steps and the classes that make most of it."""
    change_ns = second.steps[0].mean_ns - first.steps[0].mean_ns
    changes = [
        (after - before, name)
        for before, after, name in zip(
            _mean_ns(first), _mean_ns(second), first.classes, strict=True
        )
    ]
    least = _LEAST_CHANGE * max(first.steps[0].mean_ns, second.steps[0].mean_ns)
    most = sorted((one for one in changes if abs(one[0]) >= least), key=lambda one: -abs(one[0]))
    of_class = "; ".join(f"{name} {signed(ns)}" for ns, name in most[:_MOST_CHANGES])
    ranks = [len(group.ranks) for one in (first, second) for group in one.groups]
    mean = " on the mean rank" if sum(ranks) > 2 else ""
    said = f"From the first of these steps to the second: {signed(change_ns)}{mean}"
    return f"{said}. By class: {of_class}." if of_class else f"{said}."


_LEAST_CHANGE, _MOST_CHANGES = 0.01, 4


def _mean_ns(drawn: StepPicture) -> list[float]:
    """Time in each class, mean over ranks; each counts as the one that its row shows."""
    step = drawn.steps[0]
    weights = {group.shown: len(group.ranks) for group in drawn.groups}
    weight = np.array([weights.get(rank.rank, 1) for rank in step.ranks])
    times = np.array([_times(drawn, rank) for rank in step.ranks])
    mean: list[float] = (weight @ times * step.unit_ns / max(weight.sum(), 1)).tolist()
    return mean


# As a table ---------------------------------------------------------------------------------------


def _twin(
    drawn: StepPicture,
    step: DrawnStep,
    late: frozenset[int],
    of_run: str = "",
    plan: RepairPlan = _NO_PLAN,
) -> Markup:
    """The picture as a table, and its waits as sentences."""
    folded_rows = {group.shown for group in drawn.groups}
    ranks = {rank.rank for rank in step.ranks}
    is_cut = len(ranks) > MOST_IN_TABLE or ranks == folded_rows
    shown = folded_rows if is_cut else ranks
    groups = {group.shown: group for group in drawn.groups} if is_cut else {}
    times = {rank.rank: _times(drawn, rank) for rank in step.ranks if rank.rank in shown}
    used = [kind for kind in range(len(drawn.classes)) if any(of[kind] for of in times.values())]
    columns = [
        Column("rank", left=True),
        Column("begins"),
        *(Column(drawn.classes[kind]) for kind in used),
    ]
    rows: list[tuple[Cell, ...]] = []
    for rank in step.ranks:
        if rank.rank in shown:
            of = times[rank.rank]
            group = groups.get(rank.rank)
            alike = group.ranks if group is not None else (rank.rank,)
            name = str(rank.rank)
            name = name if len(alike) == 1 else f"{short_ranks(alike)} (rank {name})"
            begins = (_pieces(drawn.classes, rank) or [(0, 0, 0)])[0][0] * step.unit_ns
            cells = (format_duration(of[kind] * step.unit_ns) for kind in used)
            mark = " ▲ late" if late & {*alike} else ""
            rows.append((name + mark, format_duration(begins), *cells))
    table = scrolled(grid(columns, rows), f"Table: {of_run}the drawn step")
    waits = bullets(wait_text(wait) for wait in step.waits)
    repaired = bullets(_repair_text(one, plan) for one in step.repaired)
    return folded(
        capitalized(f"{of_run}the same as a table"), table, waits, repaired, class_="table"
    )


def _times(drawn: StepPicture, rank: DrawnRank) -> list[int]:
    """Units in each class."""
    found = [0] * len(drawn.classes)
    for start, end, kind in _pieces(drawn.classes, rank):
        found[kind] += end - start
    return found


def _pieces(classes: Sequence[str], rank: DrawnRank) -> list[tuple[int, int, int]]:
    """Pieces of a rank; a saved report may hold any text, so those of unknown classes are idle."""
    known = len(classes)
    return [
        (start, min(end, _LATEST), kind if kind < known else IDLE)
        for start, end, kind in pieces_of(rank.split)
        if start < _LATEST
    ]
