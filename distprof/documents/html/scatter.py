"""Collectives: time against size, both logarithmic, with the time expected from the fabric."""

from __future__ import annotations

import math
from collections.abc import Sequence

from distprof.documents.html.blocks import scrolled
from distprof.documents.html.markup import EMPTY, Markup, captioned, element, figure_number, picture
from distprof.sections.collectives.result import CollectiveClass
from distprof.units import format_bytes, format_duration

WIDTH, HEIGHT = 720, 340
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 20, 14, 46
_COLORS = 6


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
    drawn = picture(
        scales.axes(),
        *lines,
        *marks,
        label=label,
        width=WIDTH,
        height=HEIGHT,
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
    )
    return captioned(_caption(timed), scrolled(drawn, label), _named(kinds))


def expected_ns(c: CollectiveClass) -> float | None:
    """The transfer time expected from the fabric profile, ns; None without a profile."""
    took_ns, reached, expected = (
        c.transfer_ns_median,
        c.busbw_bytes_per_s,
        c.expected_busbw_bytes_per_s,
    )
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
        return _LEFT + (math.log10(size) - low) / (high - low) * (WIDTH - _LEFT - _RIGHT)

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
            drawn.append(element("line", x1=_LEFT, x2=right, y1=y, y2=y))
            text = format_duration(10.0**power)
            drawn.append(element("text", text, x=_LEFT - 8, y=y + 4, text_anchor="end"))
        title = element("text", "size", x=(_LEFT + right) / 2, y=HEIGHT - 8, text_anchor="middle")
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
    outline = _shape(number, x, y, size)
    return element("g", element("title", text), outline, class_=f"s{number % _COLORS}")


def _shape(number: int, x: float, y: float, size: float) -> Markup:
    """A circle, square, triangle, diamond, inverted triangle or hexagon."""
    if number % _COLORS == 0:
        return element("circle", cx=x, cy=y, r=size, class_="mark")
    corners, turn = ((4, 0.125), (3, -0.25), (4, 0.0), (3, 0.25), (6, 0.0))[number % _COLORS - 1]
    points = []
    for i in range(corners):
        angle = 2 * math.pi * (turn + i / corners)
        point = (x + size * math.cos(angle), y + size * math.sin(angle))
        points.append(",".join(map(figure_number, point)))
    return element("polygon", points=" ".join(points), class_="mark")


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
    number = kinds.index(kind) % _COLORS
    line = element("polyline", points=drawn, class_="expected")
    return element(
        "g", element("title", f"{kind}: expected from the fabric"), line, class_=f"s{number}"
    )


def _named(kinds: Sequence[str]) -> Markup:
    items = [
        element(
            "li",
            element(
                "svg",
                _shape(i, 7, 7, 6),
                class_=f"s{i % _COLORS}",
                aria_hidden="true",
                viewBox="0 0 14 14",
            ),
            kind,
        )
        for i, kind in enumerate(kinds)
    ]
    return element("ul", *items, class_="legend")
