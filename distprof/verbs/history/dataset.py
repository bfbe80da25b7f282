"""Stores a history: one Parquet file per appended summary, in any folder or fsspec URL.

A file is named after its content and never changes. Concurrent writers therefore lose no data, and
a run that is added twice is stored once. :func:`compact` merges many files into one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from threading import Thread
from typing import Any

import msgspec

from distprof.artefacts.summary_file import SUMMARY_SCHEMA, SummaryFile
from distprof.bounds import decode_json
from distprof.errors import InputError, MissingExtraError
from distprof.verbs.history.rows import (
    COLUMNS,
    MERGED_NAME,
    Store,
    file_name,
    merged_name,
    parquet_of,
    row_of,
    summaries_in,
    table_of,
)

DEFAULT_FOLDER = ".distprof/history"

MANY_FILES = 2_000
"""Minimum number of files for which merging pays off."""

_SETTINGS = {
    "autoinstall_known_extensions": "false",  # a query must not download extensions
    "autoload_known_extensions": "false",
    "memory_limit": "1GB",
    "max_temp_directory_size": "1GB",
}
QUERY_SECONDS = 60.0
"""Time that a query may take."""

MOST_ROWS = 100_000
"""Rows that a query may return."""

_ATTEMPTS = 5  # attempts to read while other processes merge files


def append(folder: str, summaries: Iterable[SummaryFile]) -> int:
    """Add summaries and return how many were new.

    Args:
        folder: Local folder, created if it is missing, or fsspec URL.
        summaries: Summaries of runs.

    Raises:
        InputError: If it cannot be written, or contains files other than a history.
    """
    store = Store.at(folder)
    mine, others = store.names()
    if others and not mine:
        raise InputError(
            folder,
            expected="a history, or an empty or new folder",
            found=f"a folder with other files, for example {others[0]}",
            fix="choose another folder with --history",
        )
    known = _in_merged(store, mine)
    added = 0
    for summary in summaries:
        row = row_of(summary)
        if row["summary"] not in known:
            added += store.put(file_name(row), parquet_of([row]))
    return added


def read(folder: str) -> tuple[tuple[SummaryFile, ...], tuple[str, ...]]:
    """Every summary, oldest first, and a note on each file that cannot be read.

    Raises:
        InputError: If there is no history.
        MissingExtraError: If DuckDB is not installed (extra ``history``).
    """
    found, notes = _texts(Store.at(folder))
    summaries: dict[str, SummaryFile] = {}
    damaged: dict[str, str] = {}
    for file, text in found:
        if text in summaries:
            continue
        try:
            summaries[text] = _decoded(text)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            damaged[file] = str(error)
    notes += [_left_out(f"a row of {file}", why) for file, why in damaged.items()]
    ordered = sorted(summaries.values(), key=lambda summary: summary.created_ns)
    return tuple(ordered), tuple(notes)


def query(folder: str, sql: str) -> tuple[list[str], list[tuple[Any, ...]], tuple[str, ...]]:
    """Run a query on the table ``history`` and return columns, rows, and notes on damaged files.

    The query can access only that table: no files, no network, no variables of distprof. Its time,
    its memory and the number of its rows are limited.

    Raises:
        InputError: If there is no history, or the query is wrong.
        MissingExtraError: If DuckDB is not installed (extra ``history``).
    """
    duckdb = _duckdb()
    summaries, notes = read(folder)
    with _connection() as connection:
        _fill(connection, summaries)
        connection.execute("SET enable_external_access = false")
        connection.execute("SET lock_configuration = true")
        try:
            columns, rows = _asked(connection, sql)
        except TimeoutError as error:
            raise InputError(
                folder,
                expected=f"a query that ends within {QUERY_SECONDS:g} s",
                found="it was still running, and was stopped",
                fix="ask for less: fewer columns, a WHERE clause, no join of the table with itself",
            ) from error
        except (duckdb.Error, ValueError, OverflowError) as error:
            raise InputError(
                folder,
                expected="DuckDB SQL on the table history",
                found=str(error).partition("\n")[0],
                fix=f"columns: {', '.join(COLUMNS)}",
            ) from error
        return columns, rows, notes


def _asked(
    connection: Any, sql: str, parameters: dict[str, Any] | None = None
) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Columns and rows of a query, which is stopped at its limit of time.

    It runs on a thread, because DuckDB blocks signals meanwhile.
    """
    found: Future[tuple[list[str], list[tuple[Any, ...]]]] = Future()

    def ask() -> tuple[list[str], list[tuple[Any, ...]]]:
        answer = connection.execute(sql, parameters)
        if answer is None:  # no statement
            return [], []
        rows = answer.fetchmany(MOST_ROWS + 1)
        if len(rows) > MOST_ROWS:
            raise ValueError(f"more than {MOST_ROWS:,} rows: add LIMIT, or aggregate")
        return [str(entry[0]) for entry in answer.description or ()], rows

    def work() -> None:
        if found.set_running_or_notify_cancel():
            try:
                found.set_result(ask())
            except BaseException as error:
                found.set_exception(error)

    try:
        Thread(target=work).start()
        return found.result(timeout=QUERY_SECONDS)
    except BaseException:  # mainly an interrupt, which may arrive before the thread runs
        while not (found.cancel() or found.done()):
            connection.interrupt()
            wait([found], timeout=0.1)
        raise


def compact(folder: str) -> tuple[int, int]:
    """Merge all files into one and return the number of files and of summaries.

    It writes the new file before it removes the old ones, and a summary in two files counts once.
    Processes that add, read or compact at the same time, or are killed, therefore lose no data.

    Raises:
        InputError: If there is no history, or a file may not be removed.
        MissingExtraError: If DuckDB is not installed (extra ``history``).
    """
    store = Store.at(folder)
    found, _ = _texts(store)
    rows: dict[str, dict[str, Any]] = {}
    whole: dict[str, bool] = {}
    for file, text in found:
        try:
            rows.setdefault(text, {**row_of(_decoded(text)), "summary": text})
        except (msgspec.MsgspecError, ValueError, RecursionError):
            whole[file] = False  # stays in place, so it can be repaired
            continue
        whole.setdefault(file, True)
    ordered = sorted(rows.values(), key=lambda row: (row["created_ns"] or 0, row["summary"]))
    if not ordered:
        return 0, 0
    merged = merged_name(ordered)
    store.put(merged, parquet_of(ordered))
    old = [file for file, is_whole in whole.items() if is_whole and file != merged]
    for file in old:
        store.remove(file)
    return len(old), len(ordered)


def count_files(folder: str) -> int:
    """Number of files in a history.

    Raises:
        InputError: If the folder cannot be listed.
    """
    return len(Store.at(folder).names()[0])


def _decoded(text: str) -> SummaryFile:
    """Decode a summary; raises ValueError, or an error of msgspec."""
    summary = decode_json(text.encode(), SummaryFile)
    if summary.schema != SUMMARY_SCHEMA:
        raise ValueError(f'"schema": "{summary.schema[:60]}"')
    return summary


def _in_merged(store: Store, names: Sequence[str]) -> set[str]:
    """Summaries of merged files, whose names do not show their content."""
    found: set[str] = set()
    for name in names:
        if MERGED_NAME.fullmatch(name):
            data = store.get(name)
            found.update(summaries_in(data) if data is not None else ())
    return found


def _texts(store: Store) -> tuple[list[tuple[str, str]], list[str]]:
    """Each summary as JSON with the name of its file, and notes.

    Only the column ``summary`` is read: the others follow from it and would take time to read.
    """
    with _connection(store) as connection:
        for attempt in range(_ATTEMPTS):
            names, notes = _names(store)
            rows, damaged = _selected(connection, store, names)
            if not damaged or attempt == _ATTEMPTS - 1 or _are_there(store, damaged):
                break
    bare = [(str(file).rpartition("/")[2], str(text)) for text, file in rows if text is not None]
    return bare, [*notes, *damaged.values()]


def _fill(connection: Any, summaries: Iterable[SummaryFile]) -> None:
    """Create the table ``history`` from summaries, with the columns of this distprof version."""
    table = table_of([row_of(summary) for summary in summaries])
    connection.register("summaries", table)
    connection.execute("CREATE TABLE history AS SELECT * FROM summaries")
    connection.unregister("summaries")


def _are_there(store: Store, damaged: dict[str, str]) -> bool:
    """Whether unreadable files still exist and were not merged into another file."""
    return set(damaged) <= set(store.names()[0])


def _names(store: Store) -> tuple[list[str], list[str]]:
    """The history's files, and a note on other files in the folder.

    Raises:
        InputError: If there are none.
    """
    mine, others = store.names()
    if not mine:
        raise InputError(
            store.folder,
            expected="a history: a folder written by distprof history add",
            found=f"other files, for example {others[0]}" if others else "no files",
            fix="add runs: distprof history add RUN…",
        )
    if not others:
        return mine, []
    return mine, [f"{others[0]} and other files that are not part of a history are left out."]


def _selected(
    connection: Any, store: Store, names: Sequence[str]
) -> tuple[list[tuple[Any, ...]], dict[str, str]]:
    """Each summary as JSON with the address of its file, and why files cannot be read."""
    import duckdb

    unreadable = (duckdb.Error, OSError, ValueError, OverflowError)  # or no text, or no UTF-8
    command = "SELECT summary, filename FROM read_parquet($files, filename = true)"
    try:
        files = [store.address(name) for name in names]
        return _asked(connection, command, {"files": files})[1], {}
    except unreadable:
        pass
    rows: list[tuple[Any, ...]] = []
    damaged: dict[str, str] = {}
    for name in names:
        try:
            rows += _asked(connection, command, {"files": [store.address(name)]})[1]
        except unreadable as error:
            damaged[name] = _left_out(name, str(error))
    return rows, damaged


def _left_out(what: str, why: str) -> str:
    first = why.partition("\n")[0][:200].rstrip(".")
    return f"{what} cannot be read and is left out: {first}."


@contextmanager
def _connection(store: Store | None = None) -> Iterator[Any]:
    duckdb = _duckdb()
    with duckdb.connect(config=_SETTINGS) as connection:
        connection.execute("SET python_enable_replacements = false")
        if store is not None and store.system is not None:
            connection.register_filesystem(store.system)
        yield connection


def _duckdb() -> Any:
    try:
        import duckdb
    except ImportError as error:
        raise MissingExtraError("distprof history", "history") from error
    return duckdb
