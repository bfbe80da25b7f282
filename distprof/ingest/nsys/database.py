"""Open an untrusted SQLite database safely for reading.

Extensions cannot be loaded, views and virtual tables are refused, functions in a schema do not run,
the size of values is bounded, and slow queries are stopped.

Source: NVIDIA, "Nsight Systems: SQLite Export Schema Reference"; SQLite, "Defense Against The Dark
Arts".
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from distprof.bounds import NotAFileError, open_plain
from distprof.errors import InputError

MAGIC = b"SQLite format 3\0"
EXPECTED = "an export of Nsight Systems with CUDA activity (nsys export --type sqlite)"
_RECORD = (
    "record with nsys profile --trace=cuda,nvtx, then nsys export --type sqlite REPORT.nsys-rep"
)
_MAX_VALUE_BYTES = 1 << 20
_MAX_COLUMNS = 500
_STEPS_BETWEEN_LOOKS = 100_000
_LEAST_SECONDS = 60.0
_SECONDS_PER_MB = 2.0


class Database:
    """A database and the columns of its tables; the path is for messages."""

    def __init__(self, connection: sqlite3.Connection, path: str) -> None:
        self._connection = connection
        self.path = path
        self._columns: dict[str, frozenset[str]] = {}

    def columns(self, table: str) -> frozenset[str]:
        """Columns of a real table; empty if there is no table of that name."""
        if table not in self._columns:
            (declared,) = next(
                self.rows("SELECT sql FROM sqlite_master WHERE type = 'table' AND name = ?", table),
                ("",),
            )
            is_real = str(declared).upper().startswith("CREATE TABLE")
            found = self.rows(f"PRAGMA table_info({table})") if is_real else ()
            self._columns[table] = frozenset(str(row[1]) for row in found)
        return self._columns[table]

    def rows(self, query: str, *values: Any) -> Iterator[tuple[Any, ...]]:
        """Rows of a query.

        Raises:
            InputError: If the database is damaged, or the query takes too long.
        """
        try:
            with closing(self._connection.execute(query, values)) as cursor:
                yield from cursor
        except (sqlite3.Error, OverflowError, UnicodeDecodeError) as error:
            raise InputError(
                self.path,
                expected=EXPECTED,
                found=f"a database that cannot be read: {' '.join(str(error).split())}",
                fix="export the report again",
            ) from error


def is_database(path: str | Path) -> bool:
    """Whether a regular file begins like a database; never raises."""
    try:
        with open_plain(path) as stream:
            return stream.read(len(MAGIC)) == MAGIC
    except (OSError, ValueError):
        return False


@contextmanager
def opened_database(path: str | Path) -> Iterator[Database]:
    """Open a database from an untrusted source.

    Raises:
        InputError: If it is not a database.
    """
    if not is_database(path):
        raise InputError(
            str(path), expected=EXPECTED, found="a file other than an SQLite database", fix=_RECORD
        )
    try:
        size = Path(path).stat().st_size
        place = f"file:{quote(str(Path(path).resolve()))}?mode=ro&immutable=1"
        connection = sqlite3.connect(place, uri=True, check_same_thread=False)
    except (sqlite3.Error, NotAFileError, OSError) as error:
        raise InputError(str(path), expected=EXPECTED, found=str(error), fix=_RECORD) from error
    connection.text_factory = lambda data: data.decode("utf-8", "replace")
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MAX_VALUE_BYTES)
    connection.setlimit(sqlite3.SQLITE_LIMIT_COLUMN, _MAX_COLUMNS)
    connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
    latest = time.process_time() + _LEAST_SECONDS + _SECONDS_PER_MB * size / 1e6
    connection.set_progress_handler(lambda: time.process_time() > latest, _STEPS_BETWEEN_LOOKS)
    with closing(connection):
        database = Database(connection, str(path))
        for setting in ("trusted_schema = OFF", "cell_size_check = ON", "query_only = ON"):
            for _ in database.rows(f"PRAGMA {setting}"):
                pass
        yield database
