"""Parsed tables on disk: one file per trace, named after a hash of its content.

::

    ROOT/3f/3fa9….tables

The key is a hash of all bytes of the stored file, the schema version and the options. Hashing a
gzipped trace takes a fiftieth of the time of parsing it. A copy at another path or a new
modification time costs no second parse, but any change of content does. An entry appears atomically
(written under a temporary name, then renamed), is checked against its checksum before use, and is
rebuilt if it is damaged (:mod:`distprof.ingest.tables_file`).

A cache in an object store, shared by several people and machines, holds the same files, each
written by a single request. Before use, distprof copies an entry to this machine's cache and checks
that key and checksum are the original ones. Everyone with write access to the store is trusted with
the content of the tables, because only reading the trace could disprove it. A malicious entry can
be wrong, but it cannot do anything else.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
from msgspec.structs import replace

from distprof.bounds import Bound, open_plain
from distprof.errors import DistprofError
from distprof.ingest.tables_file import (
    BLOCK,
    DamagedTablesError,
    Part,
    TablesWriter,
    open_tables,
    shifted,
)
from distprof.remote import ask, is_async
from distprof.run.tables import HOST, RankTables
from distprof.schema import Table

CACHE_VERSION = 10  # increased whenever the same trace would give different tables
NO_ROOM = frozenset((errno.ENOSPC, errno.EDQUOT))
_LOCKED = (errno.EACCES, errno.EPERM, errno.EROFS)
# Errors of a cache that filled up, or that another process cleared or locked meanwhile.
FAILED = NO_ROOM.union((errno.ENOENT, errno.ESTALE, errno.EISDIR), _LOCKED)
_TEMPORARY = "distprof-"
_MAKING = ".making-"
_SUFFIX = ".tables"
_STALE_S = 86_400
_unfinished: set[Path] = set()  # entries that this process is making


class CacheKey(msgspec.Struct, frozen=True):
    """Identifies the tables of one trace under one set of options."""

    digest: str

    @staticmethod
    def of(trace: str | Path | bytes | BinaryIO, options: Mapping[str, Any]) -> CacheKey:
        """The key of the content of a path, of an open file, or of bytes that identify it."""
        import hashlib  # OpenSSL takes 3.6 MB, and small traces are not cached

        settings = json.dumps([CACHE_VERSION, dict(options)], sort_keys=True)
        digest = hashlib.sha1(settings.encode(), usedforsecurity=False)
        if isinstance(trace, bytes):
            digest.update(trace)
        else:
            opened = (
                open_plain(trace)
                if isinstance(trace, (str, Path))
                else contextlib.nullcontext(trace)
            )
            with opened as file:
                while block := file.read(BLOCK):
                    digest.update(block)
        return CacheKey(digest.hexdigest())

    def path(self, root: Path) -> Path:
        """Path of the entry under ``root``."""
        return root / self.digest[:2] / f"{self.digest}{_SUFFIX}"


def find_entry(root: Path, key: CacheKey) -> Path | None:
    """Path of an undamaged entry; None if there is none."""
    path = key.path(root)
    return path if _is_trusted(path, root) and _is_intact(path, key) else None


class EntryWriter:
    """Builds one entry: write into ``tables``, then :meth:`commit`.

    Without a commit, nothing is left behind. If the cache is not writable, which ``problem`` says
    if it is already known, the entry goes into a temporary file and ``note`` says so in one
    sentence.
    """

    def __init__(self, root: Path, key: CacheKey, problem: OSError | None = None) -> None:
        self._final, self._key = key.path(root), key
        self.note = ""
        try:
            if problem is not None:
                raise problem
            self._final.parent.mkdir(parents=True, exist_ok=True)
            for left in self._final.parent.glob(f"{_MAKING}*"):  # of processes that were killed
                with contextlib.suppress(OSError):
                    if time.time() - left.stat().st_mtime > _STALE_S:
                        left.unlink()
            if not _is_trusted(self._final, root):
                self._final.unlink(missing_ok=True)
            number, name = tempfile.mkstemp(prefix=_MAKING, dir=self._final.parent)
        except OSError as error:
            number, name = tempfile.mkstemp(prefix=_TEMPORARY, suffix=_SUFFIX)
            self._final = Path(name)
            why = os.strerror(error.errno) if error.errno else error
            self.note = f"Cannot write to the cache {root} ({why}): this run is not cached."
        self.path = Path(name)
        _unfinished.add(self.path)
        self.file = os.fdopen(number, "w+b")
        self.tables = TablesWriter(self.file, key.digest)
        self._is_committed = False

    @property
    def digest(self) -> str:
        """Digest of the entry's key."""
        return self._key.digest

    def __enter__(self) -> EntryWriter:
        return self

    def __exit__(self, *_: object) -> None:
        _unfinished.discard(self.path)
        with contextlib.suppress(OSError):  # what is left to write has no room
            self.file.close()
        if not self._is_committed:
            self.path.unlink(missing_ok=True)

    def commit(self) -> Path:
        """Complete the entry, rename it into place and return its path."""
        self.tables.finish()
        return self._put()

    def commit_if_intact(self) -> Path | None:
        """Commit a copy of an entry of another machine; None if it is damaged."""
        self.file.flush()
        return self._put() if _is_intact(self.path, self._key) else None

    def _put(self) -> Path:
        self.file.close()
        self.path.replace(self._final)
        self._is_committed = True
        return self._final


def discard_unfinished() -> None:
    """Delete the unfinished entries of this process, before it exits without unwinding."""
    for path in _unfinished:
        with contextlib.suppress(OSError):
            path.unlink()


def is_temporary(path: str) -> bool:
    """Whether an entry is outside every cache, so its user has to delete it."""
    entry = Path(path)
    return entry.name.startswith(_TEMPORARY) and entry.parent == Path(tempfile.gettempdir())


def _is_trusted(path: Path, root: Path) -> bool:
    """Whether it is a plain file that only this user or the owner of the cache can have written."""
    try:
        entry, cache = path.lstat(), root.stat()
    except OSError:
        return False
    if not stat.S_ISREG(entry.st_mode) or not hasattr(os, "geteuid"):
        return stat.S_ISREG(entry.st_mode)
    is_shared = bool(entry.st_mode & stat.S_IWOTH)
    return entry.st_uid in (os.geteuid(), cache.st_uid) and not is_shared


def _is_intact(path: Path, key: CacheKey) -> bool:
    try:
        with open_tables(path) as file:
            return file.is_intact(key.digest)
    except DamagedTablesError:
        return False


MOST_HELD_ROWS = 500_000  # of one trace, about 30 MB: a small file may unpack to any number
MOST_REMADE = 3  # times that tables are made again that are deleted or cut before they are read


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
        """Read the tables."""
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
    """Holds host rows in memory while the trace is read, at most :data:`MOST_HELD_ROWS`."""

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


BOUND = Bound(
    reads="an entry of a shared cache (--cache-dir URL)", num_bytes=1 << 36, beyond="made again"
)

PUT_LIMIT_S = 600.0  # to store an entry
_FAULTS = (OSError, ValueError, DistprofError, EOFError)


class SharedCache(msgspec.Struct, frozen=True):
    """Entries below a URL."""

    url: str  # The folder of all entries.

    def fetch(self, key: CacheKey, root: Path) -> tuple[Path | None, str]:
        """Copy an entry to this machine: its path if it is valid, and why the store failed."""
        from distprof.remote.download import download
        from distprof.remote.download import stat as stored

        try:
            found = stored(self._place(key))
            if (found.size or 0) > BOUND.num_bytes:
                return None, ""  # the entry is created again
            with download(found) as stream, EntryWriter(root, key) as writer:
                shutil.copyfileobj(stream, writer.file)
                return writer.commit_if_intact(), ""
        except FileNotFoundError:
            return None, ""
        except _FAULTS as error:
            return None, f"Cannot read the shared cache {self.url} ({_reason(error)})."

    def store(self, key: CacheKey, entry: Path) -> str:
        """Copy an entry of this machine to the store; returns why that failed, usually empty."""
        try:
            ask(self._place(key), lambda system, path: _put(entry, system, path), PUT_LIMIT_S)
        except _FAULTS as error:
            return f"Cannot write to the shared cache {self.url} ({_reason(error)})."
        return ""

    def _place(self, key: CacheKey) -> str:
        return f"{self.url.rstrip('/')}/{key.path(Path()).as_posix()}"


def _put(entry: Path, system: Any, path: str) -> Any:
    if is_async(system):
        return system._put_file(str(entry), path)
    system.makedirs(path.rpartition("/")[0], exist_ok=True)
    return system.put_file(str(entry), path)


def _reason(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
