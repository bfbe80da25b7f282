"""Building blocks of every HTML page: sentences, tables, bars, sections."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise

import msgspec

from distprof.documents.page import StepBar, group_of
from distprof.escape import glued, html_text, plain, shorten
from distprof.sections.table import Bar, Cell, Column, Drawing, TableView
from distprof.units import signed

_VOID = frozenset(("meta", "input", "br", "hr"))
_DRAWN = frozenset(("rect", "path", "line", "circle", "polygon", "polyline"))
"""SVG elements without content, written as self-closing tags."""


class Markup(str):
    """Text that is already HTML. Any operation on it gives a plain ``str``, which is escaped."""

    __slots__ = ()


EMPTY = Markup("")
Attribute = str | int | float | bool | None


def element(name: str, /, *children: str, **attributes: Attribute) -> Markup:
    """One element. None and False leave an attribute out, True has no value, ``_`` is ``-``."""
    written = "".join(_attribute(key, value) for key, value in attributes.items())
    if name in _VOID:
        return Markup(f"<{name}{written}>")
    if name in _DRAWN and not children:
        return Markup(f"<{name}{written}/>")
    return Markup(f"<{name}{written}>{joined(children)}</{name}>")


def joined(parts: Iterable[str]) -> Markup:
    """Concatenated parts: :class:`Markup` unchanged, other text escaped."""
    return Markup("".join(part if isinstance(part, Markup) else html_text(part) for part in parts))


def untouched(trusted: str) -> Markup:
    """HTML that comes with distprof, such as its style sheet. Never text from a trace."""
    return Markup(trusted)


def picture(*children: str, label: str, **attributes: Attribute) -> Markup:
    """An SVG that a screen reader announces by ``label``."""
    title = element("title", label)
    return element("svg", title, *children, role="img", aria_label=label, **attributes)


def captioned(caption: str, /, *content: str, **attributes: Attribute) -> Markup:
    """A figure below its caption."""
    return element("figure", element("figcaption", caption), *content, **attributes)


def figure_number(value: float) -> str:
    """A coordinate with at most two decimals, without trailing zeros."""
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text in ("-0", "") else text


def _attribute(key: str, value: Attribute) -> str:
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    if value is True:
        return f" {name}"
    text = figure_number(value) if isinstance(value, float) else str(value)
    return f' {name}="{html_text(text)}"'


_MAX_SENTENCE = 2_000
_MAX_CELL = 400
_DRAWING_CELLS = 96


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """One part of a page, listed in its table of contents."""

    anchor: str  # Id of the section.
    title: str  # Heading.
    content: Markup  # Content below the heading.


class Segment(msgspec.Struct, frozen=True, kw_only=True):
    """One piece of a bar."""

    kind: str  # CSS class for colour and hatching, without ``k-``.
    ratio: float  # Share of the whole bar.
    title: str = ""  # Tooltip.


def sentence(text: str, **attributes: str) -> Markup:
    """A paragraph, of bounded length."""
    return element("p", bounded(text, _MAX_SENTENCE), **attributes)


def bullets(texts: Iterable[str], *, numbered: bool = False) -> Markup:
    """Sentences as a list; empty without sentences."""
    items = [element("li", bounded(text, _MAX_SENTENCE)) for text in texts]
    return element("ol" if numbered else "ul", *items) if items else EMPTY


def section(part: Part) -> Markup:
    """A part under its heading."""
    title = f"{part.anchor}-title"
    heading = element("h2", part.title, id=title)
    return element("section", heading, part.content, id=part.anchor, aria_labelledby=title)


def folded(summary: str, *content: str, opened: bool = False, **attributes: str) -> Markup:
    """Content that unfolds on a click or key press on ``summary``."""
    head = element("summary", summary)
    return element("details", head, *content, open=opened or None, **attributes)


def scrolled(content: Markup, label: str) -> Markup:
    """Content that may be wider than the screen: it scrolls separately, also with the keyboard."""
    return element("div", content, class_="wide", role="region", aria_label=label, tabindex="0")


def drawn_table(view: TableView, *, opened: bool = False) -> Markup:
    """A folded table of a report, with its title and notes."""
    caption = element("small", bounded(view.caption, _MAX_SENTENCE)) if view.caption else EMPTY
    title = joined((element("b", bounded(view.title, _MAX_CELL)), " ", caption))
    body = scrolled(grid(view.columns, view.rows, view.strong), f"Table: {view.title}")
    return folded(title, body, bullets(view.notes), opened=opened, class_="table")


def grid(
    columns: Sequence[Column], rows: Sequence[Sequence[Cell]], strong: frozenset[int] = frozenset()
) -> Markup:
    """A table without title and notes."""
    body = []
    for number, row in enumerate(rows):
        cells = [_cell("td", column, cell) for column, cell in zip(columns, row, strict=True)]
        body.append(element("tr", *cells, class_="strong" if number in strong else None))
    head = EMPTY
    if any(column.title for column in columns):
        titles = [_cell("th", column, column.title, scope="col") for column in columns]
        head = element("thead", element("tr", *titles))
    return element("table", head, element("tbody", *body))


def _cell(tag: str, column: Column, cell: Cell, **attributes: str) -> Markup:
    if tag == "th" and not cell:
        tag, attributes = "td", {}  # an empty heading is not a heading
    if isinstance(cell, Drawing):
        content = element("code", cell.draw(_DRAWING_CELLS))
    elif isinstance(cell, Bar):
        piece = Segment(kind=group_of(cell.key).key, ratio=cell.ratio)
        content = bar((piece,), label=f"{100 * cell.ratio:.1f} %")
    else:
        content = bounded(cell, _MAX_CELL)
    name = "left" if column.left or not isinstance(cell, str) else None
    return element(tag, content, class_=name, **attributes)


def edges(ratios: Iterable[float], scale: int) -> list[int]:
    """Edges of adjacent pieces as whole numbers up to ``scale``, rounded so that sums are exact."""
    found, done = [0], 0.0
    for ratio in ratios:
        done += ratio
        found.append(round(done * scale))
    return found


def bar(
    segments: Sequence[Segment],
    *,
    label: str,
    start: float = 0.0,
    marks: Sequence[float] = (),
    is_tall: bool = False,
) -> Markup:
    """A bar of pieces that are shares of its container's width, with lines at ``marks``."""
    at = edges([start, *(piece.ratio for piece in segments)], 10_000)[1:]
    pieces = [
        element(
            "rect",
            *([element("title", piece.title)] if piece.title else []),
            class_=f"k-{piece.kind}",
            x=f"{low / 100:g}%",
            width=f"{(high - low) / 100:g}%",
            height="100%",
        )
        for piece, (low, high) in zip(segments, pairwise(at), strict=True)
        if high > low
    ]
    lines = [upright(place) for place in marks]
    return picture(*pieces, *lines, label=label, class_="bar tall" if is_tall else "bar")


def upright(place: float) -> Markup:
    """A vertical line across a bar, at a share of its width."""
    at = f"{100 * place:.4g}%"
    return element("line", x1=at, x2=at, y1=0, y2="100%", class_="mark-line")


def slug(text: str) -> str:
    """``text`` as an id or class name."""
    return re.sub(r"[^a-z0-9]+", "-", text[:80].lower()).strip("-") or "x"


def bounded(text: str, width: int = _MAX_SENTENCE) -> Markup:
    """``text`` escaped, at most ``width`` long, with numbers and their units kept together."""
    if isinstance(text, Markup):
        return text
    return untouched(glued(html_text(shorten(plain(text[:_MAX_SENTENCE]), width))))


_COLUMN, _MOST_WIDE = 40, 736
"""Pixels of one column, and of all columns; with many ranks, columns get narrower."""


def row(name: str, drawn: Markup, value: str, *, tag: str = "div") -> Markup:
    """A label, a drawing and its value."""
    label = element("span", name, class_="name")
    return element(tag, label, drawn, element("span", value, class_="value"), class_="row")


def row_of_parts(
    name: str, value: str, parts: Sequence[tuple[str, float, str]], marks: Sequence[float] = ()
) -> Markup:
    """A label, a bar of parts (kind, share and text of each), and its value."""
    pieces = [Segment(kind=kind, ratio=ratio, title=text) for kind, ratio, text in parts]
    texts = ", ".join(text for *_, text in parts)
    return row(name, bar(pieces, label=f"{name}: {value}: {texts}", marks=marks), value)


def rows(lines: Sequence[Markup]) -> Markup:
    """Rows one below another."""
    return element("div", *lines, class_="rows")


def legend(entries: Sequence[tuple[str, str]]) -> Markup:
    """A legend of segments: the CSS class of each, and its meaning."""
    swatches = (element("rect", class_=kind, width="100%", height="100%") for kind, _ in entries)
    items = [
        element("li", element("svg", swatch, aria_hidden="true"), text)
        for swatch, (_, text) in zip(swatches, entries, strict=True)
    ]
    return element("ul", *items, class_="legend")


def changes(found: Sequence[tuple[str, int]]) -> Markup:
    """A waterfall of changes (name, ns): each begins where the previous one ends; then the sum."""
    ends = [0, *accumulate(ns for _, ns in found)]
    least, width = min(ends), (max(ends) - min(ends)) or 1
    starts = [min(pair) for pair in pairwise(ends)]
    lines = []
    for (name, ns), start in zip(
        (*found, ("sum", ends[-1])), (*starts, min(0, ends[-1])), strict=True
    ):
        kind, value = "worse" if ns >= 0 else "better", signed(ns)
        label = f"{name}: {value}"
        piece = Segment(kind=kind, ratio=abs(ns) / width, title=label)
        place = (start - least) / width
        drawn = bar((piece,), label=label, start=place, marks=(-least / width,))
        lines.append(row(name, drawn, value))
    return rows(lines)


def interval_bar(
    place: float,
    ends: tuple[float, float] | None,
    *,
    label: str,
    zone: tuple[float, float] | None = None,
    marks: Sequence[float] = (),
) -> Markup:
    """A dot with its interval, over a shaded zone and marks; positions are shares of the width."""
    drawn = []
    if zone is not None:
        low, width = f"{100 * zone[0]:.4g}%", f"{100 * (zone[1] - zone[0]):.4g}%"
        drawn.append(element("rect", x=low, width=width, height="100%", class_="zone"))
    drawn += [upright(mark) for mark in marks]
    if ends is not None:
        low, high = (f"{100 * end:.4g}%" for end in ends)
        drawn.append(element("line", x1=low, x2=high, y1="50%", y2="50%", class_="whisker"))
    at = f"{100 * place:.4g}%"
    dot = element("circle", element("title", label), cx=at, cy="50%", r="5", class_="point")
    return picture(*drawn, dot, label=label, class_="bar interval")


def step_figure(step: StepBar) -> Markup:
    """A mean step as one bar with its legend; empty without any time."""
    if not step.shares:
        return EMPTY
    pieces = [
        Segment(kind=share.group.key, ratio=share.ratio, title=share.text) for share in step.shares
    ]
    label = f"{step.length}: {', '.join(share.text for share in step.shares)}"
    named = legend([(f"k-{share.group.key}", share.text) for share in step.shares])
    return captioned(step.length, bar(pieces, label=label, is_tall=True), named)


def columns(values: Sequence[float], label: str, kind: str = "whole") -> Markup:
    """One column per value (none below 0), scaled from 0 to the largest value."""
    top = max(values, default=0)
    if top <= 0:
        return EMPTY
    heights = [round(100 * value / top, 1) for value in values]
    path = joined(
        Markup(f"M{i} 100v-{figure_number(height)}h.9V100z")
        for i, height in enumerate(heights)
        if height > 0
    )
    return picture(
        element("path", d=path, class_=f"ground-{kind}"),
        label=label,
        class_="columns",
        viewBox=f"0 0 {len(values)} 100",
        preserveAspectRatio="none",
        width=min(_COLUMN * len(values), _MOST_WIDE),
    )
