"""Time lost by rank and step, as cells of eight shades."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise

import msgspec
import numpy as np

from distprof.documents.html.blocks import grid, scrolled
from distprof.documents.html.markup import EMPTY, Markup, element, picture
from distprof.sections.report import Report
from distprof.sections.table import Column
from distprof.units import format_ratio

__all__ = ["Heat", "heat_figure", "heats_of", "shade_paths"]

SHADES = 8
MAX_CELLS = 60_000
"""More cells are put together: 1,024 ranks keep 58 steps, and the file stays below 1 MB."""
MAX_ROWS = 2_048
BAND = 16
LEAST_SPREAD = 0.1
"""Ten percent of a step: differences beyond it are worth the whole scale."""
_MOST_SHOWN = 12
_HIGHEST = 1_294
"""Per mille; two digits of base 36 hold up to 1,295, of which the last stands for unknown."""
_UNKNOWN = "zz"
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


class Heat(msgspec.Struct, frozen=True, kw_only=True):
    """A matrix of shares to be drawn.

    Args:
        values: Rows times columns, 0 to 1 and more; NaN where nothing was recorded.
        rows: Name of each row.
        columns: Name of each column.
        breaks: Rows before which a new node begins.
        what: What the shares are, for labels.
        row_word: What a row is.
        column_word: What a column is.
    """

    values: np.ndarray
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    breaks: tuple[int, ...] = ()
    what: str
    row_word: str = "rank"
    column_word: str = "step"


class _Cells(msgspec.Struct, frozen=True, kw_only=True):
    """What each rank did in each step, ranks by node.

    Args:
        computation: Ranks times steps, ns; NaN where nothing was recorded.
        span: The same.
        ranks: Of the rows.
        steps: Of the columns.
        nodes: Of the rows; empty names where unknown.
    """

    computation: np.ndarray
    span: np.ndarray
    ranks: list[int]
    steps: list[int]
    nodes: list[str]


def heats_of(report: Report) -> tuple[Heat, Heat] | None:
    """Share of each step that each rank does not compute, and its computation over the median's.

    None for fewer than two cells. Ranks stand by node. Neighbouring steps, then ranks, are put
    together where there are too many.
    """
    cells = _cells_of(report)
    if cells is None:
        return None
    middle = np.nanmedian(cells.computation, axis=0)
    lost = 1 - cells.computation / cells.span
    pace = cells.computation / np.where(middle > 0, middle, np.nan)
    return (
        _of_bounded_size(lost, cells, "of the step is not computation"),
        _of_bounded_size(pace, cells, "of the computation of the step's median rank"),
    )


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
    breaks = [i for i, pair in enumerate(pairwise(cells.nodes), 1) if pair[0] != pair[1]]
    return Heat(
        values=_means(_means(values, per_row, 0), per_column, 1),
        rows=_names(names, per_row),
        columns=_names([str(step) for step in cells.steps], per_column),
        breaks=tuple(i // per_row for i in breaks) if several else (),
        what=what,
    )


def _means(values: np.ndarray, size: int, axis: int) -> np.ndarray:
    """Means of ``size`` neighbours along an axis, without what is unknown."""
    if size == 1:
        return values
    starts = np.arange(0, values.shape[axis], size)
    known = ~np.isnan(values)
    sums = np.add.reduceat(np.where(known, values, 0.0), starts, axis=axis)
    counts = np.add.reduceat(known.astype(np.int64), starts, axis=axis)
    means: np.ndarray = np.divide(sums, counts, out=np.full(sums.shape, np.nan), where=counts > 0)
    return means


def _names(names: Sequence[str], size: int) -> tuple[str, ...]:
    if size == 1:
        return tuple(names)
    groups = [names[i : i + size] for i in range(0, len(names), size)]
    return tuple(f"{g[0]} to {g[-1]}" if len(g) > 1 else g[0] for g in groups)


def heat_figure(heat: Heat, caption: str) -> Markup:
    """The map with its scale, its largest cells as a table, and what a script needs to name cells.

    A click, or two lists that keys reach, show the number of a cell.
    """
    least, most = _bounds(heat.values)
    label = f"{heat.row_word} by {heat.column_word}: share that {heat.what}, up to " + format_ratio(
        most
    )
    return element(
        "figure",
        element("figcaption", caption),
        _scale(least, most),
        scrolled(_map(heat, least, most, label), label),
        _largest(heat),
        class_="heat",
        data_rows=_listed(heat.rows),
        data_columns=_listed(heat.columns),
        data_values=_encoded(heat.values),
        data_row=heat.row_word,
        data_column=heat.column_word,
        data_unit=f"% {heat.what}",
    )


def _bounds(values: np.ndarray) -> tuple[float, float]:
    """Where shades begin and end: at 0, unless cells differ by so much that more is seen without.

    Cells that hardly differ must not look as if they did.
    """
    if np.isnan(values).all():
        return 0.0, 0.0
    least, most = float(np.nanmin(values)), float(np.nanmax(values))
    return (least if most - least >= LEAST_SPREAD else 0.0), most


def _listed(names: Sequence[str]) -> str:
    from distprof.escape import plain

    return msgspec.json.encode([plain(name[:200]) for name in names]).decode()


def _encoded(values: np.ndarray) -> str:
    """Per mille of each cell, row by row, two digits of base 36 each."""
    known = np.nan_to_num(values.ravel(), nan=-1.0)
    return "".join(
        _UNKNOWN if value < 0 else _two_digits(min(round(1_000 * value), _HIGHEST))
        for value in known.tolist()
    )


def _two_digits(value: int) -> str:
    return _DIGITS[value // 36] + _DIGITS[value % 36]


def _map(heat: Heat, least: float, most: float, label: str) -> Markup:
    num_rows, num_columns = heat.values.shape
    high = max(4, min(20, 400 // num_rows))
    wide = max(4, min(40, 720 // num_columns))
    lines = [element("line", x1=0, x2=num_columns, y1=i, y2=i, class_="node") for i in heat.breaks]
    cells = picture(
        *_bands(heat.values, least, most),
        *lines,
        element("rect", class_="cursor", width=1, height=1, visibility="hidden"),
        label=label,
        class_="cells",
        viewBox=f"0 0 {num_columns} {num_rows}",
        preserveAspectRatio="none",
        width=wide * num_columns,
        height=high * num_rows,
    )
    rows = _axis(heat.rows, high, is_down=True)
    columns = _axis(heat.columns, wide, is_down=False)
    return element("div", rows, cells, element("span"), columns, class_="map")


def _bands(values: np.ndarray, least: float, most: float) -> Iterator[Markup]:
    """Rows by sixteens, so that a browser draws only those that are on the screen."""
    for first in range(0, len(values), BAND):
        for shade, path in enumerate(
            shade_paths(values[first : first + BAND], least, most, first=first)
        ):
            if path:
                yield element("path", d=path, class_=f"h{shade}")


def shade_paths(values: np.ndarray, least: float, most: float, *, first: int = 0) -> list[Markup]:
    """A path of horizontal strokes for each shade, neighbours of one shade as one stroke.

    Args:
        values: Rows times columns.
        least: Value at which the first shade begins.
        most: Value at which the last one ends.
        first: Place of the first row.
    """
    paths: list[list[str]] = [[] for _ in range(SHADES)]
    for y, shades in enumerate(_shades(values, least, most).tolist(), first):
        x = 0
        for shade, run in groupby(shades):
            length = len(list(run))
            if shade >= 0:
                paths[shade].append(f"M{x} {y}.5h{length}")
            x += length
    return [Markup("".join(path)) for path in paths]


def _shades(values: np.ndarray, least: float, most: float) -> np.ndarray:
    """Index of the shade of each cell, -1 where nothing was recorded."""
    width = most - least
    scaled = np.nan_to_num((values - least) / width if width > 0 else values * 0, nan=-1.0)
    shades = np.clip(np.ceil(scaled * SHADES).astype(np.int64) - 1, 0, SHADES - 1)
    return np.where(scaled < 0, -1, shades)


def _axis(names: Sequence[str], size: int, *, is_down: bool) -> Markup:
    """Some of the names along a side, as many as there is room for."""
    longest = max(len(name[:24]) for name in names)
    every = -(-14 // size) if is_down else -(-(7 * longest + 8) // size)
    width = 7 * longest + 8 if is_down else size * len(names) + 40
    height = size * len(names) if is_down else 16
    texts = [
        element(
            "text",
            name[:24],
            x=width - 6 if is_down else i * size,
            y=(i + 0.5) * size + 4 if is_down else 12,
            text_anchor="end" if is_down else None,
        )
        for i, name in enumerate(names)
        if i % every == 0
    ]
    return element("svg", *texts, width=width, height=height, class_="labels", aria_hidden="true")


def _scale(least: float, most: float) -> Markup:
    lines = [
        element(
            "line",
            x1=f"{100 * i / SHADES:g}%",
            x2=f"{100 * (i + 1) / SHADES:g}%",
            y1=6,
            y2=6,
            class_=f"h{i}",
        )
        for i in range(SHADES)
    ]
    drawn = element("svg", *lines, aria_hidden="true")
    return element("p", format_ratio(least), drawn, format_ratio(most), class_="scale")


def _largest(heat: Heat) -> Markup:
    """The cells with most, for those who cannot see the map."""
    flat = np.nan_to_num(heat.values.ravel(), nan=-1.0)
    order = np.argsort(-flat, kind="stable")[:_MOST_SHOWN].tolist()
    width = heat.values.shape[1]
    found = [
        (heat.rows[i // width], heat.columns[i % width], format_ratio(float(flat[i])))
        for i in order
        if flat[i] >= 0
    ]
    if not found:
        return EMPTY
    titles = (
        Column(heat.row_word, left=True),
        Column(heat.column_word, left=True),
        Column("share"),
    )
    summary = element("summary", f"The {len(found)} cells with most")
    return element("details", summary, grid(titles, found), class_="table")
