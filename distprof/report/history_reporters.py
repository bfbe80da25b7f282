"""A history, and answers to queries of it, as text, Markdown, JSON and CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from distprof.gate.timeline import History
from distprof.report.escape import plain, shorten
from distprof.report.history_view import history_sentences, history_tables, history_verdict
from distprof.report.page import Page, page_reporters
from distprof.report.registry import RenderOptions
from distprof.report.views.table import TableColumn, TableView, counted
from distprof.version import __version__

__all__ = ["ANSWER_REPORTERS", "ANSWER_SCHEMA", "HISTORY_REPORTERS", "HistoryAnswer", "answer_of"]

ANSWER_SCHEMA = "distprof.history-answer/1"

_FEW_ROWS = 50
_MAX_CELL = 40
_LARGEST = 2**63 - 1


class HistoryAnswer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What SQL said.

    Args:
        schema: Of this document.
        distprof_version: Who made it.
        source: Folder or URL of the history.
        columns: Their names.
        rows: One value per column; what JSON does not have (dates, decimals) is text.
        notes: What was left out, one sentence each.
    """

    schema: str = ANSWER_SCHEMA
    distprof_version: str
    source: str
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[Any, ...], ...] = ()
    notes: tuple[str, ...] = ()


def answer_of(
    source: str, columns: Sequence[str], rows: Iterable[Sequence[Any]], notes: Sequence[str]
) -> HistoryAnswer:
    """The answer to a query.

    Args:
        source: Folder or URL of the history.
        columns: Their names.
        rows: As the data base gives them.
        notes: What was left out.
    """
    return HistoryAnswer(
        distprof_version=__version__,
        source=source,
        columns=tuple(columns),
        rows=tuple(tuple(_simple(value) for value in row) for row in rows),
        notes=tuple(notes),
    )


def _simple(value: Any) -> Any:
    """As JSON has it."""
    if value is None or isinstance(value, bool | str | float):
        return value
    if isinstance(value, int):
        return value if -_LARGEST <= value <= _LARGEST else str(value)
    if isinstance(value, list | tuple):
        return [_simple(each) for each in value]
    if isinstance(value, dict):
        return {str(key): _simple(each) for key, each in value.items()}
    return str(value)


def _history_page(history: History, options: RenderOptions) -> Page:
    return Page(
        verdict=history_verdict(history),
        headline=history.source,
        sentences=tuple(history_sentences(history)),
        tables=tuple(history_tables(history, show_all=options.show_all)),
    )


def _answer_page(answer: HistoryAnswer, options: RenderOptions) -> Page:
    tables = (_answer_table(answer, show_all=options.show_all),) if answer.rows else ()
    return Page(
        verdict=f"{counted(len(answer.rows), 'row')}.",
        headline=answer.source,
        sentences=answer.notes,
        tables=tables,
    )


def _answer_table(answer: HistoryAnswer, *, show_all: bool) -> TableView:
    rows = answer.rows if show_all else answer.rows[:_FEW_ROWS]
    left = [not _is_number(column) for column in zip(*rows, strict=True)]
    more = len(answer.rows) - len(rows)
    return TableView(
        title="Answer",
        columns=tuple(
            TableColumn(title=shorten(name, _MAX_CELL) or " ", left=words)
            for name, words in zip(answer.columns, left, strict=True)
        ),
        rows=tuple(tuple(shorten(_shown(value), _MAX_CELL) for value in row) for row in rows),
        notes=(f"{counted(more, 'more row')}: --all",) if more else (),
    )


def _is_number(column: Sequence[Any]) -> bool:
    return all(
        value is None or (isinstance(value, int | float) and not isinstance(value, bool))
        for value in column
    )


def _shown(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list | dict):
        return msgspec.json.encode(value).decode()
    return str(value)


def _csv(answer: HistoryAnswer, _: RenderOptions) -> str:
    """One line per row; control characters in text are spelled out."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([plain(name) for name in answer.columns])
    for row in answer.rows:
        writer.writerow([_csv_cell(value) for value in row])
    return out.getvalue()


def _csv_cell(value: Any) -> Any:
    if isinstance(value, list | dict):
        return msgspec.json.encode(value).decode()
    return plain(value) if isinstance(value, str) else value


HISTORY_REPORTERS = page_reporters(_history_page)
"""Name of a format to what writes a history in it."""

ANSWER_REPORTERS: dict[str, Callable[[HistoryAnswer, RenderOptions], str]] = {
    **page_reporters(_answer_page),
    "csv": _csv,
}
"""Name of a format to what writes an answer in it."""
