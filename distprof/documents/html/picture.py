"""The step of all ranks, drawn: an SVG that needs no script, its data for the script, its table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec
import numpy as np

from distprof.documents.html.blocks import (
    EMPTY,
    Markup,
    bullets,
    captioned,
    element,
    figure_number,
    folded,
    grid,
    joined,
    legend,
    picture,
    scrolled,
    sentence,
    untouched,
)
from distprof.escape import plain, short_ranks
from distprof.sections.picture.measure import fewer
from distprof.sections.picture.result import (
    IDLE,
    AlikeRanks,
    DrawnRank,
    DrawnStep,
    DrawnWait,
    RepairedStep,
    StepPicture,
    lane_pieces,
    pieces_of,
)
from distprof.sections.table import Cell, Column
from distprof.units import format_duration

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


class Evidence(msgspec.Struct, frozen=True):
    """Where in the picture the evidence of a finding is."""

    anchor: str  # Id of the finding.
    ranks: tuple[int, ...]  # Its ranks; empty for all.
    steps: tuple[int, ...]  # Its steps; empty for all.


class _Data(msgspec.Struct, frozen=True):
    """What the script draws."""

    classes: tuple[str, ...]
    kinds: tuple[str, ...]  # Names of colours in the style sheet, by class.
    groups: tuple[AlikeRanks, ...]
    steps: tuple[DrawnStep, ...]
    late: tuple[int, ...]
    # Ranks of each node, and of each group of a mesh axis: names of both by kind.
    folds: dict[str, dict[str, tuple[int, ...]]]
    found: tuple[Evidence, ...]


def picture_figure(
    drawn: StepPicture,
    late: Sequence[int] = (),
    folds: dict[str, dict[str, tuple[int, ...]]] | None = None,
    found: Sequence[Evidence] = (),
) -> Markup:
    """The step as a figure; empty without one.

    Args:
        drawn: The picture of a report.
        late: Ranks to mark as late.
        folds: Ranks of each node and of each group, by the kind of group.
        found: Where the evidence of findings is.
    """
    if not drawn.steps:
        return EMPTY
    step = drawn.steps[0]
    kinds = _kinds(drawn)
    data = _Data(
        drawn.classes, kinds, drawn.groups, drawn.steps, tuple(late), folds or {}, tuple(found)
    )
    used = sorted({kind for rank in step.ranks for _, _, kind in _pieces(drawn, rank)})
    named = legend([(f"k-{kinds[kind]}", drawn.classes[kind]) for kind in used])
    return captioned(
        _caption(drawn, step),
        _svg(drawn, step, frozenset(late), _longest_ns(step)),
        element("script", _json(data), type="application/json", class_="data"),
        named,
        *map(sentence, drawn.notes),
        _twin(drawn, step, frozenset(late)),
        class_="step-picture",
        id="picture",
    )


def pictures_figure(named: Sequence[tuple[str, StepPicture]]) -> Markup:
    """Steps of several runs below each other on one scale, without a script; empty without any."""
    known = [(name, drawn, drawn.steps[0]) for name, drawn in named if drawn.steps]
    longest = max((_longest_ns(step) for _, _, step in known), default=0)
    figures = []
    for name, drawn, step in known:
        kinds = _kinds(drawn)
        used = sorted({kind for rank in step.ranks for _, _, kind in _pieces(drawn, rank)})
        figures.append(
            captioned(
                f"{name}: {_caption(drawn, step)}",
                _svg(drawn, step, frozenset(), longest),
                legend([(f"k-{kinds[kind]}", drawn.classes[kind]) for kind in used]),
                _twin(drawn, step, frozenset()),
                class_="step-picture",
            )
        )
    return joined(figures)


def _longest_ns(step: DrawnStep) -> int:
    return max([step.span_ns, *(one.span_ns for one in step.repaired[:1])])


def _kinds(drawn: StepPicture) -> tuple[str, ...]:
    return (*KINDS, *(f"axis{min(number, SHADES - 1)}" for number in range(len(drawn.axes))))


def _json(data: _Data) -> Markup:
    """Data for the script: no character of it ends the element or starts a comment."""
    text = msgspec.json.encode(_plainly(data)).decode()
    for mark in "<>&":
        text = text.replace(mark, f"\\u{ord(mark):04x}")
    return untouched(text)


def _plainly(data: _Data) -> object:
    """The data as builtins, with control and invisible characters of names shown."""
    built = msgspec.to_builtins(data)

    def shown(value: object) -> object:
        if isinstance(value, str):
            return plain(value)
        if isinstance(value, dict):
            return {plain(key): shown(one) for key, one in value.items()}
        return [shown(one) for one in value] if isinstance(value, list | tuple) else value

    return shown(built)


def _caption(drawn: StepPicture, step: DrawnStep) -> str:
    length = format_duration(step.mean_ns)
    what = "The whole capture" if step.step is None else f"Step {step.step}, of median length"
    if len(step.ranks) == 1:
        return f"{what}: {length}"
    clock = ", on one clock" if drawn.is_one_clock else ""
    is_folded = any(len(group.ranks) > 1 for group in drawn.groups)
    alike = " Ranks that spend it alike share a row, which shows one of them." if is_folded else ""
    return f"{what}: {length} on the mean rank. A row per rank{clock}.{alike}"


# Without a script ---------------------------------------------------------------------------------


def _svg(drawn: StepPicture, step: DrawnStep, late: frozenset[int], longest_ns: int) -> Markup:
    """The step, and below it the step after the first repair; ``longest_ns`` is the whole width."""
    scale = longest_ns / max(step.unit_ns, 1)
    rows = _Rows(drawn, step, scale, late)
    by_rank = {rank.rank: rank for rank in step.ranks}
    rows.add([by_rank[group.shown] for group in drawn.groups if group.shown in by_rank])
    rows.arrows(step.waits)
    for one in step.repaired[:1]:
        rows.title(_repair_text(one))
        rows.add(one.ranks)
    return rows.drawn()


class _Rows:
    """Rows of ranks one below another, with names on the left."""

    def __init__(
        self, drawn: StepPicture, step: DrawnStep, scale: float, late: frozenset[int]
    ) -> None:
        self._drawn, self._step, self._scale, self._late = drawn, step, max(scale, 1), late
        self._kinds = _kinds(drawn)
        self._group_of = {group.shown: group for group in drawn.groups}
        self._height = 0
        self._names: list[Markup] = []
        self._shapes: list[Markup] = []
        self._numbers: list[Markup] = []
        self._middle: dict[int, float] = {}

    def title(self, text: str) -> None:
        """A line of text across all rows."""
        self._height += _GUTTER
        at = self._height - 8
        self._names.append(element("text", text, x=0, y=at, class_="title"))

    def add(self, ranks: Iterable[DrawnRank]) -> None:
        """A row for each rank."""
        for rank in ranks:
            group = self._group_of.get(rank.rank)
            at = self._height
            for one in group.ranks if group is not None else (rank.rank,):
                self._middle.setdefault(one, at + _HIGH / 2)
            self._names.append(
                element("text", _name(rank.rank, group, self._late), x=0, y=at + _HIGH - 3)
            )
            self._shapes += self._row(rank, at)
            self._height += _PITCH
            self._slots(rank)

    def _row(self, rank: DrawnRank, at: int) -> Iterator[Markup]:
        pieces = _pieces(self._drawn, rank)
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
            yield self._path(list(ends), at, _HIGH, f"k-{self._kinds[one]}")

    def _slots(self, rank: DrawnRank) -> None:
        """The slots of a pipeline below the row, with the numbers of micro-batches that fit."""
        lane = next((lane for lane in rank.lanes if lane.name == _LANE), None)
        if lane is None:
            return
        at = self._height - _PITCH + _HIGH + 1
        by_kind: dict[str, list[tuple[int, int]]] = {}
        for start, end, name in lane_pieces(lane.pieces):
            text = self._step.names[name] if name < len(self._step.names) else ""
            by_kind.setdefault(text.partition(" of ")[0].replace("_", "-"), []).append((start, end))
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

    def arrows(self, waits: Sequence[DrawnWait]) -> None:
        """From the rank that waits longest to the one that begins last, where both have rows."""
        for wait in waits:
            ends = self._middle.get(wait.waiting_rank), self._middle.get(wait.late_rank)
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
        label = f"{_caption(self._drawn, step)} The same as a table follows."
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


def _name(rank: int, group: AlikeRanks | None, late: frozenset[int]) -> str:
    ranks = group.ranks if group is not None else (rank,)
    mark = "▲ " if late & {*ranks} else ""
    if len(ranks) == 1:
        return f"{mark}rank {rank}"
    return f"{mark}{len(ranks):,} like rank {rank}"


def _repair_text(one: RepairedStep) -> str:
    return f"After repair {one.number} ({one.done}): {format_duration(one.mean_ns)}, simulated"


def wait_text(wait: DrawnWait) -> str:
    """A collective that waits, as a sentence."""
    ranks = "rank" if wait.num_waiting == 1 else "ranks"
    return (
        f"{wait.name}: rank {wait.late_rank} begins last; {wait.num_waiting} {ranks} wait "
        f"{format_duration(wait.wait_ns)} together, rank {wait.waiting_rank} longest"
    )


# As a table ---------------------------------------------------------------------------------------


def _twin(drawn: StepPicture, step: DrawnStep, late: frozenset[int]) -> Markup:
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
            begins = (_pieces(drawn, rank) or [(0, 0, 0)])[0][0] * step.unit_ns
            cells = (format_duration(of[kind] * step.unit_ns) for kind in used)
            mark = " ▲ late" if late & {*alike} else ""
            rows.append((name + mark, format_duration(begins), *cells))
    table = scrolled(grid(columns, rows), "Table: the drawn step")
    waits = bullets(wait_text(wait) for wait in step.waits)
    repaired = bullets(_repair_text(one) for one in step.repaired)
    return folded("The same as a table", table, waits, repaired, class_="table")


def _times(drawn: StepPicture, rank: DrawnRank) -> list[int]:
    """Units in each class."""
    found = [0] * len(drawn.classes)
    for start, end, kind in _pieces(drawn, rank):
        found[kind] += end - start
    return found


def _pieces(drawn: StepPicture, rank: DrawnRank) -> list[tuple[int, int, int]]:
    """Pieces of a rank; a saved report may hold any text, so those of unknown classes are idle."""
    known = len(drawn.classes)
    return [
        (start, min(end, _LATEST), kind if kind < known else IDLE)
        for start, end, kind in pieces_of(rank.split)
        if start < _LATEST
    ]
