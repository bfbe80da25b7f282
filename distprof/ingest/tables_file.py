"""All tables of one rank in one file.

::

    host | activity | calls | collectives | steps | rank | index | trailer

Each table is a whole Parquet file, ``rank`` is JSON, and the index has the position of each part,
which may be in any order. The trailer has the length of the index and a checksum of everything
before it, so a file that was cut off or changed is detected by reading it once. For a short rank,
one file takes two thirds of the time of one file per table. It is also one object in a store.
"""

from __future__ import annotations

import contextlib
import struct
import sys
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec
import numpy as np
from numpy.typing import NDArray

from distprof.bounds import Bound, open_plain
from distprof.errors import DistprofError
from distprof.kernel import threads_help
from distprof.run.tables import ACTIVITY, COLLECTIVES, HOST, STEPS
from distprof.schema import Coded, Table, TableSchema

# Larger files are not used, because checking a file reads all of it.
BOUND = Bound(reads="an entry of the cache", num_bytes=1 << 36, rows=1 << 30, beyond="made again")
_TRAILER = struct.Struct("<II8s")
_MAGIC = b"distprof"
_MAX_INDEX_BYTES = 1 << 16
BLOCK = 1 << 18  # bytes: larger blocks are newly mapped memory each time, which is slower


class DamagedTablesError(DistprofError):
    """A file of tables cannot be read; the caller parses the trace again."""


class Part(StrEnum):
    """What a file holds."""

    ACTIVITY = "activity"
    CALLS = "calls"  # the host rows that analyses need
    COLLECTIVES = "collectives"
    HOST = "host"  # every host row
    STEPS = "steps"
    RANK = "rank"

    @property
    def schema(self) -> TableSchema:
        """Schema of the table; :attr:`RANK` is none."""
        return {"activity": ACTIVITY, "collectives": COLLECTIVES, "steps": STEPS}.get(self, HOST)


class _Index(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the parts are."""

    key: str  # The key under which the file was made.
    parts: dict[Part, tuple[int, int]]  # Position and size of each part, in bytes.


# Writing ------------------------------------------------------------------------------------------


class TablesWriter:
    """Writes the parts into an empty file one after another, then :meth:`finish`."""

    def __init__(self, file: BinaryIO, key: str) -> None:
        self._stream = _Stream(file)
        self._key = key
        self._parts: dict[Part, tuple[int, int]] = {}

    def write_table(self, part: Part, table: Table) -> None:
        """Write a table."""
        with self._adding(part):
            writer = ParquetTable(self._stream, part.schema)
            writer.write(table)
            writer.close()

    @contextlib.contextmanager
    def host_rows(self) -> Iterator[HostRowsWriter]:
        """Yield a sink for all host rows; a second one replaces the rows of the first."""
        with self._adding(Part.HOST), HostRowsWriter(self._stream) as rows:
            yield rows

    def write_rank(self, content: bytes) -> None:
        """Write the summary of the rank."""
        with self._adding(Part.RANK):
            self._stream.write(content)

    def finish(self) -> None:
        """Write the index. The file is complete only after this."""
        index = msgspec.json.encode(_Index(key=self._key, parts=self._parts))
        self._stream.write(index)
        self._stream.write(_TRAILER.pack(len(index), self._stream.checksum, _MAGIC))
        self._stream.flush()

    @contextlib.contextmanager
    def _adding(self, part: Part) -> Iterator[None]:
        """Note where the part begins and ends."""
        start = self._stream.start_part()
        yield
        self._parts[part] = (start, self._stream.tell())


class _Stream:
    """A file whose position counts from the start of the present part, as Parquet requires.

    ``checksum`` is the CRC-32 of everything written. ``closed`` is always false: a closed part does
    not close the file.
    """

    closed = False

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._start = self._size = 0
        self.checksum = 0

    def start_part(self) -> int:
        """Begin a part here; returns its position in the file."""
        self._start = self._size
        return self._start

    def write(self, data: Any) -> int:
        """Append bytes; those of a part that an interruption left unfinished are dropped."""
        if self._file.closed:
            return memoryview(data).nbytes
        self.checksum = zlib.crc32(data, self.checksum)
        self._file.write(data)
        count = memoryview(data).nbytes
        self._size += count
        return count

    def tell(self) -> int:
        return self._size - self._start

    def read(self, start: int, size: int) -> bytes:
        """Bytes that were written before."""
        self._file.seek(start)
        try:
            return self._file.read(size)
        finally:
            self._file.seek(self._size)

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        """Do nothing."""

    def writable(self) -> bool:
        return True

    def readable(self) -> bool:
        return False

    seekable = readable  # parts are only appended


class HostRowsWriter:
    """Writes host rows as Parquet while the trace is read."""

    def __init__(self, stream: _Stream) -> None:
        self._stream = stream
        self._start, self._size = stream.start_part(), 0
        self._table = ParquetTable(stream, HOST)
        self._waiting: list[Table] = []
        self._num_waiting = 0
        self._shift_ns = 0
        self._thread = ThreadPoolExecutor(1, "distprof-write")  # starts with the first rows
        self._writing: Future[None] | None = None

    def __enter__(self) -> HostRowsWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._close()
            return
        with contextlib.suppress(Exception):  # the original error matters, the file does not
            self._thread.shutdown(wait=True, cancel_futures=True)
            self._table.close()

    def write(self, rows: Table) -> None:
        """Add rows; full row groups are written at once, by a thread if that helps."""
        self._waiting.append(rows)
        self._num_waiting += len(rows)
        if self._num_waiting >= ROW_GROUP:
            self._finish_writing()
            waiting, self._waiting, self._num_waiting = self._waiting, [], 0
            if threads_help():
                self._writing = self._thread.submit(self._write_group, waiting)
            else:
                self._write_group(waiting)

    def shift(self, base_ns: int) -> None:
        """Add ``base_ns`` to all times; kept separately, because most rows are already written."""
        self._shift_ns = base_ns

    def table(self) -> Table:
        """All rows; call it after the block of :meth:`TablesWriter.host_rows`."""
        return read_parquet(self._stream.read(self._start, self._size), HOST)

    def _close(self) -> None:
        try:
            self._finish_writing()
            if self._num_waiting:
                self._write_group(self._waiting)
        finally:
            self._thread.shutdown()
        self._waiting, self._num_waiting = [], 0
        self._table.close(self._shift_ns)
        self._size = self._stream.tell()

    def _finish_writing(self) -> None:
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def _write_group(self, waiting: Sequence[Table]) -> None:
        self._table.write(Table.concat(HOST, waiting))


# Reading ------------------------------------------------------------------------------------------


@contextlib.contextmanager
def open_tables(path: Path) -> Iterator[TablesReader]:
    """Open a file that :class:`TablesWriter` wrote."""
    try:
        file = open_plain(path)
    except OSError as error:
        raise DamagedTablesError(f"{path}: cannot read the cached tables: {error}") from error
    with file:
        yield TablesReader(file, str(path))


class TablesReader:
    """Reads single parts of a file."""

    def __init__(self, file: BinaryIO, name: str) -> None:
        self._file, self._name = file, name
        try:
            self._end, self._index, self._checksum = self._read_index()
        except (OSError, ValueError, struct.error) as error:
            raise self._damaged(error) from error

    def is_intact(self, key: str) -> bool:
        """Whether the file is whole and unchanged, and was made under this key."""
        if self._index.key != key or Part.RANK not in self._index.parts:
            return False  # moved or copied here from another key, or not of distprof
        checksum = position = 0
        try:
            self._file.seek(0)
            while position < self._end:
                block = self._file.read(min(BLOCK, self._end - position))
                if not block:
                    return False
                checksum = zlib.crc32(block, checksum)
                position += len(block)
        except OSError:
            return False
        return checksum == self._checksum

    def rank(self) -> bytes:
        """The summary of the rank; raises :class:`DamagedTablesError`."""
        return self._bytes(Part.RANK)

    def table(self, part: Part) -> Table:
        """A table; raises :class:`DamagedTablesError` if it is missing or damaged."""
        try:
            return read_parquet(self._bytes(part), part.schema)
        except ValueError as error:
            raise self._damaged(error) from error

    def _read_index(self) -> tuple[int, _Index, int]:
        """End of the index, the index, and the checksum of everything before its end."""
        end = self._file.seek(0, 2) - _TRAILER.size
        if not 0 <= end <= BOUND.num_bytes:
            raise ValueError("too short or too long")
        length, checksum, magic = _TRAILER.unpack(self._at(end, _TRAILER.size))
        if magic != _MAGIC or length > min(end, _MAX_INDEX_BYTES):
            raise ValueError("no index")
        index = msgspec.json.decode(self._at(end - length, length), type=_Index)
        for start, size in index.parts.values():
            if not (start >= 0 and 0 <= size <= end - length - start):
                raise ValueError("a part is outside of the file")
        return end, index, checksum

    def _bytes(self, part: Part) -> bytes:
        try:
            return self._at(*self._index.parts[part])
        except (OSError, KeyError) as error:
            raise self._damaged(error) from error

    def _at(self, start: int, size: int) -> bytes:
        self._file.seek(start)
        parts = []
        while size and (part := self._file.read(size)):
            parts.append(part)
            size -= len(part)
        if size:
            raise OSError("cut off")
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _damaged(self, error: Exception) -> DamagedTablesError:
        return DamagedTablesError(f"{self._name}: cannot read the cached tables: {error}")


if TYPE_CHECKING:
    import pyarrow as pa

ROW_GROUP = 1 << 17  # rows that are encoded at a time
_SHIFT_KEY = b"distprof.shift_ns"
_TIMES = ("start_ns", "end_ns")
_LARGEST_INT32 = 2**31 - 1  # string offsets have 32 bits


class ParquetTable:
    """Writes rows of one schema; :meth:`close` completes it."""

    def __init__(self, stream: Any, schema: TableSchema) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        numbers = [column.name for column in schema if column.dtype in ("int64", "int32")]
        deltas = [name for name in numbers if name != "sequence"]  # which most rows lack
        self._writer = pq.ParquetWriter(
            pa.PythonFile(stream, "w"),
            _arrow_schema(schema),
            compression="lz4",  # zstd: an eighth smaller, but twice the time: set up per column
            use_dictionary=[c.name for c in schema if c.dtype == "category"],
            column_encoding=dict.fromkeys(deltas, "DELTA_BINARY_PACKED"),
            write_statistics=False,
        )

    def write(self, rows: Table) -> None:
        """Append rows."""
        self._writer.write_table(_to_arrow(rows), row_group_size=ROW_GROUP)

    def close(self, shift_ns: int = 0) -> None:
        """Write the end; readers add ``shift_ns`` to all times."""
        if shift_ns:
            self._writer.add_key_value_metadata({_SHIFT_KEY.decode(): str(shift_ns)})
        self._writer.close()


def read_parquet(content: bytes, schema: TableSchema) -> Table:
    """The table that :class:`ParquetTable` wrote."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    categories = [column.name for column in schema if column.dtype == "category"]
    try:
        with pq.ParquetFile(pa.BufferReader(content), read_dictionary=categories) as file:
            metadata = file.metadata.metadata or {}
            shift_ns = int(metadata.get(_SHIFT_KEY, b"0"))
            arrow = file.read(use_threads=False)  # waking threads costs more than reading one rank
        table = _from_arrow(arrow, schema)
        return shifted(table, shift_ns) if shift_ns else table
    except (OSError, KeyError, TypeError, OverflowError, pa.ArrowException) as error:
        raise ValueError(str(error)) from error


def shifted(rows: Table, shift_ns: int) -> Table:
    """The rows with all times later by ``shift_ns``."""
    return rows.with_columns(**{name: rows[name] + shift_ns for name in _TIMES})


@cache
def _arrow_schema(schema: TableSchema) -> pa.Schema:
    import pyarrow as pa

    types = {
        "category": pa.dictionary(pa.int32(), pa.string()),
        "bool": pa.bool_(),
        **{
            name: pa.from_numpy_dtype(np.dtype(name))
            for name in ("int64", "int32", "int8", "float64")
        },
    }
    return pa.schema([pa.field(c.name, types[c.dtype], nullable=False) for c in schema])


def _to_arrow(table: Table) -> pa.Table:
    import pyarrow as pa

    arrays = []
    for column in table.schema:
        if column.dtype == "category":
            coded = table.coded(column.name)
            values = _arrow_strings(coded.values)
            codes = _arrow_array(coded.codes)
            # Arrow's own check takes several times as long
            is_sound = not len(codes) or 0 <= coded.codes.min() <= coded.codes.max() < len(values)
            arrays.append(pa.DictionaryArray.from_arrays(codes, values, safe=not is_sound))
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

    encoded = [*map(str.encode, values)]
    data = b"".join(encoded)
    if len(data) > _LARGEST_INT32:
        raise ValueError("the distinct strings of a column exceed 2 GiB in total")
    offsets = np.zeros(len(encoded) + 1, np.int32)
    np.cumsum(np.fromiter(map(len, encoded), np.int32, len(encoded)), out=offsets[1:])
    return pa.StringArray.from_buffers(len(encoded), pa.py_buffer(offsets), pa.py_buffer(data))


def _from_arrow(arrow: pa.Table, schema: TableSchema) -> Table:
    import pyarrow as pa

    if not arrow.schema.equals(_arrow_schema(schema)):
        raise TypeError(f"its columns differ from those of {schema.name}")
    if arrow.num_rows == 0:
        return Table.empty(schema)
    columns: dict[str, Any] = {}
    unified = arrow.unify_dictionaries()
    for column in schema:
        chunks = unified.column(column.name).chunks
        values = chunks[0] if len(chunks) == 1 else pa.concat_arrays(chunks)
        if column.dtype == "category":
            codes = _from_buffer(values.indices, np.dtype(np.int32))
            # Ranks have the same names, so a worker sends each only once for a batch of them
            names = tuple(map(sys.intern, values.dictionary.to_pylist()))
            columns[column.name] = Coded(codes, names)
        else:
            columns[column.name] = _from_buffer(values, np.dtype(column.dtype))
    return Table(schema, columns)


def _from_buffer(array: pa.Array, dtype: np.dtype[Any]) -> NDArray[Any]:
    """``array`` without a copy, except for booleans; its own ``to_numpy`` would import pandas."""
    data = array.buffers()[1]
    if dtype == np.bool_:
        bits = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")
        return bits[array.offset : array.offset + len(array)].astype(np.bool_)
    return np.frombuffer(data, dtype, len(array), array.offset * dtype.itemsize)
