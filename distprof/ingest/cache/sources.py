"""Where a rank's tables are: in an entry of the cache, or in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
from msgspec.structs import replace

from distprof.errors import DistprofError
from distprof.ingest.cache.entries import is_temporary
from distprof.ingest.cache.parquet import shifted
from distprof.ingest.cache.tables_file import DamagedTablesError, Part, open_tables
from distprof.run.tables import HOST, RankTables
from distprof.schema import Table

MOST_HELD_ROWS = 500_000
"""Rows of one trace that are held in memory, about 30 MB. A small compressed file may unpack to any
number of rows."""


MOST_REMADE = 3
"""How often tables are made again that are deleted or cut before they are read."""


class CachedTables(msgspec.Struct, frozen=True):
    """The tables of an entry; a :class:`~distprof.run.run.TableSource`."""

    path: str  # The entry.
    has_host: bool  # Whether host rows were read.
    # Tables already in memory, by part. A rank holds its steps and collectives.
    held: Mapping[Part, Table] = {}
    # Rebuilds the entry if it is missing or not on this machine.
    remake: Callable[[], CachedTables] | None = None
    key: str = ""  # Digest of what the entry is made from.

    def light(self) -> CachedTables:
        """A copy without tables in memory: its receiver reads them from disk."""
        return replace(self, held={})

    def load(self, *, every_host_row: bool = False) -> RankTables:
        """Read the tables.

        Raises:
            DamagedTablesError: If the entry was damaged after it was found, and the trace has
                changed since.
            InputError: If the trace cannot be read again.
        """
        made = self
        for _ in range(MOST_REMADE):
            try:
                return made._load(every_host_row=every_host_row)
            except DamagedTablesError:
                if self.remake is None:
                    raise
            finally:
                if made is not self and is_temporary(made.path):
                    Path(made.path).unlink(missing_ok=True)
            made = self.remake()
            if made.key != self.key:
                raise DamagedTablesError(f"{self.path} is gone, and the trace has changed since")
        raise DamagedTablesError(f"{self.path} is deleted whenever it is made")

    def _load(self, *, every_host_row: bool) -> RankTables:
        host = Part.HOST if every_host_row else Part.CALLS
        wanted = [Part.ACTIVITY, Part.COLLECTIVES, Part.STEPS, *((host,) if self.has_host else ())]
        tables = {part: self.held[part] for part in wanted if part in self.held}
        if len(tables) < len(wanted):
            with open_tables(Path(self.path)) as file:
                tables |= {part: file.table(part) for part in wanted if part not in tables}
        return RankTables(
            activity=tables[Part.ACTIVITY],
            host=tables[host] if self.has_host else Table.empty(HOST),
            collectives=tables[Part.COLLECTIVES],
            steps=tables[Part.STEPS],
            has_host=self.has_host,
        )


class HeldTables(msgspec.Struct, frozen=True):
    """Tables in memory; a :class:`~distprof.run.run.TableSource`."""

    tables: RankTables  # The tables that analyses need.
    every_host_row: Table  # The HOST table with every operator.

    @property
    def path(self) -> str:
        """Empty: there is no file."""
        return ""

    def load(self, *, every_host_row: bool = False) -> RankTables:
        """The tables."""
        if not (every_host_row and self.tables.has_host):
            return self.tables
        return replace(self.tables, host=self.every_host_row)


class TooManyRowsError(DistprofError):
    """A trace that is small on disk has more rows than distprof holds in memory."""


class HeldHostRows:
    """Holds host rows in memory while the trace is read.

    Raises:
        TooManyRowsError: From :meth:`write`, before there are more than ``MOST_HELD_ROWS``.
    """

    def __init__(self) -> None:
        self._parts: list[Table] = []
        self._num_rows = 0
        self._shift_ns = 0

    def write(self, rows: Table) -> None:
        """Add rows."""
        self._num_rows += len(rows)
        if self._num_rows > MOST_HELD_ROWS:
            raise TooManyRowsError(f"more than {MOST_HELD_ROWS:,} rows")
        self._parts.append(rows)

    def shift(self, base_ns: int) -> None:
        """Add ``base_ns`` to all times."""
        self._shift_ns = base_ns

    def table(self) -> Table:
        """All rows; call it after the whole file was read."""
        return shifted(Table.concat(HOST, self._parts), self._shift_ns)
