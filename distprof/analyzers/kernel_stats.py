"""Statistics of one rank's kernels by name."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from distprof.analyzers.context import KernelStats
from distprof.schema import Int64Array, Table
from distprof.terms import ActivityKind

__all__ = ["kernel_stats"]

_NUM_KINDS = len(ActivityKind)


def kernel_stats(activity: Table, inside: NDArray[np.bool_]) -> tuple[KernelStats, ...]:
    """Count, total and median duration of each kernel, copy or operator name, longest first.

    Args:
        activity: ACTIVITY table.
        inside: Mask of the rows to count; annotations are left out whatever it says.
    """
    rows = np.flatnonzero(inside & (activity["kind"] != ActivityKind.ANNOTATION))
    names = activity.coded("name")
    key = names.codes[rows].astype(np.int64) * _NUM_KINDS + activity["kind"][rows]
    duration = (activity["end_ns"] - activity["start_ns"])[rows]
    key, duration = _sort_pairs(key, duration)
    first = np.flatnonzero(np.diff(key, prepend=-1))
    count = np.diff(np.append(first, len(key)))
    total = np.add.reduceat(duration, first) if len(first) else duration
    median = (duration[first + (count - 1) // 2] + duration[first + count // 2]) // 2
    order = np.lexsort((key[first], -total))
    columns = (column[order].tolist() for column in (key[first], count, total, median))
    return tuple(
        KernelStats(
            name=names.values[pair // _NUM_KINDS],
            kind=pair % _NUM_KINDS,
            count=times,
            total_ns=total_ns,
            median_ns=median_ns,
        )
        for pair, times, total_ns, median_ns in zip(*columns, strict=True)
    )


def _sort_pairs(key: Int64Array, value: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Both arrays in order of key, then value; as one sort of packed numbers where they fit."""
    if len(key) == 0:
        return key, value
    base = int(value.max()) + 1
    if (int(key.max()) + 1) * base >= 2**63:
        order = np.lexsort((value, key))
        return key[order], value[order]
    packed = np.sort(key * base + value)
    return packed // base, packed % base
