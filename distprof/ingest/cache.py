"""Parsed tables on disk: one folder per trace, named after a hash of its content.

::

    ROOT/3f/3fa9…/    activity.parquet calls.parquet collectives.parquet steps.parquet
                      host.parquet rank.json entry.json

The key is a hash of all bytes of the stored file, the schema version and the options. Hashing a
gzipped trace takes a fiftieth of the time of parsing it. A copy at another path or a new
modification time costs no second parse, but any change of content does. An entry appears atomically
(written under a temporary name, then renamed), is checked against the checksums in ``entry.json``
before use, and is rebuilt if it is damaged.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import stat
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from distprof.bounds import Bound, open_plain
from distprof.errors import DistprofError
from distprof.kernel import threads_help
from distprof.run.tables import ACTIVITY, COLLECTIVES, HOST, STEPS, RankTables
from distprof.schema import Coded, Table, TableSchema

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "ACTIVITY_FILE",
    "CALLS_FILE",
    "COLLECTIVES_FILE",
    "ENTRY_FILES",
    "HOST_FILE",
    "RANK_FILE",
    "STEPS_FILE",
    "CacheKey",
    "CachedTables",
    "DamagedCacheError",
    "EntryWriter",
    "HeldHostRows",
    "HeldTables",
    "ParquetHostSink",
    "TooManyRowsError",
    "discard_unfinished",
    "find_entry",
    "is_temporary",
    "read_table",
    "write_table",
]

CACHE_VERSION = 8
"""Increased whenever the same trace would give different tables."""

ACTIVITY_FILE = "activity.parquet"
CALLS_FILE = "calls.parquet"  # the host rows that analyses need
HOST_FILE = "host.parquet"  # every host row
COLLECTIVES_FILE = "collectives.parquet"
STEPS_FILE = "steps.parquet"
RANK_FILE = "rank.json"
SUMS_FILE = "entry.json"
_FILES = frozenset((ACTIVITY_FILE, CALLS_FILE, HOST_FILE, COLLECTIVES_FILE, STEPS_FILE, RANK_FILE))
ENTRY_FILES = _FILES | {SUMS_FILE}

MOST_HELD_ROWS = 500_000
"""Rows of one trace that are held in memory, about 30 MB. A small compressed file may unpack to any
number of rows."""

NO_ROOM = frozenset((errno.ENOSPC, errno.EDQUOT))

_TEMPORARY = "distprof-"
_MAKING = ".making-"
_AWAY = ".old-"  # damaged entries, until they are deleted
_STALE_S = 86_400
_unfinished: set[Path] = set()  # entries that this process is making
_TRIES = 20
"""Attempts to replace a damaged entry, which as many other processes may be replacing."""
_ROW_GROUP = 1 << 17
_MAX_SUMS_BYTES = 1 << 16
_HASH_BLOCK = 1 << 18  # larger blocks are newly mapped memory each time, which is slower
_SHIFT_KEY = b"distprof.shift_ns"
_TIMES = ("start_ns", "end_ns")
_LARGEST_INT32 = 2**31 - 1  # string offsets have 32 bits


BOUND = Bound(reads="an entry of the cache", num_bytes=1 << 36, rows=1 << 30, beyond="made again")
"""Larger entries are not used, because checking an entry reads all of it."""


class DamagedCacheError(DistprofError):
    """A cache file cannot be read; the caller parses the trace again."""


class CacheKey(msgspec.Struct, frozen=True):
    """Identifies the tables of one trace under one set of options."""

    digest: str

    @staticmethod
    def of(trace: str | Path | bytes | BinaryIO, options: Mapping[str, Any]) -> CacheKey:
        """The key of a file.

        Args:
            trace: A path; a binary file object at its start, which is read to its end; or bytes
                that identify the content, such as the version of an object in a store.
            options: Everything else that the tables depend on, as JSON values.
        """
        settings = json.dumps([CACHE_VERSION, dict(options)], sort_keys=True)
        digest = hashlib.sha1(settings.encode(), usedforsecurity=False)
        if isinstance(trace, (str, Path)):
            with open_plain(trace) as file:
                _hash_into(digest, file)
        elif isinstance(trace, bytes):
            digest.update(trace)
        else:
            _hash_into(digest, trace)
        return CacheKey(digest.hexdigest())

    def folder(self, root: Path) -> Path:
        """Path of the entry under ``root``."""
        return root / self.digest[:2] / self.digest


def find_entry(root: Path, key: CacheKey) -> Path | None:
    """Folder of a complete, undamaged entry; None if there is none."""
    folder = key.folder(root)
    return folder if _is_usable(folder) else None


class _Contents(msgspec.Struct, frozen=True, kw_only=True):
    """The content of ``entry.json``.

    Args:
        key: The key under which the entry was made.
        files: Name of each file to its size and CRC-32.
    """

    key: str
    files: dict[str, list[int]]


class EntryWriter:
    """Builds one entry: write files into ``folder``, then :meth:`commit`.

    Without a commit, nothing is left behind. If the cache is not writable, the entry goes into a
    temporary folder and ``note`` says so.

    Args:
        root: The folder of all entries.
        key: Key of the entry.
        problem: Why ``root`` cannot take the entry, if already known.

    Attributes:
        folder: Where to write the files.
        note: What went wrong, as one sentence; usually empty.
    """

    def __init__(self, root: Path, key: CacheKey, problem: OSError | None = None) -> None:
        self._final = key.folder(root)
        self._key = key.digest
        self.note = ""
        try:
            if problem is not None:
                raise problem
            self._final.parent.mkdir(parents=True, exist_ok=True)
            _sweep(self._final.parent)
            if self._final.exists() and not _is_trusted(self._final):
                _discard(self._final)
            self.folder = Path(tempfile.mkdtemp(prefix=_MAKING, dir=self._final.parent))
        except OSError as error:
            self.folder = Path(tempfile.mkdtemp(prefix=_TEMPORARY))
            self._final = self.folder
            why = os.strerror(error.errno) if error.errno else error
            self.note = f"Cannot write to the cache {root} ({why}): this run is not cached."
        self._made = self.folder
        _unfinished.add(self._made)

    def __enter__(self) -> EntryWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _unfinished.discard(self._made)
        if self.folder != self._final or kind is not None:
            shutil.rmtree(self.folder, ignore_errors=True)

    def commit(self) -> Path:
        """Rename the entry into place, replacing a damaged one, and return its folder."""
        sums = {path.name: _sum_of(path) for path in sorted(self.folder.iterdir())}
        content = msgspec.json.encode(_Contents(key=self._key, files=sums))
        (self.folder / SUMS_FILE).write_bytes(content)
        if self.folder == self._final:
            return self._final
        for _ in range(_TRIES):
            if _is_usable(self._final):  # another process was first
                shutil.rmtree(self.folder, ignore_errors=True)
                self.folder = self._final
                return self._final
            with contextlib.suppress(OSError):  # a damaged entry is in the way
                return self._rename()
            with contextlib.suppress(OSError):  # another process may be moving it as well
                _discard(self._final)
        return self._rename()

    def commit_if_intact(self) -> Path | None:
        """Commit files copied from elsewhere; return None if their checksums do not match."""
        if not _is_intact(self.folder, self._key):
            return None
        (self.folder / SUMS_FILE).unlink()
        return self.commit()

    def _rename(self) -> Path:
        self.folder.rename(self._final)
        self.folder = self._final
        return self._final


def _discard(entry: Path) -> None:
    """Move an entry out of the way atomically and delete it."""
    away = Path(tempfile.mkdtemp(prefix=_AWAY, dir=entry.parent))
    try:
        with contextlib.suppress(FileNotFoundError):  # another process was first
            entry.rename(away / "entry")
    finally:
        shutil.rmtree(away, ignore_errors=True)


def _sweep(folder: Path) -> None:
    """Delete unfinished entries of processes that were killed more than a day ago."""
    for left in (*folder.glob(f"{_MAKING}*"), *folder.glob(f"{_AWAY}*")):
        with contextlib.suppress(OSError):
            if time.time() - left.stat().st_mtime > _STALE_S:
                shutil.rmtree(left, ignore_errors=True)


def discard_unfinished() -> None:
    """Delete the unfinished entries of this process, before it exits without unwinding."""
    for folder in _unfinished:
        shutil.rmtree(folder, ignore_errors=True)


def is_temporary(folder: str) -> bool:
    """Whether an entry is outside every cache, so its user has to delete it."""
    path = Path(folder)
    return path.name.startswith(_TEMPORARY) and path.parent == Path(tempfile.gettempdir())


class CachedTables(msgspec.Struct, frozen=True):
    """The tables of an entry; a :class:`~distprof.run.run.TableSource`.

    Args:
        folder: The entry.
        has_host: Whether host rows were read.
        held: Tables already in memory, by file name. A rank holds its steps and collectives.
        remake: Rebuilds the entry if it is missing or not on this machine.
    """

    folder: str
    has_host: bool
    held: Mapping[str, Table] = {}
    remake: Callable[[], CachedTables] | None = None

    def light(self) -> CachedTables:
        """A copy without tables in memory: its receiver reads them from disk."""
        return replace(self, held={})

    def load(self, *, every_host_row: bool = False) -> RankTables:
        """Read the tables.

        Args:
            every_host_row: Also read every operator.

        Raises:
            DamagedCacheError: If a file was damaged after the entry was found, and the trace has
                changed since.
            InputError: If the trace cannot be read again.
        """
        try:
            return self._load(every_host_row=every_host_row)
        except DamagedCacheError:
            if self.remake is None:
                raise
        made = self.remake()
        if Path(made.folder).name != Path(self.folder).name:
            raise DamagedCacheError(f"{self.folder} is gone, and the trace has changed since")
        return made._load(every_host_row=every_host_row)

    def _load(self, *, every_host_row: bool) -> RankTables:
        host = HOST_FILE if every_host_row else CALLS_FILE
        return RankTables(
            activity=self._table(ACTIVITY_FILE, ACTIVITY),
            host=self._table(host, HOST) if self.has_host else Table.empty(HOST),
            collectives=self._table(COLLECTIVES_FILE, COLLECTIVES),
            steps=self._table(STEPS_FILE, STEPS),
            has_host=self.has_host,
        )

    def _table(self, name: str, schema: TableSchema) -> Table:
        held = self.held.get(name)
        return read_table(Path(self.folder) / name, schema) if held is None else held


class HeldTables(msgspec.Struct, frozen=True):
    """Tables in memory; a :class:`~distprof.run.run.TableSource`.

    Args:
        tables: The tables that analyses need.
        every_host_row: The HOST table with every operator.
    """

    tables: RankTables
    every_host_row: Table

    def load(self, *, every_host_row: bool = False) -> RankTables:
        """The tables.

        Args:
            every_host_row: Also return every operator.
        """
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
        rows = Table.concat(HOST, self._parts)
        return rows.with_columns(**{name: rows[name] + self._shift_ns for name in _TIMES})


class ParquetHostSink:
    """Writes host rows to a Parquet file while the trace is read.

    Args:
        path: The file to create.
    """

    def __init__(self, path: Path) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        self._path = path
        self._file = pa.OSFile(str(path), "wb")
        self._writer = pq.ParquetWriter(self._file, _arrow_schema(HOST), **_how_to_write(HOST))
        self._waiting: list[Table] = []
        self._num_waiting = 0
        self._shift_ns = 0
        self._thread = ThreadPoolExecutor(1, "distprof-write")  # starts with the first rows
        self._writing: Future[None] | None = None

    def __enter__(self) -> ParquetHostSink:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
            return
        with contextlib.suppress(Exception):  # the original error matters, the file does not
            self._thread.shutdown(wait=True, cancel_futures=True)
            self._writer.close()
            self._file.close()

    def write(self, rows: Table) -> None:
        """Add rows; full row groups are written at once.

        A thread writes them if that helps.

        Raises:
            OSError: If earlier rows could not be written.
        """
        self._waiting.append(rows)
        self._num_waiting += len(rows)
        if self._num_waiting >= _ROW_GROUP:
            self._finish_writing()
            waiting, self._waiting, self._num_waiting = self._waiting, [], 0
            if threads_help():
                self._writing = self._thread.submit(self._write_group, waiting)
            else:
                self._write_group(waiting)

    def shift(self, base_ns: int) -> None:
        """Add ``base_ns`` to all times; kept separately, because most rows are already written."""
        self._shift_ns = base_ns

    def close(self) -> None:
        """Write the remaining rows. The file is complete only after this."""
        try:
            self._finish_writing()
            if self._num_waiting:
                self._write_group(self._waiting)
        finally:
            self._thread.shutdown()
        self._waiting, self._num_waiting = [], 0
        self._writer.add_key_value_metadata({_SHIFT_KEY.decode(): str(self._shift_ns)})
        self._writer.close()
        self._file.close()

    def table(self) -> Table:
        """All rows; call it after :meth:`close`."""
        return read_table(self._path, HOST)

    def _finish_writing(self) -> None:
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def _write_group(self, waiting: Sequence[Table]) -> None:
        rows = Table.concat(HOST, waiting)
        self._writer.write_table(_to_arrow(rows), row_group_size=_ROW_GROUP)


def write_table(path: Path, table: Table) -> None:
    """Write a table as Parquet: lz4, with delta encoding for the integers."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = table.schema
    with (
        pa.OSFile(str(path), "wb") as file,
        pq.ParquetWriter(file, _arrow_schema(schema), **_how_to_write(schema)) as writer,
    ):
        writer.write_table(_to_arrow(table), row_group_size=_ROW_GROUP)


def read_table(path: Path, schema: TableSchema) -> Table:
    """Read what :func:`write_table` or :class:`ParquetHostSink` wrote.

    Raises:
        DamagedCacheError: If the file is missing, damaged or of another schema.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    categories = [column.name for column in schema if column.dtype == "category"]
    try:
        with (
            pa.OSFile(str(path)) as opened,  # a path would be resolved to a file system first
            pq.ParquetFile(opened, read_dictionary=categories) as file,
        ):
            metadata = file.metadata.metadata or {}
            shift_ns = int(metadata.get(_SHIFT_KEY, b"0"))
            arrow = file.read(use_threads=False)  # waking threads costs more than reading one rank
        return _from_arrow(arrow, schema, shift_ns)
    except (OSError, ValueError, KeyError, TypeError, pa.ArrowException) as error:
        raise DamagedCacheError(f"{path}: cannot read the cached table: {error}") from error


def _is_usable(folder: Path) -> bool:
    return _is_trusted(folder) and _is_intact(folder, folder.name)


def _is_trusted(folder: Path) -> bool:
    """Whether only this user or the owner of the cache can have written the entry.

    A run directory brings its own cache. Its owner could change the traces as well.
    """
    try:
        made, root = folder.lstat(), folder.parents[1].stat()
    except OSError:
        return False
    if not hasattr(os, "geteuid"):
        return True
    is_shared = bool(made.st_mode & stat.S_IWOTH)
    return made.st_uid in (os.geteuid(), root.st_uid) and not is_shared


def _is_intact(folder: Path, key: str) -> bool:
    """Whether the files are those that were committed. Only plain files are opened."""
    try:
        if not _is_plain(folder / SUMS_FILE, max_bytes=_MAX_SUMS_BYTES):
            return False
        contents = msgspec.json.decode((folder / SUMS_FILE).read_bytes(), type=_Contents)
        sums = contents.files
        if contents.key != key:  # moved or copied here from another key
            return False
        if not sums.keys() <= _FILES or RANK_FILE not in sums:
            return False
        if sum(expected[0] for expected in sums.values() if expected) > BOUND.num_bytes:
            return False
        return all(_is_file_of(folder / name, expected) for name, expected in sums.items())
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return False


def _is_file_of(path: Path, expected: Sequence[int]) -> bool:
    """Whether it is a plain file of this size and checksum."""
    return bool(expected) and _is_plain(path, max_bytes=expected[0]) and _sum_of(path) == expected


def _is_plain(path: Path, *, max_bytes: int) -> bool:
    """Whether it is a file of at most ``max_bytes`` bytes, not a link, pipe or device."""
    info = path.lstat()
    return stat.S_ISREG(info.st_mode) and info.st_size <= max_bytes


def _hash_into(digest: Any, file: BinaryIO) -> None:
    while block := file.read(_HASH_BLOCK):
        digest.update(block)


def _sum_of(path: Path) -> list[int]:
    """Size and CRC-32 of a file."""
    total = size = 0
    with path.open("rb") as file:
        while block := file.read(_HASH_BLOCK):
            total = zlib.crc32(block, total)
            size += len(block)
    return [size, total]


@cache
def _arrow_schema(schema: TableSchema) -> pa.Schema:
    import pyarrow as pa

    types = {
        "category": pa.dictionary(pa.int32(), pa.string()),
        "bool": pa.bool_(),
        **{name: pa.from_numpy_dtype(np.dtype(name)) for name in _NUMBERS},
    }
    return pa.schema([pa.field(c.name, types[c.dtype], nullable=False) for c in schema])


_NUMBERS = ("int64", "int32", "int8", "float64")


def _how_to_write(schema: TableSchema) -> dict[str, Any]:
    deltas = [column.name for column in schema if column.dtype in ("int64", "int32")]
    return {
        "compression": "lz4",  # zstd: an eighth smaller, but twice the time: set up per column
        "use_dictionary": [c.name for c in schema if c.dtype == "category"],
        "column_encoding": dict.fromkeys(deltas, "DELTA_BINARY_PACKED"),
        "write_statistics": False,
    }


def _to_arrow(table: Table) -> pa.Table:
    import pyarrow as pa

    arrays = []
    for column in table.schema:
        if column.dtype == "category":
            coded = table.coded(column.name)
            values = _arrow_strings(coded.values)
            arrays.append(pa.DictionaryArray.from_arrays(_arrow_array(coded.codes), values))
        else:
            arrays.append(_arrow_array(table[column.name]))
    return pa.Table.from_arrays(arrays, schema=_arrow_schema(table.schema))


def _arrow_array(values: NDArray[Any]) -> pa.Array:
    """``values`` without a copy. ``pa.array`` would import pandas to look for its types."""
    import pyarrow as pa

    if values.dtype == np.bool_:
        bits = np.packbits(values, bitorder="little")
        return pa.Array.from_buffers(pa.bool_(), len(values), [None, pa.py_buffer(bits)])
    data = pa.py_buffer(np.ascontiguousarray(values))
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [None, data])


def _arrow_strings(values: Sequence[str]) -> pa.Array:
    import pyarrow as pa

    encoded = [value.encode() for value in values]
    data = b"".join(encoded)
    if len(data) > _LARGEST_INT32:
        raise ValueError("the distinct strings of a column exceed 2 GiB in total")
    offsets = np.zeros(len(encoded) + 1, np.int32)
    np.cumsum([len(value) for value in encoded], out=offsets[1:])
    return pa.StringArray.from_buffers(len(encoded), pa.py_buffer(offsets), pa.py_buffer(data))


def _from_arrow(arrow: pa.Table, schema: TableSchema, shift_ns: int) -> Table:
    if not arrow.schema.equals(_arrow_schema(schema)):
        raise TypeError(f"its columns differ from those of {schema.name}")
    if arrow.num_rows == 0:
        return Table.empty(schema)
    columns: dict[str, Any] = {}
    unified = arrow.unify_dictionaries()
    for column in schema:
        values = _one_array(unified.column(column.name))
        if column.dtype == "category":
            codes = _from_buffer(values.indices, np.dtype(np.int32))
            # Ranks have the same names, so a worker sends each only once for a batch of them
            names = tuple(map(sys.intern, values.dictionary.to_pylist()))
            columns[column.name] = Coded(codes, names)
        else:
            columns[column.name] = _from_buffer(values, np.dtype(column.dtype))
    if shift_ns:
        for name in _TIMES:
            columns[name] = columns[name] + shift_ns
    return Table(schema, columns)


def _one_array(column: pa.ChunkedArray) -> pa.Array:
    import pyarrow as pa

    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)


def _from_buffer(array: pa.Array, dtype: np.dtype[Any]) -> NDArray[Any]:
    """``array`` without a copy, except for booleans.

    Arrow's own ``to_numpy`` would import pandas.
    """
    data = array.buffers()[1]
    if dtype == np.bool_:
        bits = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")
        return bits[array.offset : array.offset + len(array)].astype(np.bool_)
    return np.frombuffer(data, dtype, len(array), array.offset * dtype.itemsize)
