"""Tables as Parquet: lz4, with delta encoding for the integers."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from distprof.schema import Coded, Table, TableSchema

if TYPE_CHECKING:
    import pyarrow as pa

ROW_GROUP = 1 << 17
"""Rows that are encoded at a time."""
_SHIFT_KEY = b"distprof.shift_ns"
_TIMES = ("start_ns", "end_ns")
_LARGEST_INT32 = 2**31 - 1  # string offsets have 32 bits


class ParquetTable:
    """Writes rows of one schema; :meth:`close` completes it."""

    def __init__(self, stream: Any, schema: TableSchema) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        deltas = [column.name for column in schema if column.dtype in ("int64", "int32")]
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
    """The table that :class:`ParquetTable` wrote.

    Raises:
        ValueError: If it is damaged or of another schema.
    """
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
