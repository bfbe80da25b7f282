"""Columns that records are collected in, one table's worth."""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distprof.schema import ABSENT, Coded, Column, Table, TableSchema

__all__ = ["MAX_NAME", "Columns"]

MAX_NAME = 200
"""Longer names are cut: nobody reads them, and a table of them could fill the memory."""

_MAX_NAMES = 100_000
_LARGEST = 1 << 62  # sums of two still fit int64


class Columns:
    """Collects rows of a table as compact arrays.

    Args:
        schema: Of the table.
    """

    def __init__(self, schema: TableSchema) -> None:
        self._schema = schema
        self._values: list[Any] = [array("d" if c.dtype == "float64" else "q") for c in schema]
        self._names: list[dict[str, int]] = [{} for _ in schema]

    def __len__(self) -> int:
        return len(self._values[0])

    def add(self, *values: Any) -> None:
        """Add a row, all of it or nothing; None where a value is not known.

        Raises:
            ValueError: If a value is negative or missing where it must not be, or too large.
        """
        row = [
            self._stored(i, column, value)
            for i, (column, value) in enumerate(zip(self._schema, values, strict=True))
        ]
        for column_values, value in zip(self._values, row, strict=True):
            column_values.append(value)

    def table(self) -> Table:
        """The rows so far."""
        return Table(
            self._schema,
            {column.name: self._column(i, column) for i, column in enumerate(self._schema)},
        )

    def _stored(self, index: int, column: Column, value: Any) -> float | int:
        if column.dtype == "category":
            return self._code(index, value or "")
        if column.dtype == "float64":
            return float("nan") if value is None else float(value)
        if value is None and column.nullable:
            return ABSENT
        if value is None or not 0 <= value < _LARGEST:
            raise ValueError(f"{column.name} is {value}")
        return int(value)

    def _code(self, index: int, name: str) -> int:
        names = self._names[index]
        if len(names) >= _MAX_NAMES and name not in names:
            raise ValueError(f"more than {_MAX_NAMES} names")
        return names.setdefault(name[:MAX_NAME], len(names))

    def _column(self, index: int, column: Column) -> NDArray[Any] | Coded:
        values = np.array(self._values[index])
        if column.dtype == "category":
            return Coded(values.astype(np.int32), tuple(self._names[index]))
        return values.astype(np.dtype(column.dtype))
