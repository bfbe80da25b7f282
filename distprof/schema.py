"""Tables: named, typed columns over numpy arrays, each described once.

The schema of a table gives the dtype, unit and meaning of each column; the reference page is
generated from it. Strings are dictionary-encoded (:class:`Coded`). A missing integer is
:data:`ABSENT` in the array and ``NA`` in pandas, never 0.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import re

    import pandas as pd

Int64Array: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float64]
Bools: TypeAlias = NDArray[np.bool_]
DType = Literal["int64", "int32", "int8", "float64", "bool", "category"]
ABSENT = -1
"""Value in an integer column if the trace has none."""


class Column(msgspec.Struct, frozen=True):
    """One column: its name, dtype, unit and meaning."""

    name: str  # Ends in ``_ns``, ``_bytes`` or ``_ratio`` if it has that unit.
    dtype: DType  # ``category`` is a :class:`Coded` column of strings.
    doc: str  # Meaning of a value, one sentence.
    unit: str = ""  # Unit of the values; empty for counts, ids and names.
    nullable: bool = False  # Whether :data:`ABSENT` (for strings: the empty string) means unknown.


def whole(name: str, doc: str, unit: str = "") -> Column:
    """A column of int64 that may be unknown."""
    return Column(name, "int64", doc, unit, nullable=True)


def number(name: str, doc: str, unit: str = "") -> Column:
    """A column of float64 that may be unknown."""
    return Column(name, "float64", doc, unit, nullable=True)


def text(name: str, doc: str) -> Column:
    """A column of strings that may be unknown."""
    return Column(name, "category", doc, nullable=True)


class TableSchema(msgspec.Struct, frozen=True):
    """A table's name, meaning and columns."""

    name: str
    doc: str
    columns: tuple[Column, ...]

    def __iter__(self) -> Iterator[Column]:
        return iter(self.columns)

    @property
    def names(self) -> tuple[str, ...]:
        """Column names in order."""
        return tuple(column.name for column in self.columns)


class Coded(msgspec.Struct, frozen=True):
    """A dictionary-encoded column of strings."""

    codes: NDArray[np.int32]  # int32, one per row; an index into ``values``.
    values: tuple[str, ...]  # The distinct strings.

    def __len__(self) -> int:
        return len(self.codes)

    def at(self, row: int) -> str:
        """The string of a row."""
        return str(self.values[self.codes[row]])

    def take(self, index: Any) -> Coded:
        """The rows that ``index`` (a mask, a slice or positions) selects, with the same values."""
        return Coded(self.codes[index], self.values)

    def decode(self) -> list[str]:
        """The strings, one per row."""
        values = self.values
        return [values[code] for code in self.codes.tolist()]

    def equals(self, value: str) -> NDArray[np.bool_]:
        """Mask of the rows that hold ``value``."""
        return self.isin((value,))

    def isin(self, wanted: Collection[str]) -> NDArray[np.bool_]:
        """Mask of the rows that hold one of ``wanted``."""
        return self.where([value in wanted for value in self.values])

    def finds(self, pattern: re.Pattern[str]) -> NDArray[np.bool_]:
        """Mask of the rows in whose value the pattern is found."""
        return self.where([pattern.search(value) is not None for value in self.values])

    def where(self, verdicts: Sequence[bool]) -> NDArray[np.bool_]:
        """Mask of the rows whose value has a true verdict; one verdict per distinct value."""
        if not self.values:
            return np.zeros(len(self.codes), dtype=np.bool_)
        return np.asarray(verdicts, dtype=np.bool_).take(self.codes)

    def numbered(self, known: dict[str, int]) -> Int64Array:
        """The number of each row's value among ``known``, to which new values are added."""
        if not self.values:
            return np.zeros(len(self), dtype=np.int64)
        numbers = [known.setdefault(value, len(known)) for value in self.values]
        return np.array(numbers, dtype=np.int64)[self.codes]

    @staticmethod
    def merged(codes: NDArray[np.int32], values: Sequence[str]) -> Coded:
        """A column from codes into ``values``; repeated values are merged."""
        distinct = Coded.encode(values)
        if len(distinct.values) == len(values):
            return Coded(codes, distinct.values)
        return Coded(distinct.codes[codes], distinct.values)

    @staticmethod
    def encode(strings: Sequence[str]) -> Coded:
        """Encode plain strings, values in order of first appearance."""
        seen: dict[str, int] = {}
        codes = np.fromiter(
            (seen.setdefault(s, len(seen)) for s in strings), dtype=np.int32, count=len(strings)
        )
        return Coded(codes, tuple(seen))

    @staticmethod
    def concat(parts: Sequence[Coded]) -> Coded:
        """The rows of all columns, concatenated; values in order of first appearance."""
        merged = Coded.encode([value for part in parts for value in part.values])
        tables = np.split(merged.codes, np.cumsum([len(part.values) for part in parts])[:-1])
        codes = [
            table[part.codes] if len(table) else part.codes
            for part, table in zip(parts, tables, strict=True)
        ]
        return Coded(np.concatenate(codes), merged.values)


class Table:
    """Columns of equal length with a schema; immutable.

    Args:
        schema: Description of the columns.
        columns: One array per schema column: numpy of the schema's dtype, or :class:`Coded`.

    Raises:
        ValueError: If columns are missing, unknown, of another dtype or of unequal length.
    """

    __slots__ = ("__weakref__", "_columns", "_length", "schema")

    def __init__(self, schema: TableSchema, columns: Mapping[str, NDArray[Any] | Coded]) -> None:
        self.schema = schema
        self._columns = dict(columns)
        if set(self._columns) != set(schema.names):
            raise ValueError(f"{schema.name}: columns {sorted(columns)} are not {schema.names}")
        lengths = {len(column) for column in self._columns.values()}
        if len(lengths) > 1:
            raise ValueError(f"{schema.name}: columns of unequal length {sorted(lengths)}")
        self._length = lengths.pop() if lengths else 0
        for column in schema:
            values, name = self._columns[column.name], f"{schema.name}.{column.name}"
            if column.dtype == "category":
                if not isinstance(values, Coded):
                    raise ValueError(f"{name} must be a Coded column")
            elif isinstance(values, Coded) or values.dtype != np.dtype(column.dtype):
                raise ValueError(f"{name} must have dtype {column.dtype}")

    def __len__(self) -> int:
        return self._length

    def __getstate__(self) -> tuple[TableSchema, dict[str, NDArray[Any] | Coded]]:
        return self.schema, self._columns

    def __setstate__(self, state: tuple[TableSchema, dict[str, NDArray[Any] | Coded]]) -> None:
        self.__init__(*state)  # type: ignore[misc]  # unpickling is construction
        self._columns = _compact(self._columns)

    def __getitem__(self, name: str) -> NDArray[Any]:
        """The numpy array of a column that is not a category."""
        column = self._columns[name]
        if isinstance(column, Coded):
            raise TypeError(f"{self.schema.name}.{name} is a category: use .coded({name!r})")
        return column

    def coded(self, name: str) -> Coded:
        """The dictionary-encoded column ``name``."""
        column = self._columns[name]
        if not isinstance(column, Coded):
            raise TypeError(f"{self.schema.name}.{name} is not a category")
        return column

    def take(self, index: Any) -> Table:
        """The rows that ``index`` (a mask, a slice or positions) selects."""
        columns: dict[str, NDArray[Any] | Coded] = {
            name: column.take(index) if isinstance(column, Coded) else column[index]
            for name, column in self._columns.items()
        }
        return Table(self.schema, columns)

    def compact(self) -> Table:
        """The same rows in less memory: constant columns and shared strings are stored once.

        A constant column becomes a view of one value, and strings are interned. Other columns are
        copied if they are views, so that larger buffers of readers are freed.
        """
        copies: dict[int, NDArray[Any]] = {}  # arrays shared by columns stay shared

        def owned(values: NDArray[Any]) -> NDArray[Any]:
            if values.flags.owndata or 0 in values.strides:
                return values
            if id(values) not in copies:
                copies[id(values)] = values.copy()
            return copies[id(values)]

        compacted = _compact(self._columns)
        columns: dict[str, NDArray[Any] | Coded] = {
            name: Coded(owned(each.codes), each.values) if isinstance(each, Coded) else owned(each)
            for name, each in compacted.items()
        }
        return Table(self.schema, columns)

    def with_columns(self, **changed: NDArray[Any] | Coded) -> Table:
        """A copy of the table with other values in the named columns."""
        return Table(self.schema, {**self._columns, **changed})

    def to_pandas(self) -> pd.DataFrame:
        """The table as a pandas frame; nullable integers become ``Int64`` with ``NA``."""
        import pandas as pd

        columns: dict[str, Any] = dict(self._columns)
        for column in self.schema:
            values = self._columns[column.name]
            if isinstance(values, Coded):
                names = pd.Index(values.values, dtype="str")
                columns[column.name] = pd.Categorical.from_codes(values.codes, categories=names)
            elif column.nullable and values.dtype.kind == "i":
                whole = values.astype(np.int64)
                columns[column.name] = pd.arrays.IntegerArray(whole, values == ABSENT)
        return pd.DataFrame({name: columns[name] for name in self.schema.names})

    @staticmethod
    def empty(schema: TableSchema) -> Table:
        """A table without rows."""
        return Table(
            schema,
            {
                column.name: Coded(np.empty(0, np.int32), ())
                if column.dtype == "category"
                else np.empty(0, np.dtype(column.dtype))
                for column in schema
            },
        )

    @staticmethod
    def concat(schema: TableSchema, tables: Sequence[Table]) -> Table:
        """The rows of all ``tables``, concatenated; dictionaries are merged."""
        if not tables:
            return Table.empty(schema)
        if len(tables) == 1:
            return tables[0]
        columns: dict[str, NDArray[Any] | Coded] = {
            column.name: Coded.concat([t.coded(column.name) for t in tables])
            if column.dtype == "category"
            else np.concatenate([t[column.name] for t in tables])
            for column in schema
        }
        return Table(schema, columns)


_MANY_ROWS = 1_000
"""Number of rows from which constant columns are worth detecting."""


def _compact(columns: Mapping[str, NDArray[Any] | Coded]) -> dict[str, NDArray[Any] | Coded]:
    result: dict[str, NDArray[Any] | Coded] = {}
    codes: list[NDArray[np.int32]] = []
    for name, column in columns.items():
        if isinstance(column, Coded):
            own = next((known for known in codes if _is_same(known, column.codes)), None)
            if own is None:
                own = _one_value(column.codes)
                codes.append(own)
            result[name] = Coded(own, tuple(map(sys.intern, column.values)))
        else:
            result[name] = _one_value(column)
    return result


def _one_value(values: NDArray[Any]) -> NDArray[Any]:
    """The values, or a view of one value if there are many and all are equal."""
    if len(values) < _MANY_ROWS or values[0] != values[-1] or (values != values[0]).any():
        return values
    return np.broadcast_to(values[:1].copy(), values.shape)


def _is_same(first: NDArray[np.int32], second: NDArray[np.int32]) -> bool:
    return len(first) >= _MANY_ROWS and first[-1] == second[-1] and bool((first == second).all())
