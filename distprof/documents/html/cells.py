"""Maps of cells, rows by columns: strokes by shade, names on two sides, data for the script."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

import msgspec
import numpy as np

from distprof.documents.html.blocks import scrolled
from distprof.documents.html.markup import Markup, element, figure_number, picture
from distprof.escape import plain

BAND = 16
"""Rows per SVG path, so that browsers paint only the rows on the screen."""
_MAX_NAME = 200
_MAX_TURNED = 28
_LINE = 14
"""Pixels that a line of text takes."""
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


class Grid(msgspec.Struct, frozen=True, kw_only=True):
    """Names of the rows and columns of a map."""

    rows: tuple[str, ...]  # Name of each row.
    columns: tuple[str, ...]  # Name of each column.
    # First row and name of each group of rows, such as a node; empty for none.
    groups: tuple[tuple[int, str], ...] = ()
    row_word: str = "rank"  # Noun for a row.
    column_word: str = "step"  # Noun for a column.
    is_turned: bool = False  # Whether to rotate the column names because they are long.
    group_word: str = "node"  # Noun for a group.


def cell_map(shades: np.ndarray, kinds: Sequence[str], grid: Grid, label: str) -> Markup:
    """The cells of a map with names along two sides, in a scrollable region.

    The page contains the whole picture. The script only changes its size.

    Args:
        shades: Index into ``kinds``, shape ``(rows, columns)``; -1 for empty cells.
        kinds: CSS classes.
        grid: Names of rows and columns.
        label: Text for screen readers.
    """
    num_rows, num_columns = shades.shape
    high = max(4, min(20, 400 // num_rows))
    wide = max(4, min(40, 720 // num_columns))
    breaks = [first for first, _ in grid.groups if first]
    lines = [element("line", x1=0, x2=num_columns, y1=i, y2=i, class_="node") for i in breaks]
    cells = picture(
        *_bands(shades, kinds),
        *lines,
        element("rect", class_="cursor", width=1, height=1, visibility="hidden"),
        label=label,
        class_="cells",
        viewBox=f"0 0 {num_columns} {num_rows}",
        preserveAspectRatio="none",
        width=wide * num_columns,
        height=high * num_rows,
    )
    rows = _axis(grid.rows, high, is_down=True)
    columns = (_turned if grid.is_turned else _axis)(grid.columns, wide)
    drawn = element("div", rows, cells, element("span"), columns, class_="map")
    return scrolled(drawn, label)


def grid_data(grid: Grid) -> dict[str, str]:
    """Attributes of a map's figure, from which the script builds lists and labels."""
    return {
        "data_rows": _listed(grid.rows),
        "data_columns": _listed(grid.columns),
        "data_groups": msgspec.json.encode(
            [(first, plain(name[:_MAX_NAME])) for first, name in grid.groups]
        ).decode(),
        "data_row": grid.row_word,
        "data_column": grid.column_word,
        "data_group": grid.group_word,
    }


def _listed(names: Sequence[str]) -> str:
    return msgspec.json.encode([plain(name[:_MAX_NAME]) for name in names]).decode()


def two_digits(value: int) -> str:
    """A number below 1,296 as two base-36 digits."""
    return _DIGITS[value // 36] + _DIGITS[value % 36]


def _bands(shades: np.ndarray, kinds: Sequence[str]) -> Iterator[Markup]:
    for first in range(0, len(shades), BAND):
        paths = strokes(shades[first : first + BAND], len(kinds), first=first)
        for kind, path in zip(kinds, paths, strict=True):
            if path:
                yield element("path", d=path, class_=kind)


def strokes(shades: np.ndarray, num_kinds: int, *, first: int = 0) -> list[Markup]:
    """One path of horizontal strokes per kind; adjacent cells of one kind share a stroke.

    Args:
        shades: Index of the kind, shape ``(rows, columns)``; -1 for empty cells.
        num_kinds: Number of paths.
        first: Index of the first row.
    """
    paths: list[list[str]] = [[] for _ in range(num_kinds)]
    for y, row in enumerate(shades.tolist(), first):
        x = 0
        for shade, run in groupby(row):
            length = len(list(run))
            if shade >= 0:
                paths[shade].append(f"M{x} {y}.5h{length}")
            x += length
    return [Markup("".join(path)) for path in paths]


def _turned(names: Sequence[str], size: int) -> Markup:
    """Column names, rotated to read downwards; long names are cut."""
    short = [name[:_MAX_TURNED] for name in names]
    every = -(-_LINE // size)
    texts = [
        element(
            "text", name, transform=f"translate({figure_number((i + 0.3) * size)} 6) rotate(90)"
        )
        for i, name in enumerate(short)
        if i % every == 0
    ]
    width, height = size * len(names) + 16, 7 * max(map(len, short)) + 12
    name = "labels turned"
    return element("svg", *texts, width=width, height=height, class_=name, aria_hidden="true")


def _axis(names: Sequence[str], size: int, *, is_down: bool = False) -> Markup:
    """Every n-th name along a side, as many as there is room for."""
    longest = max(len(name[:_MAX_TURNED]) for name in names)
    every = -(-_LINE // size) if is_down else -(-(7 * longest + 8) // size)
    width = 7 * longest + 8 if is_down else size * len(names) + 40
    height = size * len(names) if is_down else 16
    texts = [
        element(
            "text",
            name[:_MAX_TURNED],
            x=width - 6 if is_down else i * size,
            y=(i + 0.5) * size + 4 if is_down else 12,
            text_anchor="end" if is_down else None,
        )
        for i, name in enumerate(names)
        if i % every == 0
    ]
    return element("svg", *texts, width=width, height=height, class_="labels", aria_hidden="true")
