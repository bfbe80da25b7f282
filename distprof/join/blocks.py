"""Process the rows of all ranks in blocks, so that the allocator reuses memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from distprof.run.tables import order_of_codes
from distprof.schema import Int64Array

BLOCK = 1 << 20
"""Rows per block. The allocator keeps freed arrays of this size for reuse and returns larger ones
to the system."""

_MAX_TABLE = 1 << 24
"""Numbers below this are looked up in a table."""

_INT32 = np.iinfo(np.int32)

_Value = TypeVar("_Value", bound=np.generic)


def spans(length: int, size: int | None = None) -> Iterator[slice]:
    """Slices of ``size`` elements (default: a block) that cover ``length`` elements."""
    size = size or BLOCK
    for low in range(0, length, size):
        yield slice(low, min(low + size, length))


def blocks_of(offsets: Int64Array) -> Iterator[tuple[int, int]]:
    """Ranges of segments with at most a block of elements each; a larger segment comes alone.

    ``offsets`` are where the elements of each begin, int64, shape ``(segments + 1,)``.
    """
    low, count = 0, len(offsets) - 1
    while low < count:
        high = int(np.searchsorted(offsets, offsets[low] + BLOCK, side="right")) - 1
        high = min(max(high, low + 1), count)
        yield low, high
        low = high


def index_type(count: int) -> type[np.signedinteger[Any]]:
    """The integer type for positions among ``count`` rows: int32 if it suffices, else int64."""
    return np.int32 if count <= _INT32.max else np.int64


def joined(parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """The parts concatenated; if all are views of one repeated value, so is the result."""
    some = [part for part in parts if len(part)]
    if not some:
        return parts[0] if parts else np.empty(0, np.int64)
    if all(part.strides == (0,) and part[0] == some[0][0] for part in some):
        return np.broadcast_to(some[0][:1], (sum(map(len, some)),))
    return np.concatenate(some)


def looked_up(
    known: NDArray[Any], values: NDArray[_Value], numbers: NDArray[Any]
) -> NDArray[_Value]:
    """The value of each number; ``known`` holds the distinct numbers, ascending."""
    if len(known) == 0 or known[0] < 0 or known[-1] >= _MAX_TABLE:
        return values[np.searchsorted(known, numbers)]
    table = np.zeros(int(known[-1]) + 1, values.dtype)
    table[known] = values
    found: NDArray[_Value] = table[numbers]
    return found


def positions_by_code(
    codes: NDArray[Any], chosen: NDArray[np.bool_] | None = None, lookup: Int64Array | None = None
) -> list[NDArray[Any]]:
    """Positions of each code, ascending; takes linear time and usually four bytes per position.

    Codes are small non-negative integers, replaced by those in ``lookup``; only ``chosen`` ones
    count.
    """

    def of(span: slice) -> tuple[Int64Array, NDArray[Any]]:
        index = np.arange(span.start, span.stop)
        index = index if chosen is None else index[chosen[span]]
        own = codes[index]
        return index, own if lookup is None else lookup[own]

    count = int(codes.max(initial=-1) if lookup is None else lookup.max(initial=-1)) + 1
    sizes = np.zeros(count, np.int64)
    for span in spans(len(codes)):
        sizes += np.bincount(of(span)[1], minlength=count)
    order = np.empty(int(sizes.sum()), index_type(len(codes)))
    free = np.cumsum(sizes) - sizes
    for span in spans(len(codes)):
        index, own = of(span)
        taken, place = sorted_into(free, own)
        order[place] = index[taken]
    return np.split(order, free[:-1])


def sorted_into(free: Int64Array, codes: NDArray[Any]) -> tuple[Int64Array, Int64Array]:
    """Sort one block in a counting sort: positions in the order of codes, and the place of each."""
    some = np.bincount(codes, minlength=len(free))
    place = np.arange(len(codes)) + np.repeat(free - np.cumsum(some) + some, some)
    free += some
    return order_of_codes(codes, len(free)), place
