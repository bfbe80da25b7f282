"""Bar figures: rows with a label, a bar and a value; and columns with one number per rank."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

from distprof.documents.html.blocks import (
    EMPTY,
    Markup,
    Segment,
    bar,
    captioned,
    element,
    figure_number,
    joined,
    picture,
    upright,
)
from distprof.documents.page import Plan, StepBar
from distprof.units import format_duration, format_ratio, signed

_COLUMN, _MOST_WIDE = 40, 736
"""Pixels of one column, and of all columns; with many ranks, columns get narrower."""


def row(name: str, drawn: Markup, value: str, *, tag: str = "div") -> Markup:
    """A label, a drawing and its value."""
    label = element("span", name, class_="name")
    return element(tag, label, drawn, element("span", value, class_="value"), class_="row")


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
    lines = [
        _change(name, ns, (min(pair) - least) / width, abs(ns) / width, -least / width)
        for (name, ns), pair in zip(found, pairwise(ends), strict=True)
    ]
    total = ends[-1]
    edge = (min(0, total) - least) / width
    lines.append(_change("sum", total, edge, abs(total) / width, -least / width))
    return rows(lines)


def _change(name: str, ns: int, start: float, ratio: float, zero: float) -> Markup:
    kind, value = "worse" if ns >= 0 else "better", signed(ns)
    piece = Segment(kind=kind, ratio=ratio, title=f"{name}: {value}")
    return row(name, bar((piece,), label=f"{name}: {value}", start=start, marks=(zero,)), value)


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


def plan_figure(plan: Plan) -> Markup:
    """The step now and after each repair of the plan; empty if nothing was simulated."""
    repairs, now_ns = plan.repairs.repairs, plan.repairs.step_ns
    if not now_ns or not repairs:
        return EMPTY
    lines = [_plan_row("now", now_ns, now_ns, 0)]
    for number, repair in enumerate(repairs, 1):
        lines.append(_plan_row(f"{number}. {repair.done}", repair.step_ns, now_ns, number))
    caption = f"Length of the simulated {plan.word} after each change, applied one after the other"
    return captioned(caption, rows(lines))


def _plan_row(name: str, step_ns: int, now_ns: int, number: int) -> Markup:
    ratio = min(step_ns / now_ns, 1.0)
    length = format_duration(step_ns)
    saved = f", {format_ratio(1 - ratio)} less" if number else ""
    pieces = (Segment(kind="whole", ratio=ratio), Segment(kind="saved", ratio=1 - ratio))
    return row(name, bar(pieces, label=f"{name}: {length}{saved}"), f"{length}{saved}")


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
