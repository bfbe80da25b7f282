"""Columns that grow while a file is read, and are never in memory twice.

Joining parts at the end would need memory for both: the parts free their memory, but in pieces that
are smaller than any column. So long columns are written into memory maps, which grow in place.
"""

from __future__ import annotations

import mmap
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distprof.schema import Column, TableSchema

Columns = dict[str, NDArray[Any]]

_ROWS_AT_ONCE = 1 << 15
"""Rows that are collected before they are written; shorter tables use no map."""

_CAN_REMAP = sys.platform == "linux"


class GrowingColumns:
    """The columns of one table, part by part; categories are int32 codes."""

    def __init__(self, schema: TableSchema) -> None:
        self._schema = schema
        self._waiting: list[Columns] = []
        self._num_waiting = 0
        self._maps: dict[str, _Growing] = {}

    def append(self, part: Columns) -> None:
        """Add rows; from now on, the part belongs to the table."""
        self._waiting.append(part)
        self._num_waiting += len(part["start_ns"])
        if self._num_waiting >= _ROWS_AT_ONCE:
            self._write()

    def columns(self) -> Columns:
        """All rows. Call this once; the arrays may be written to."""
        if not self._maps:
            return joined(self._schema, self._waiting)
        if self._num_waiting:
            self._write()
        maps, self._maps = self._maps, {}
        return {name: values.array() for name, values in maps.items()}

    def _write(self) -> None:
        if not self._maps:
            self._maps = {column.name: _Growing(_dtype(column)) for column in self._schema}
        for name, values in self._maps.items():
            values.extend([part.pop(name) for part in self._waiting], self._num_waiting)
        self._waiting, self._num_waiting = [], 0


def joined(schema: TableSchema, parts: Sequence[Columns]) -> Columns:
    """Concatenate the parts, and free them column by column because they are large."""
    return {
        column.name: np.concatenate(
            [np.empty(0, _dtype(column)), *(part.pop(column.name) for part in parts)]
        )
        for column in schema
    }


def _dtype(column: Column) -> np.dtype[Any]:
    return np.dtype(np.int32 if column.dtype == "category" else column.dtype)


class _Growing:
    """One column in an anonymous memory map; its unused part takes no memory."""

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self._dtype = dtype
        self._rows = 0
        self._map = _anonymous(2 * _ROWS_AT_ONCE * dtype.itemsize)

    def extend(self, parts: Sequence[NDArray[Any]], count: int) -> None:
        size = self._dtype.itemsize
        rows = self._rows + count
        if rows * size > len(self._map):
            self._map = _resized(self._map, 2 * rows * size)
        room = np.frombuffer(self._map, self._dtype, count, self._rows * size)
        np.concatenate(parts, out=room)
        self._rows = rows

    def array(self) -> NDArray[Any]:
        """The values, which keep the map alive."""
        return np.frombuffer(self._map, self._dtype, self._rows)


def _anonymous(size: int) -> mmap.mmap:
    """A private map, because a shared one could not grow."""
    return (
        mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if _CAN_REMAP
        else mmap.mmap(-1, size)
    )


def _resized(old: mmap.mmap, size: int) -> mmap.mmap:
    if _CAN_REMAP:
        old.resize(size)
        return old
    new = _anonymous(size)
    with memoryview(old) as content:
        new[: len(old)] = content
    return new
