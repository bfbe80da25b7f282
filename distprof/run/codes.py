"""Small codes for integers of many rows, without sorting the rows."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from distprof.schema import Int64Array

__all__ = ["distinct", "encode", "order_of_codes"]

Number = TypeVar("Number", bound=np.integer[Any])

_SMALL_TABLE = 1 << 10
_MAX_TABLE = 1 << 24  # entries of a table that is looked up instead of sorting


def distinct(values: NDArray[Number]) -> NDArray[Number]:
    """Distinct integers, ascending.

    As ``np.unique(values)``, which imports ``numpy.ma`` when it is first called: a tenth of the
    start of a process.
    """
    if len(values) == 0:
        return values
    if values.min() >= 0 and values.max() < 8 * len(values) + _SMALL_TABLE:
        used = np.zeros(int(values.max()) + 1, np.bool_)
        used[values] = True
        return np.flatnonzero(used).astype(values.dtype)
    ordered = np.sort(values)
    result: NDArray[Number] = ordered[np.append(True, ordered[1:] != ordered[:-1])]
    return result


def encode(values: NDArray[Any]) -> tuple[Int64Array, Int64Array]:
    """Distinct values, ascending, and for each row which of them it has.

    As ``np.unique(values, return_inverse=True)``, in linear time where values are small and not
    negative, as ranks, groups and pairs of them are.
    """
    if len(values) == 0 or values.min() < 0 or values.max() >= _MAX_TABLE:
        distinct, code = np.unique(values, return_inverse=True)
        return distinct.astype(np.int64), code.astype(np.int64)
    used = np.zeros(int(values.max()) + 1, np.bool_)
    used[values] = True
    table = np.cumsum(used, dtype=np.int64) - 1
    return np.flatnonzero(used).astype(np.int64), table[values]


def order_of_codes(codes: Int64Array, count: int) -> Int64Array:
    """Rows sorted by their code, stably.

    Args:
        codes: int64, 0 to ``count - 1``.
        count: How many there are; up to 65,536, sorting takes linear time.
    """
    small = codes.astype(np.uint16) if count <= 1 << 16 else codes
    order: Int64Array = np.argsort(small, kind="stable")
    return order
