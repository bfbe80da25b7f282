"""Which host call launched a device activity: the join by correlation id."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from distprof.schema import ABSENT, Int64Array, Table

__all__ = ["CALL_CATEGORIES", "NO_THREAD", "Launches", "join_launches"]

NO_THREAD = -1
CALL_CATEGORIES = ("runtime", "driver")


@dataclass(frozen=True, slots=True, kw_only=True)
class Launches:
    """The launch call of each activity; arrays as long as the activities.

    Args:
        known: Whether the launch is on record. The other columns hold ABSENT where it is not.
        row: Row of the call in HOST.
        start: Start of the call.
        end: End of the call.
        thread: Code of the calling thread in HOST's ``thread`` column.
    """

    known: NDArray[np.bool_]
    row: Int64Array
    start: Int64Array
    end: Int64Array
    thread: NDArray[np.int32]


def join_launches(correlation: Int64Array, host: Table) -> Launches:
    """Find each activity's launch call.

    Several calls may carry one correlation id (a runtime call and the driver call inside it): the
    earliest is the launch. Several activities may share a call, as in a graph launch. Ids of 0 and
    less join nothing: profilers write them where they know none.

    Args:
        correlation: Correlation id of each device activity.
        host: HOST table, at least its runtime and driver calls.
    """
    calls = _calls_by_correlation(host)
    ids = host["correlation"][calls]
    if len(ids) == 0:
        return _nothing_known(len(correlation))
    at = np.searchsorted(ids, correlation, side="left")
    hit = np.minimum(at, len(ids) - 1)
    known = (correlation > 0) & (ids[hit] == correlation)
    row = np.where(known, calls[hit], ABSENT)
    return Launches(
        known=known,
        row=row,
        start=np.where(known, host["start_ns"][row], ABSENT),
        end=np.where(known, host["end_ns"][row], ABSENT),
        thread=np.where(known, host.coded("thread").codes[row], NO_THREAD).astype(np.int32),
    )


def _calls_by_correlation(host: Table) -> Int64Array:
    """Rows of HOST that are calls with an id, in order of id, then start."""
    is_call = host.coded("category").isin(CALL_CATEGORIES)
    rows = np.flatnonzero(is_call & (host["correlation"] > 0))
    ids = host["correlation"][rows]
    if len(ids) > 1 and not (ids[1:] > ids[:-1]).all():
        rows = rows[np.lexsort((host["start_ns"][rows], ids))]
    return rows


def _nothing_known(size: int) -> Launches:
    absent = np.full(size, ABSENT, dtype=np.int64)
    return Launches(
        known=np.zeros(size, dtype=np.bool_),
        row=absent,
        start=absent,
        end=absent,
        thread=np.full(size, NO_THREAD, dtype=np.int32),
    )
