"""What a table of a report is, before somebody draws it."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

__all__ = [
    "Bar",
    "Cell",
    "Drawing",
    "TableColumn",
    "TableView",
    "counted",
    "folded_ranks",
    "number",
]

MAX_RANKS_SHOWN = 12
MAX_OUTLIERS = 5
_OUTLIER_SPREADS = 5.0
_OUTLIER_RATIO = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A share of a whole, to be drawn as a bar.

    Args:
        ratio: 0 to 1.
        key: Part of the step it belongs to, which decides its colour.
    """

    ratio: float
    key: str


@dataclass(frozen=True, slots=True)
class Drawing:
    """Something drawn with characters, as wide as there is room.

    Args:
        draw: From a number of characters to the text of one line.
    """

    draw: Callable[[int], str]


Cell = str | Bar | Drawing


@dataclass(frozen=True, slots=True, kw_only=True)
class TableColumn:
    """One column.

    Args:
        title: Its heading.
        left: Whether cells are words, set at the left.
        wide_only: Left out where the terminal is narrow.
        stretch: Gets the room that is left, and is cut to it.
        wrap: Holds sentences, set on as many lines as they need.
    """

    title: str
    left: bool = False
    wide_only: bool = False
    stretch: bool = False
    wrap: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TableView:
    """One table.

    Args:
        title: Heading, a few words.
        columns: The columns.
        rows: One cell for each column; text is not escaped yet.
        caption: What the numbers are, half a sentence beside the heading.
        notes: Sentences under the table.
        strong: Indexes of rows to be set in bold, such as a sum.
    """

    title: str
    columns: tuple[TableColumn, ...]
    rows: tuple[tuple[Cell, ...], ...]
    caption: str = ""
    notes: tuple[str, ...] = ()
    strong: frozenset[int] = field(default_factory=frozenset)


def counted(number: int, noun: str) -> str:
    """A number of things, for example ``1 step`` and ``2,000 steps``."""
    plural = "" if number == 1 else "es" if noun.endswith("s") else "s"
    return f"{number:,} {noun}{plural}"


def number(value: float | None, unit: str = "") -> str:
    """A whole number with its unit; a dash where it is not known."""
    return "–" if value is None else f"{value:,.0f}{unit}"


def folded_ranks(
    ranks: Sequence[int],
    values: Sequence[Sequence[float | None]],
    texts: Callable[[Sequence[float | None]], tuple[Cell, ...]],
    *,
    show_all: bool,
) -> tuple[tuple[Cell, ...], ...]:
    """Rows of a table by rank, folded when there are more than twelve.

    Args:
        ranks: Rank of each row.
        values: Numbers of each row; None where unknown.
        texts: Numbers of a row as cells.
        show_all: Never fold.

    Returns:
        A row per rank; or minimum, median and maximum of each column and the ranks that stand
        out of it by five times the typical deviation and five percent.
    """
    if show_all or len(ranks) <= MAX_RANKS_SHOWN:
        return tuple((str(r), *texts(v)) for r, v in zip(ranks, values, strict=True))
    columns = list(zip(*values, strict=True))
    kinds: tuple[tuple[str, Callable[[list[float]], float]], ...] = (
        ("min", min),
        ("median", statistics.median),
        ("max", max),
    )
    summary = [
        (name, *texts([_over_known(column, measure) for column in columns]))
        for name, measure in kinds
    ]
    shown = [(str(ranks[i]), *texts(values[i])) for i in _outliers(columns)]
    return (*summary, *shown)


def _over_known(
    column: Sequence[float | None], measure: Callable[[list[float]], float]
) -> float | None:
    known = [value for value in column if value is not None]
    return measure(known) if known else None


def _outliers(columns: Sequence[Sequence[float | None]]) -> list[int]:
    """Rows that stand out in some column, farthest first, at most five."""
    distance: dict[int, float] = {}
    for column in columns:
        known = [value for value in column if value is not None]
        if len(known) < MAX_RANKS_SHOWN:
            continue
        middle = statistics.median(known)
        spread = statistics.median(abs(value - middle) for value in known)
        least = max(_OUTLIER_SPREADS * spread, _OUTLIER_RATIO * abs(middle))
        for i, value in enumerate(column):
            if value is not None and least > 0 and abs(value - middle) > least:
                distance[i] = max(distance.get(i, 0.0), abs(value - middle) / least)
    return sorted(distance, key=lambda i: (-distance[i], i))[:MAX_OUTLIERS]
