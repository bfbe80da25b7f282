"""Tables of a report before they are drawn, and how they are declared.

A table is a title, columns and records: :func:`rows_table`, or :func:`ranks_table` if rows are
ranks, which it folds if there are many. A column says what it shows of a record.
"""

from __future__ import annotations

import functools
import operator
import re
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from distprof.units import (
    fold_ranks,
    format_bandwidth,
    format_bytes,
    format_duration,
    format_ratio,
    signed,
)

_T = TypeVar("_T")
MAX_RANKS_SHOWN = 12
MAX_OUTLIERS = 5
_OUTLIER_SPREADS = 5.0
_OUTLIER_RATIO = 0.05


class Bar(msgspec.Struct, frozen=True, kw_only=True):
    """A share of a whole, to be drawn as a bar."""

    # 0 to 1; values outside, in reports from elsewhere, are drawn as the nearer limit.
    ratio: float
    key: str  # Part of the step that it belongs to, which decides its colour.

    def length(self, width: int) -> int:
        """Number of characters of the bar, if the whole takes ``width``."""
        return round(min(max(self.ratio, 0.0), 1.0) * width)


class Drawing(msgspec.Struct, frozen=True):
    """A drawing made of characters that fills the available width."""

    draw: Callable[[int], str]  # Function from a number of characters to the text of one line.


Cell = str | Bar | Drawing


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its heading, and what it shows of a record."""

    title: str  # Its heading.
    # A field of the records, dotted for a field of a field, or a function of a record. Empty if
    # rows are made by hand.
    shows: str | Callable[[Any], object] = ""
    _: KW_ONLY
    # Format of numbers, a key of :data:`FORMS`; by default the unit at the end of the field's name,
    # and without a unit a count. Texts are shown unchanged.
    form: str = ""
    left: bool = False  # Whether cells are words, aligned left.
    wide_only: bool = False  # Whether it is left out in a narrow terminal.
    stretch: bool = False  # Whether it gets the remaining width, and is cut to it.
    wrap: bool = False  # Whether cells are sentences, wrapped over as many lines as they need.
    # Whether there is anything to show; if not, the table functions leave the column out.
    when: bool = True

    def value(self, record: object) -> Any:
        """The value that the column shows of ``record``, before formatting."""
        if callable(self.shows):
            return self.shows(record)
        return operator.attrgetter(self.shows)(record)

    def cell(self, value: Any) -> Cell:
        """``value`` as it is shown; a dash for None."""
        if isinstance(value, Bar | Drawing) or (isinstance(value, str) and self.form != "name"):
            return value
        form = self.form or _form_of(self.shows if isinstance(self.shows, str) else "")
        return FORMS[form](value)


class TableView(msgspec.Struct, frozen=True, kw_only=True):
    """One table."""

    title: str  # Heading, a few words.
    columns: tuple[Column, ...]  # The columns.
    rows: tuple[tuple[Cell, ...], ...]  # One cell for each column; text is not escaped yet.
    caption: str = ""  # Meaning of the numbers, a phrase next to the heading.
    notes: tuple[str, ...] = ()  # Sentences under the table.
    # Indexes of rows to be set in bold, such as a sum.
    strong: frozenset[int] = msgspec.field(default_factory=frozenset)
    section: str = ""  # The subject of a report that it belongs to.
    is_main: bool = False  # Whether it is shown open where the others are folded.


def present(views: Iterable[TableView | None]) -> tuple[TableView, ...]:
    """The tables that have something to show."""
    return tuple(view for view in views if view is not None)


def counted(number: int, noun: str) -> str:
    """A number with its noun, for example ``1 step`` and ``2,000 steps``."""
    if number != 1 and re.search(r"[^aeiou]y$", noun):
        noun = f"{noun[:-1]}ies"
    elif number != 1:
        noun += "es" if noun.endswith(("s", "ch")) else "s"
    return f"{number:,} {noun}"


def number(value: float | None, unit: str = "") -> str:
    """A whole number with its unit; a dash if it is unknown."""
    return "–" if value is None else f"{value:,.0f}{unit}"


FORMS: dict[str, Callable[[Any], str]] = {
    "ns": format_duration,
    "signed": signed,
    "bytes": format_bytes,
    "bytes_per_s": format_bandwidth,
    "ratio": format_ratio,
    "times": lambda ratio: "–" if ratio is None else f"{ratio:.2f} ×",
    "count": number,
    "figure": lambda value: "–" if value is None else f"{value:.4g}",
    "id": lambda value: "–" if value is None else str(value),
    "ranks": lambda ranks: fold_ranks(ranks) or "–",
    "name": lambda text: text or "–",
    "mhz": lambda value: number(value, " MHz"),
    "w": lambda value: number(value, " W"),
    "c": lambda value: number(value, " °C"),
}
"""Formats of numbers, by unit; ``id`` is a number used as a name."""

_OF_WHAT = r"(_per_step|_per_micro_batch|_median|_mean|_min|_max)?$"
_UNITS = (
    (r"^num_(?!bytes)", "count"),
    (r"bytes_per_s$", "bytes_per_s"),
    (r"(^|_)over_mean$", "times"),
    *((rf"(^|_){unit}{_OF_WHAT}", unit) for unit in ("ns", "bytes", "ratio", "mhz", "w", "c")),
    (r"(^|_)(fraction|cv|entropy)$", "ratio"),
    (r"(^|_)(rank|stage|expert|sender|receiver)$", "id"),
    (r"(^|_)ranks$", "ranks"),
)
"""Pattern for the end of a field's name, and the format that it implies."""


@functools.cache
def _form_of(field_name: str) -> str:
    return next((form for end, form in _UNITS if re.search(end, field_name)), "count")


class FirstRows(NamedTuple, Generic[_T]):
    """The first of some rows, and a note with the number of the others if there are any."""

    rows: Sequence[_T]
    notes: tuple[str, ...]


def rows_table(
    title: str,
    columns: Iterable[Column],
    records: Sequence[object] | FirstRows[Any],
    *,
    caption: str = "",
    notes: Iterable[str] = (),
    strong: Iterable[int] = (),
    even_empty: bool = False,
) -> TableView | None:
    """A table of one row per record; None without records, unless ``even_empty``."""
    records, more = records if isinstance(records, FirstRows) else (records, ())
    if not records and not even_empty:
        return None
    kept = tuple(column for column in columns if column.when)
    return TableView(
        title=title,
        columns=kept,
        rows=tuple(tuple(c.cell(c.value(record)) for c in kept) for record in records),
        caption=caption,
        notes=(*notes, *more),
        strong=frozenset(strong),
    )


def first_rows(
    rows: Sequence[_T], most: int, *, show_all: bool, noun: str = "", note: str = "{} with --all"
) -> FirstRows[_T]:
    """The rows to be shown: ``most`` of them, or all."""
    left = 0 if show_all else len(rows) - most
    if left <= 0:
        return FirstRows(rows, ())
    more = counted(left, f"more {noun}") if noun else f"{left:,} more"
    return FirstRows(rows[:most], (note.format(more),))


def ranks_table(
    title: str,
    columns: Iterable[Column],
    ranks: Sequence[Any],
    *,
    show_all: bool,
    caption: str = "",
    notes: Iterable[str] = (),
) -> TableView | None:
    """A table of numbers by rank, folded if there are more than twelve; None without ranks."""
    if not ranks:
        return None
    kept = tuple(column for column in columns if column.when)
    return TableView(
        title=title,
        columns=(Column("rank", left=True), *kept),
        rows=folded_ranks(
            [record.rank for record in ranks],
            [[column.value(record) for column in kept] for record in ranks],
            lambda values: tuple(c.cell(v) for c, v in zip(kept, values, strict=True)),
            show_all=show_all,
        ),
        caption=caption,
        notes=tuple(notes),
    )


def facts_table(
    title: str, facts: Iterable[tuple[str, str]], *, caption: str = "", notes: Iterable[str] = ()
) -> TableView:
    """A table of facts by name; names without a text are left out."""
    return TableView(
        title=title,
        columns=(Column("", left=True), Column("", left=True, wrap=True)),
        rows=tuple((name, text) for name, text in facts if text),
        caption=caption,
        notes=tuple(notes),
    )


def folded_ranks(
    ranks: Sequence[int],
    values: Sequence[Sequence[float | None]],
    texts: Callable[[Sequence[float | None]], tuple[Cell, ...]],
    *,
    show_all: bool,
) -> tuple[tuple[Cell, ...], ...]:
    """Rows of a table by rank, folded if there are more than twelve, unless ``show_all``.

    Then they are minimum, median and maximum of each column, and the ranks that differ from the
    median by five times the typical deviation and five per cent.
    """
    if show_all or len(ranks) <= MAX_RANKS_SHOWN:
        return tuple((str(r), *texts(v)) for r, v in zip(ranks, values, strict=True))
    columns = list(zip(*values, strict=True))
    known = [[value for value in column if value is not None] for column in columns]
    measures: dict[str, Callable[[list[float]], float]] = {
        "min": min,
        "median": statistics.median,
        "max": max,
    }
    summary = [
        (name, *texts([measure(column) if column else None for column in known]))
        for name, measure in measures.items()
    ]
    shown = [(str(ranks[i]), *texts(values[i])) for i in _outliers(columns)]
    return (*summary, *shown)


def _outliers(columns: Sequence[Sequence[float | None]]) -> list[int]:
    """Rows that stand out in some column, farthest first, at most five."""
    distance: dict[int, float] = {}
    for column in columns:
        known = [value for value in column if value is not None]
        if len(known) < MAX_RANKS_SHOWN:
            continue
        middle = statistics.median(known)
        spread = statistics.median(abs(value - middle) for value in known)
        limit = max(_OUTLIER_SPREADS * spread, _OUTLIER_RATIO * abs(middle))
        for i, value in enumerate(column):
            if value is not None and limit > 0 and abs(value - middle) > limit:
                distance[i] = max(distance.get(i, 0.0), abs(value - middle) / limit)
    return sorted(distance, key=lambda i: (-distance[i], i))[:MAX_OUTLIERS]
