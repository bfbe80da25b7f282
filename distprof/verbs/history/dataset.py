"""The dataset: a Parquet file per appended summary, under any folder or fsspec URL.

A file is named by its content and never changed, so that writers at the same time lose nothing and
a run that is added twice is there once. :func:`compact` puts many files together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from threading import Thread
from typing import Any

import msgspec

from distprof.artefacts.summary_file import SUMMARY_SCHEMA, SummaryFile
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

__all__ = [
    "COLUMNS",
    "DEFAULT_FOLDER",
    "MANY_FILES",
    "append",
    "compact",
    "count_files",
    "query",
    "read",
]

DEFAULT_FOLDER = ".distprof/history"

MANY_FILES = 2_000
"""From here on it is worth while to put them together."""

_SETTINGS = {
    "autoinstall_known_extensions": "false",  # nothing is fetched, whatever is asked
    "autoload_known_extensions": "false",
    "memory_limit": "4GB",
}
_ATTEMPTS = 5  # to read while others put files together


def append(folder: str, summaries: Iterable[SummaryFile]) -> int:
    """Add summaries; returns how many were not there yet.

    Args:
        folder: Local folder, made where it is missing, or fsspec URL.
        summaries: Of runs.

    Raises:
        InputError: If it cannot be written, or holds something else than a history.
    """
    store = Store.at(folder)
    mine, others = store.names()
    if others and not mine:
        raise InputError(
            folder,
            expected="a history, or an empty or new folder",
            found=f"a folder with other files, for example {others[0]}",
            fix="name another folder with --history",
        )
    known = _in_merged(store, mine)
    added = 0
    for summary in summaries:
        row = row_of(summary)
        if row["summary"] not in known:
            added += store.put(file_name(row), parquet_of([row]))
    return added


def read(folder: str) -> tuple[tuple[SummaryFile, ...], tuple[str, ...]]:
    """Every summary, oldest first, and a sentence for each file that cannot be read.

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
    """The answer to a query of the table ``history``: columns, rows, and notes on damaged files.

    The query sees that table only: no files, no network, no variables of this program.

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
        except (duckdb.Error, ValueError, OverflowError) as error:
            raise InputError(
                folder,
                expected="SQL of DuckDB over the table history",
                found=str(error).partition("\n")[0],
                fix=f"columns: {', '.join(COLUMNS)}",
            ) from error
        return columns, rows, notes


def _asked(
    connection: Any, sql: str, parameters: dict[str, Any] | None = None
) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Columns and rows, found in a thread: DuckDB lets no signal through while it works."""
    found: Future[tuple[list[str], list[tuple[Any, ...]]]] = Future()

    def ask() -> tuple[list[str], list[tuple[Any, ...]]]:
        answer = connection.execute(sql, parameters)
        if answer is None:  # no statement
            return [], []
        return [str(entry[0]) for entry in answer.description or ()], answer.fetchall()

    def work() -> None:
        if found.set_running_or_notify_cancel():
            try:
                found.set_result(ask())
            except BaseException as error:
                found.set_exception(error)

    try:
        Thread(target=work).start()
        return found.result()
    except BaseException:  # above all an interruption, which may come before the thread runs
        while not (found.cancel() or found.done()):
            connection.interrupt()
            wait([found], timeout=0.1)
        raise


def compact(folder: str) -> tuple[int, int]:
    """Put all files together into one; returns how many there were, and how many summaries.

    The new file is written before the old ones are removed, and a summary that is in two files
    counts once: whoever adds, reads or compacts at the same time, or is killed, loses nothing.

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
            whole[file] = False  # stays where it is, for whoever mends it
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
    """How many files a history has.

    Raises:
        InputError: If the place cannot be looked into.
    """
    return len(Store.at(folder).names()[0])


def _decoded(text: str) -> SummaryFile:
    """Raises what msgspec raises, or ValueError."""
    summary = msgspec.json.decode(text, type=SummaryFile)
    if summary.schema != SUMMARY_SCHEMA:
        raise ValueError(f'"schema": "{summary.schema[:60]}"')
    return summary


def _in_merged(store: Store, names: Sequence[str]) -> set[str]:
    """Summaries of the files that hold many, and whose names do not tell what is in them."""
    found: set[str] = set()
    for name in names:
        if MERGED_NAME.fullmatch(name):
            data = store.get(name)
            found.update(summaries_in(data) if data is not None else ())
    return found


def _texts(store: Store) -> tuple[list[tuple[str, str]], list[str]]:
    """Each summary as JSON with the name of its file, and notes.

    Only that column is read: the others follow from it, and each costs time in each file.
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
    """Make the table ``history``, of what this version of the program says a summary's row is."""
    table = table_of([row_of(summary) for summary in summaries])
    connection.register("summaries", table)
    connection.execute("CREATE TABLE history AS SELECT * FROM summaries")
    connection.unregister("summaries")


def _are_there(store: Store, damaged: dict[str, str]) -> bool:
    """Whether files that could not be read are not simply gone, put together with others."""
    return set(damaged) <= set(store.names()[0])


def _names(store: Store) -> tuple[list[str], list[str]]:
    """The history's files, and a note on what else is there.

    Raises:
        InputError: If there are none.
    """
    mine, others = store.names()
    if not mine:
        raise InputError(
            store.folder,
            expected="a history: a folder that distprof history add has written",
            found=f"other files, for example {others[0]}" if others else "nothing",
            fix="add runs: distprof history add RUN…",
        )
    if not others:
        return mine, []
    return mine, [f"{others[0]} and whatever else is no file of a history is left out."]


def _selected(
    connection: Any, store: Store, names: Sequence[str]
) -> tuple[list[tuple[Any, ...]], dict[str, str]]:
    """Each summary as JSON, with the address of its file; and why files cannot be read."""
    import duckdb

    command = "SELECT summary, filename FROM read_parquet($files, filename = true)"
    try:
        files = [store.address(name) for name in names]
        return _asked(connection, command, {"files": files})[1], {}
    except (duckdb.Error, OSError):
        pass
    rows: list[tuple[Any, ...]] = []
    damaged: dict[str, str] = {}
    for name in names:
        try:
            rows += _asked(connection, command, {"files": [store.address(name)]})[1]
        except (duckdb.Error, OSError) as error:
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
