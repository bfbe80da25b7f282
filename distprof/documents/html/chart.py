"""A picture with two axes: curves, their intervals and marks, as SVG."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TypeAlias

import msgspec

from distprof.documents.html.blocks import scrolled
from distprof.documents.html.markup import Markup, element, figure_number, picture

WIDTH, HEIGHT = 720, 340
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
        return _LEFT + _share(value, self.left, self.right) * _room()[0]

    def y(self, value: float) -> float:
        """Position of a value, in pixels from the top."""
        return HEIGHT - _BOTTOM - _share(value, self.least, self.most) * _room()[1]

    def curve(self, points: Sequence[Point], kind: str) -> Markup:
        """Points joined by lines; ``kind`` is a CSS class."""
        return element("polyline", points=self._path(points), class_=f"curve {kind}")

    def area(self, points: Sequence[tuple[float, float, float]], kind: str) -> Markup:
        """The area between two curves.

        Args:
            points: Position, lower and upper value of each point, from left to right.
            kind: A CSS class.
        """
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
        svg = picture(
            *children,
            label=label,
            class_="chart",
            width=WIDTH,
            height=HEIGHT,
            viewBox=f"0 0 {WIDTH} {HEIGHT}",
        )
        return scrolled(svg, label)

    def _path(self, points: Sequence[Point]) -> str:
        return " ".join(f"{figure_number(self.x(x))},{figure_number(self.y(y))}" for x, y in points)


def _room() -> tuple[int, int]:
    return WIDTH - _LEFT - _RIGHT, HEIGHT - _TOP - _BOTTOM


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
