"""Lost time by rank and step, as a map in eight shades."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise

import msgspec
import numpy as np

from distprof.documents.html.blocks import (
    EMPTY,
    Markup,
    captioned,
    element,
    figure_number,
    folded,
    picture,
    scrolled,
)
from distprof.documents.html.blocks import grid as table
from distprof.escape import plain
from distprof.sections.report import Report
from distprof.sections.table import Column
from distprof.units import format_ratio

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
    """The cells (indices into ``kinds``, -1 for none) with names along two sides, scrollable."""
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
    lists = {
        "data_rows": [plain(name[:_MAX_NAME]) for name in grid.rows],
        "data_columns": [plain(name[:_MAX_NAME]) for name in grid.columns],
        "data_groups": [(first, plain(name[:_MAX_NAME])) for first, name in grid.groups],
    }
    return {
        **{name: msgspec.json.encode(values).decode() for name, values in lists.items()},
        "data_row": grid.row_word,
        "data_column": grid.column_word,
        "data_group": grid.group_word,
    }


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
    """One path of horizontal strokes per kind; adjacent cells of one kind share a stroke."""
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
    places = [f"{figure_number((i + 0.3) * size)} 6" for i in range(len(names))]
    texts = [
        element("text", name, transform=f"translate({place}) rotate(90)")
        for name, place in list(zip(short, places, strict=True))[::every]
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


SHADES = 8
_KINDS = tuple(f"h{shade}" for shade in range(SHADES))
MAX_CELLS = 60_000
"""Above this, cells are merged: 1,024 ranks keep 58 columns, and the file stays below 1 MB."""
MAX_ROWS = 2_048
FEW_RANKS = 64
"""A map of 64 ranks fits on a screen. Larger jobs get a map by node first."""
LEAST_SPREAD = 0.1
"""10 % of a step: if cells differ by at least this, the shades cover only their range."""
_MOST_SHOWN = 12
_LOST = "of the step without computation"
_PACE = "of the median rank's computation time in the step"
_HIGHEST = 1_294
"""Per mille. Two base-36 digits hold up to 1,295; that value stands for unknown."""
_UNKNOWN = "zz"


class Heat(msgspec.Struct, frozen=True, kw_only=True):
    """A matrix of shares to draw."""

    # Shares, shape ``(rows, columns)``, from 0 and possibly above 1; NaN where nothing was
    # recorded.
    values: np.ndarray
    grid: Grid  # Names of rows and columns.
    what: str  # The reference of the shares, for labels.


class _Cells(msgspec.Struct, frozen=True, kw_only=True):
    """Computation and length of each step on each rank, ranks sorted by node."""

    # Computation in ns, shape ``(ranks, steps)``; NaN where nothing was recorded.
    computation: np.ndarray
    span: np.ndarray  # Length of the step, in the same form.
    ranks: list[int]  # Rank of each row.
    steps: list[int]  # Step of each column.
    nodes: list[str]  # Node of each row; empty if unknown.


def heats_of(report: Report) -> tuple[Heat, Heat] | None:
    """Share of each step without computation, and computation relative to the median rank."""
    cells = _cells_of(report)
    if cells is None:
        return None
    lost, pace = _shares_of(cells)
    return _of_bounded_size(lost, cells, _LOST), _of_bounded_size(pace, cells, _PACE)


def node_heats_of(report: Report) -> tuple[Heat, Heat] | None:
    """The same by node: the mean of its ranks, and the pace of its slowest rank."""
    cells = _cells_of(report)
    if cells is None or len(cells.ranks) <= FEW_RANKS or len(set(cells.nodes)) < 2:
        return None
    lost, pace = _shares_of(cells)
    begins = _begins(cells.nodes)
    slowest = np.fmax.reduceat(pace, begins, axis=0)
    nodes = [f"{cells.nodes[i] or 'unknown node'}" for i in begins]
    return (
        _by_node(_means_from(lost, begins, 0), nodes, cells.steps, _LOST),
        _by_node(slowest, nodes, cells.steps, _PACE),
    )


def _by_node(values: np.ndarray, nodes: list[str], steps: list[int], what: str) -> Heat:
    per_column = -(-len(steps) // max(MAX_CELLS // len(nodes), 1))
    columns = _names([str(step) for step in steps], per_column)
    grid = Grid(rows=tuple(nodes), columns=columns, row_word="node")
    return Heat(values=_means(values, per_column, 1), grid=grid, what=what)


def _begins(nodes: Sequence[str]) -> list[int]:
    """The first row of each node."""
    return [0, *(i for i, pair in enumerate(pairwise(nodes), 1) if pair[0] != pair[1])]


def _shares_of(cells: _Cells) -> tuple[np.ndarray, np.ndarray]:
    """Non-computation as a share of the step, and computation relative to the median rank."""
    middle = np.nanmedian(cells.computation, axis=0)
    pace = cells.computation / np.where(middle > 0, middle, np.nan)
    return 1 - cells.computation / cells.span, pace


def _cells_of(report: Report) -> _Cells | None:
    rows = [row for row in report.breakdown.steps if row.span_ns > 0]
    if len(rows) < 2:
        return None
    node_of = {rank: node for node, ranks in report.run.nodes.items() for rank in ranks}
    places = {node: i for i, node in enumerate(report.run.nodes)}
    ranks = sorted({c.rank for c in rows}, key=lambda r: (places.get(node_of.get(r, ""), -1), r))
    steps = sorted({c.step for c in rows})
    row_of = {rank: i for i, rank in enumerate(ranks)}
    column_of = {step: i for i, step in enumerate(steps)}
    computation = np.full((len(ranks), len(steps)), np.nan)
    span = np.full_like(computation, np.nan)
    for row in rows:
        at = row_of[row.rank], column_of[row.step]
        computation[at], span[at] = row.computation_ns, row.span_ns
    nodes = [node_of.get(rank, "") for rank in ranks]
    return _Cells(computation=computation, span=span, ranks=ranks, steps=steps, nodes=nodes)


def _of_bounded_size(values: np.ndarray, cells: _Cells, what: str) -> Heat:
    per_row = -(-len(cells.ranks) // MAX_ROWS)
    num_rows = -(-len(cells.ranks) // per_row)
    per_column = -(-len(cells.steps) // max(MAX_CELLS // num_rows, 1))
    several = len(set(cells.nodes)) > 1
    names = [
        f"{r} ({node})" if several and node else str(r)
        for r, node in zip(cells.ranks, cells.nodes, strict=True)
    ]
    groups = tuple((i // per_row, cells.nodes[i] or "unknown node") for i in _begins(cells.nodes))
    grid = Grid(
        rows=_names(names, per_row),
        columns=_names([str(step) for step in cells.steps], per_column),
        groups=groups if several else (),
    )
    return Heat(values=_means(_means(values, per_row, 0), per_column, 1), grid=grid, what=what)


def _means(values: np.ndarray, size: int, axis: int) -> np.ndarray:
    """Means of ``size`` neighbours along an axis, ignoring unknown values."""
    if size == 1:
        return values
    return _means_from(values, range(0, values.shape[axis], size), axis)


def _means_from(values: np.ndarray, starts: Sequence[int], axis: int) -> np.ndarray:
    """Means of the values from each start to the next, ignoring unknown values."""
    known = ~np.isnan(values)
    sums = np.add.reduceat(np.where(known, values, 0.0), list(starts), axis=axis)
    counts = np.add.reduceat(known.astype(np.int64), list(starts), axis=axis)
    means: np.ndarray = np.divide(sums, counts, out=np.full(sums.shape, np.nan), where=counts > 0)
    return means


def _names(names: Sequence[str], size: int) -> tuple[str, ...]:
    groups = [names[i : i + size] for i in range(0, len(names), size)]
    return tuple(f"{g[0]} to {g[-1]}" if len(g) > 1 else g[0] for g in groups)


def heat_figure(heat: Heat, caption: str) -> Markup:
    """The map with its scale, a table of its largest cells, and the data of the script."""
    least, most = _bounds(heat.values)
    grid = heat.grid
    label = f"{grid.row_word} by {grid.column_word}: share {heat.what}, up to {format_ratio(most)}"
    shades = _shades(heat.values, least, most)
    known = np.nan_to_num(heat.values.ravel(), nan=-1.0)
    return captioned(
        caption,
        _scale(least, most),
        cell_map(shades, _KINDS, grid, label),
        _largest(heat),
        class_="heat",
        data_values="".join(
            _UNKNOWN if value < 0 else two_digits(min(round(1_000 * value), _HIGHEST))
            for value in known.tolist()
        ),
        data_unit=f"% {heat.what}",
        **grid_data(grid),
    )


def _bounds(values: np.ndarray) -> tuple[float, float]:
    """The range of the shades: from 0 unless cells differ by :data:`LEAST_SPREAD` or more."""
    if np.isnan(values).all():
        return 0.0, 0.0
    least, most = float(np.nanmin(values)), float(np.nanmax(values))
    return (least if most - least >= LEAST_SPREAD else 0.0), most


def _shades(values: np.ndarray, least: float, most: float) -> np.ndarray:
    """Index of the shade of each cell, -1 where nothing was recorded."""
    width = most - least
    scaled = np.nan_to_num((values - least) / width if width > 0 else values * 0, nan=-1.0)
    shades = np.clip(np.ceil(scaled * SHADES).astype(np.int64) - 1, 0, SHADES - 1)
    return np.where(scaled < 0, -1, shades)


def _scale(least: float, most: float) -> Markup:
    ends = [f"{100 * i / SHADES:g}%" for i in range(SHADES + 1)]
    lines = [
        element("line", x1=left, x2=right, y1=6, y2=6, class_=f"h{i}")
        for i, (left, right) in enumerate(pairwise(ends))
    ]
    drawn = element("svg", *lines, aria_hidden="true")
    return element("p", format_ratio(least), drawn, format_ratio(most), class_="scale")


def _largest(heat: Heat) -> Markup:
    """The largest cells as a table, for readers who cannot see the map."""
    flat = np.nan_to_num(heat.values.ravel(), nan=-1.0)
    order = np.argsort(-flat, kind="stable")[:_MOST_SHOWN].tolist()
    width = heat.values.shape[1]
    found = [
        (heat.grid.rows[i // width], heat.grid.columns[i % width], format_ratio(float(flat[i])))
        for i in order
        if flat[i] >= 0
    ]
    if not found:
        return EMPTY
    words = (heat.grid.row_word, heat.grid.column_word)
    titles = (*(Column(word, left=True) for word in words), Column("share"))
    return folded(f"The {len(found)} largest cells", table(titles, found), class_="table")
