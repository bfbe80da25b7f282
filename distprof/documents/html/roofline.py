"""The roofline: operators by FLOP per byte and FLOP per second, below what the GPU allows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from distprof.documents.html.blocks import EMPTY, Markup, bounded, captioned, element, folded
from distprof.documents.html.chart import COLORS, WIDTH, Chart, Point, marks_legend, shape
from distprof.sections.computation import ComputationResult, OperatorRow, Roof
from distprof.sections.table import counted
from distprof.units import format_bandwidth, format_duration, format_flop, format_ratio

_MOST_NAMED = 8
"""Operators with a number in the picture and a line below it."""

_WIDE, _NEAR = 60, 15
"""Pixels between numbers, at least: from side to side, and above each other."""

_LEAST_RATIO = 1e-4
"""Share of the computation below which an operator is left out."""


def roofline_figure(result: ComputationResult) -> Markup:
    """Operators whose FLOP and bytes are known; empty without any."""
    least = max(_LEAST_RATIO * result.total_ns, 1)
    points = [
        row
        for row in result.operators
        if row.total_ns >= least and all(map(_is_possible, (row.flop, row.bytes, row.flops)))
    ]
    if not points:
        return EMPTY
    chart = _chart(result, points)
    kinds = list(dict.fromkeys(row.category for row in points))
    marks = [_mark(row, kinds.index(row.category), points[0].total_ns, chart) for row in points]
    titles = {row.name: row.title for row in result.categories}
    label = (
        f"Roofline of {counted(len(points), 'operator')}: FLOP per second against FLOP per byte, "
        "logarithmic"
    )
    axes = chart.axes(
        [(place, f"{value:g}") for place, value in _ticks(chart.left, chart.right)],
        [(place, f"{format_flop(value)}/s") for place, value in _ticks(chart.least, chart.most)],
        "FLOP per byte",
    )
    roofs, numbers = _roofs(result, points, chart), _numbers(points, chart)
    drawn = chart.drawn(axes, *roofs, *marks, *numbers, label=label)
    return captioned(
        _caption(result),
        drawn,
        marks_legend([titles.get(kind, kind) for kind in kinds]),
        _list(result, points),
    )


def _is_possible(figure: float | None) -> bool:
    """Whether it is known; a report from elsewhere may have any number there."""
    return 0 < (figure or 0) < _IMPOSSIBLE


_IMPOSSIBLE = 1e24


def _place(row: OperatorRow) -> Point:
    """FLOP per byte and FLOP per second of an operator, as powers of ten."""
    return math.log10((row.flop or 1) / (row.bytes or 1)), math.log10(row.flops or 1)


def _chart(result: ComputationResult, points: Sequence[OperatorRow]) -> Chart:
    """Both axes show every operator and roof, with some room around them."""
    found = [*map(_place, points), *_ridges(result, points)]
    xs, ys = ([place[axis] for place in found] for axis in (0, 1))
    return Chart(
        left=min(xs) - _ROOM, right=max(xs) + _ROOM, least=min(ys) - _ROOM, most=max(ys) + _ROOM
    )


_ROOM = 0.15
"""Powers of ten around operators and roofs."""


def _ridges(result: ComputationResult, points: Sequence[OperatorRow]) -> dict[Point, list[Roof]]:
    """Roofs by where the slope of memory meets them, as powers of ten; those of a speed share one.

    They are those of types that the operators multiply; all if none has a type with a roof.
    """
    memory = result.memory_bytes_per_s
    if not memory or not _is_possible(memory):
        return {}
    types = {row.inputs.partition("[")[0] for row in points}
    types |= {"tf32"} if "fp32" in types else set()
    types |= {"fp8"} if any("Float8" in kind for kind in types) else set()
    found: dict[Point, list[Roof]] = {}
    for roof in [roof for roof in result.roofs if roof.dtype in types] or result.roofs:
        if _is_possible(roof.flops):
            ridge = math.log10(roof.flops / memory), math.log10(roof.flops)
            found.setdefault(ridge, []).append(roof)
    return found


def _ticks(low: float, high: float) -> Iterator[tuple[float, float]]:
    """Exponents and values of round numbers: the shorter the axis, the more of them."""
    digits = next(digits for span, digits in _DIGITS if high - low < span)
    for power in range(math.floor(low), math.ceil(high)):
        for digit in digits:
            if low <= (place := power + math.log10(digit)) <= high:
                yield place, digit * 10.0**power


_DIGITS = ((1, (1, 2, 3, 4, 6, 8)), (2.5, (1, 2, 5)), (math.inf, (1,)))
"""Powers of ten that an axis spans, at most, and the digits that it shows."""


def _roofs(
    result: ComputationResult, points: Sequence[OperatorRow], chart: Chart
) -> Iterator[Markup]:
    """The slope of memory, and a level for each type; types of the same speed share one."""
    ridges = _ridges(result, points)
    if not ridges:
        return
    memory = math.log10(result.memory_bytes_per_s or 1)
    top = max(level for _, level in ridges)
    foot = max(chart.left, chart.least - memory)
    yield chart.curve([(foot, foot + memory), (top - memory, top)], "thin")
    for (ridge, level), roofs in ridges.items():
        yield chart.curve([(ridge, level), (chart.right, level)], "thin")
        text = f"{', '.join(roof.dtype for roof in roofs)} {format_flop(roofs[0].flops)}/s"
        yield _note(text, chart.x(chart.right), chart.y(level) - 5, text_anchor="end")


def _note(text: str, x: float, y: float, **style: str) -> Markup:
    return element("g", element("text", text, x=x, y=y, **style), class_="axis")


def _mark(row: OperatorRow, number: int, most_ns: int, chart: Chart) -> Markup:
    x, y = _place(row)
    size = 4 + 8 * math.sqrt(row.total_ns / most_ns)
    outline = shape(number, chart.x(x), chart.y(y), size)
    return element("g", element("title", _text(row)), outline, class_=f"s{number % COLORS}")


def _text(row: OperatorRow) -> str:
    """What an operator reaches; the share of the limit if there is one."""
    of_limit = ""
    if row.peak_ratio is not None:
        of_limit = f", {format_ratio(row.peak_ratio)} of the limit of {row.bound}"
    return f"{row.name} ({row.part}) {row.inputs}: {format_flop(row.flops or 0)}/s{of_limit}"


def _numbers(points: Sequence[OperatorRow], chart: Chart) -> Iterator[Markup]:
    """Numbers next to the largest operators; those of marks that overlap stand together."""
    found: list[tuple[float, float, list[str]]] = []
    for number, row in enumerate(points[:_MOST_NAMED], 1):
        place = _place(row)
        x, y = min(chart.x(place[0]) + 14, WIDTH - 40), chart.y(place[1]) + 4
        near = (names for a, b, names in found if abs(x - a) < _WIDE and abs(y - b) < _NEAR)
        if (names := next(near, None)) is None:
            found.append((x, y, names := []))
        names.append(str(number))
    for x, y, names in found:
        yield _note(", ".join(names), x, y)


def _caption(result: ComputationResult) -> str:
    text = (
        "Operators whose FLOP are known. Larger marks take more time; numbers are those of the list"
    )
    if not result.memory_bytes_per_s or not result.roofs:
        return f"{text}. The limits of this GPU are unknown: measure them with bench --compute."
    limits = "as distprof bench --compute measured them"
    if not result.is_measured:
        limits = "as the hardware sheet has them"
    return (
        f"{text}. Lines are the limits of the GPU, {limits}: the slope is that of memory "
        f"({format_bandwidth(result.memory_bytes_per_s)}), levels are those of products."
    )


def _list(result: ComputationResult, points: Sequence[OperatorRow]) -> Markup:
    items = [
        element(
            "li",
            bounded(f"{_text(row)}; {format_duration(row.total_ns / result.num_samples)} per step"),
        )
        for row in points[:_MOST_NAMED]
    ]
    return folded("The largest of them", element("ol", *items))
