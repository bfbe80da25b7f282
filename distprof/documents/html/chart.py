"""A picture with two axes: curves, their intervals and marks, as SVG."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

import msgspec

from distprof.documents.html.blocks import (
    EMPTY,
    Attribute,
    Markup,
    captioned,
    element,
    figure_number,
    picture,
    scrolled,
)
from distprof.sections.collectives import CollectiveClass
from distprof.units import format_bytes, format_duration

WIDTH, HEIGHT = 720, 340
_SIZE: Mapping[str, Attribute] = {
    "width": WIDTH, "height": HEIGHT, "viewBox": f"0 0 {WIDTH} {HEIGHT}",
}  # fmt: skip
_LEFT, _RIGHT, _TOP, _BOTTOM = 78, 20, 14, 46
_CAP = 4
"""Half the width of the ends of an interval."""
Point: TypeAlias = tuple[float, float]
Tick: TypeAlias = tuple[float, str]


class Chart(msgspec.Struct, frozen=True, kw_only=True):
    """A chart area, and the mapping from values to pixels in it."""

    left: float  # Value at the left edge.
    right: float  # Value at the right edge.
    least: float  # Value at the lower edge.
    most: float  # Value at the upper edge.

    def x(self, value: float) -> float:
        """Position of a value, in pixels from the left."""
        return _LEFT + _share(value, self.left, self.right) * (WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        """Position of a value, in pixels from the top."""
        return HEIGHT - _BOTTOM - _share(value, self.least, self.most) * (HEIGHT - _TOP - _BOTTOM)

    def curve(self, points: Sequence[Point], kind: str) -> Markup:
        """Points joined by lines; ``kind`` is a CSS class."""
        return element("polyline", points=self._path(points), class_=f"curve {kind}")

    def area(self, points: Sequence[tuple[float, float, float]], kind: str) -> Markup:
        """The area between two curves: position, lower and upper value of each point."""
        upper = [(x, high) for x, _, high in points]
        lower = [(x, low) for x, low, _ in reversed(points)]
        return element("polygon", points=self._path([*upper, *lower]), class_=f"area {kind}")

    def level(self, value: float, kind: str) -> Markup:
        """A horizontal line."""
        y = self.y(value)
        return element("line", x1=_LEFT, x2=WIDTH - _RIGHT, y1=y, y2=y, class_=kind)

    def whisker(self, at: float, low: float, high: float) -> Markup:
        """An interval, with a cap at both ends."""
        x, top, bottom = (figure_number(v) for v in (self.x(at), self.y(high), self.y(low)))
        side = figure_number(self.x(at) - _CAP)
        path = f"M{x} {top}V{bottom}M{side} {top}h{2 * _CAP}M{side} {bottom}h{2 * _CAP}"
        return element("path", d=path, class_="whisker")

    def dot(self, at: Point, text: str, kind: str = "", *, radius: float = 4.5) -> Markup:
        """A dot with a tooltip."""
        circle = element("circle", cx=self.x(at[0]), cy=self.y(at[1]), r=radius)
        named = [element("title", text)] if text else []
        return element("g", *named, circle, class_=f"dot {kind}".rstrip())

    def flag(self, at: float, text: str, kind: str) -> Markup:
        """A vertical line over the full height, labelled along the line."""
        x = self.x(at)
        line = element("line", x1=x, x2=x, y1=_TOP, y2=HEIGHT - _BOTTOM)
        turned = f"rotate(-90 {figure_number(x - 5)} {HEIGHT - _BOTTOM - 6})"
        name = element("text", text, x=x - 5, y=HEIGHT - _BOTTOM - 6, transform=turned)
        return element("g", line, name, class_=f"flag {kind}")

    def axes(self, x_ticks: Iterable[Tick], y_ticks: Iterable[Tick], x_title: str) -> Markup:
        """Lines and labels of both axes, and the title of the horizontal axis."""
        bottom, right = HEIGHT - _BOTTOM, WIDTH - _RIGHT
        drawn = []
        for value, text in y_ticks:
            y = self.y(value)
            drawn.append(element("line", x1=_LEFT, x2=right, y1=y, y2=y))
            drawn.append(element("text", text, x=_LEFT - 8, y=y + 4, text_anchor="end"))
        for value, text in x_ticks:
            x = self.x(value)
            drawn.append(element("line", x1=x, x2=x, y1=bottom, y2=bottom + 4))
            drawn.append(element("text", text, x=x, y=bottom + 18, text_anchor="middle"))
        middle = (_LEFT + right) / 2
        title = element("text", x_title, x=middle, y=HEIGHT - 8, text_anchor="middle")
        return element("g", *drawn, title, class_="axis")

    def drawn(self, *children: str, label: str) -> Markup:
        """The finished picture of the given elements, in a frame that scrolls on small screens."""
        return scrolled(picture(*children, label=label, class_="chart", **_SIZE), label)

    def _path(self, points: Sequence[Point]) -> str:
        return " ".join(f"{figure_number(self.x(x))},{figure_number(self.y(y))}" for x, y in points)


def _share(value: float, low: float, high: float) -> float:
    """Position of a value between two ends of an axis, clamped to 0–1."""
    width = high - low
    if not 0 < width < math.inf or not math.isfinite(value):
        return 0.0
    return min(max((value - low) / width, 0.0), 1.0)


def nice_ticks(least: float, most: float, count: int = 6) -> list[float]:
    """About ``count`` round values between two ends; only ``least`` if the range is not valid."""
    if not 0 < most - least < math.inf:
        return [least]
    rough = (most - least) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= rough * (1 - 1e-9))
    first, last = math.ceil(least / step - 1e-9), math.floor(most / step + 1e-9)
    return [i * step for i in range(first, last + 1)]


_EDGE = 70
COLORS = 6
"""Kinds of marks before colours and shapes repeat."""


def collectives_figure(classes: Sequence[CollectiveClass]) -> Markup:
    """Each class as a mark: its kind sets shape and colour, its exposed time sets the size."""
    timed = [c for c in classes if (c.bytes or 0) > 0 and (_time_ns(c) or 0) > 0]
    if not timed:
        return EMPTY
    scales = _Scales(timed)
    kinds = list(dict.fromkeys(c.kind for c in timed))
    most = max((c.exposed_ns_per_step or 0 for c in timed), default=0)
    lines = [_expected_line(kind, kinds, timed, scales) for kind in kinds]
    marks = [_mark(c, kinds.index(c.kind), most, scales) for c in timed]
    label = f"Time against size of {len(timed)} classes of collectives, logarithmic"
    drawn = picture(scales.axes(), *lines, *marks, label=label, class_="chart", **_SIZE)
    return captioned(_caption(timed), scrolled(drawn, label), marks_legend(kinds))


def marks_legend(names: Sequence[str]) -> Markup:
    """The shape and colour of each kind of mark, in order."""
    how = {"aria_hidden": "true", "viewBox": "0 0 14 14"}
    items = [
        element("li", element("svg", shape(i, 7, 7, 6), class_=f"s{i % COLORS}", **how), name)
        for i, name in enumerate(names)
    ]
    return element("ul", *items, class_="legend")


def expected_ns(c: CollectiveClass) -> float | None:
    """The transfer time expected from the fabric profile, ns; None without a profile."""
    took_ns, reached = c.transfer_ns_median, c.busbw_bytes_per_s
    expected = c.expected_busbw_bytes_per_s
    if not (took_ns and reached and expected and min(took_ns, reached, expected) > 0):
        return None
    return took_ns * reached / expected


def _time_ns(c: CollectiveClass) -> int | None:
    return c.transfer_ns_median or c.duration_ns_median


def _caption(timed: Sequence[CollectiveClass]) -> str:
    text = "Median time of a collective against its size. Larger marks have more exposed time."
    if any(not c.transfer_ns_median for c in timed):
        text += " Where ranks could not be matched, the time includes waiting."
    if any(expected_ns(c) for c in timed):
        return f"{text} Dashed: the time expected from the fabric profile."
    return f"{text} Add a fabric profile with --fabric to see the expected time."


class _Scales:
    """Scales of sizes and times. Both axes begin and end at a power of ten."""

    def __init__(self, timed: Sequence[CollectiveClass]) -> None:
        times = [float(_time_ns(c) or 1) for c in timed]
        times += [ns for c in timed if (ns := expected_ns(c))]
        self._x = _decades([float(c.bytes or 1) for c in timed])
        self._y = _decades(times)

    def x(self, size: float) -> float:
        low, high = self._x
        return _EDGE + (math.log10(size) - low) / (high - low) * (WIDTH - _EDGE - _RIGHT)

    def y(self, ns: float) -> float:
        low, high = self._y
        room = HEIGHT - _TOP - _BOTTOM
        return HEIGHT - _BOTTOM - (math.log10(ns) - low) / (high - low) * room

    def axes(self) -> Markup:
        """Lines and labels at powers of ten."""
        bottom, right = HEIGHT - _BOTTOM, WIDTH - _RIGHT
        drawn = []
        for power in range(self._x[0], self._x[1] + 1):
            x = self.x(10.0**power)
            drawn.append(element("line", x1=x, x2=x, y1=_TOP, y2=bottom))
            text = format_bytes(10**power)
            drawn.append(element("text", text, x=x, y=bottom + 16, text_anchor="middle"))
        for power in range(self._y[0], self._y[1] + 1):
            y = self.y(10.0**power)
            drawn.append(element("line", x1=_EDGE, x2=right, y1=y, y2=y))
            text = format_duration(10.0**power)
            drawn.append(element("text", text, x=_EDGE - 8, y=y + 4, text_anchor="end"))
        title = element("text", "size", x=(_EDGE + right) / 2, y=HEIGHT - 8, text_anchor="middle")
        return element("g", *drawn, title, class_="axis")


def _decades(values: Sequence[float]) -> tuple[int, int]:
    low = math.floor(math.log10(min(values)))
    high = math.ceil(math.log10(max(values)))
    return low, max(high, low + 1)


def _mark(c: CollectiveClass, number: int, most: int, scales: _Scales) -> Markup:
    ns = _time_ns(c) or 1
    size = 5 + 9 * math.sqrt(max(c.exposed_ns_per_step or 0, 0) / most) if most > 0 else 6.0
    exposed = format_duration(c.exposed_ns_per_step)
    text = (
        f"{c.kind} {c.axis or c.group}, {format_bytes(c.bytes)}: {format_duration(ns)}, "
        f"{c.count:,} of them, {exposed} exposed per step"
    )
    x, y = scales.x(float(c.bytes or 1)), scales.y(float(ns))
    outline = shape(number, x, y, size)
    return element("g", element("title", text), outline, class_=f"s{number % COLORS}")


def shape(number: int, x: float, y: float, size: float) -> Markup:
    """A circle, square, triangle, diamond, inverted triangle or hexagon."""
    if number % COLORS == 0:
        return element("circle", cx=x, cy=y, r=size, class_="mark")
    corners, turn = ((4, 0.125), (3, -0.25), (4, 0.0), (3, 0.25), (6, 0.0))[number % COLORS - 1]
    angles = [2 * math.pi * (turn + i / corners) for i in range(corners)]
    points = [(x + size * math.cos(angle), y + size * math.sin(angle)) for angle in angles]
    drawn = " ".join(",".join(map(figure_number, point)) for point in points)
    return element("polygon", points=drawn, class_="mark")


def _expected_line(
    kind: str, kinds: Sequence[str], timed: Sequence[CollectiveClass], scales: _Scales
) -> Markup:
    points = sorted(
        (float(c.bytes or 1), ns) for c in timed if c.kind == kind and (ns := expected_ns(c))
    )
    if not points:
        return EMPTY
    if len(points) == 1:  # a line needs two points
        size, ns = points[0]
        points = [(size * 0.85, ns), (size * 1.15, ns)]
    drawn = " ".join(f"{scales.x(size):.1f},{scales.y(ns):.1f}" for size, ns in points)
    line = element("polyline", points=drawn, class_="expected")
    title = element("title", f"{kind}: expected from the fabric")
    return element("g", title, line, class_=f"s{kinds.index(kind) % COLORS}")
