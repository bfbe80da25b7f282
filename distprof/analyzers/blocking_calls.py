"""Host calls that waited for the device: which names, and which rows."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from distprof.run.codes import distinct
from distprof.run.launches import Launches
from distprof.run.tables import RankTables, intervals_of
from distprof.schema import Int64Array, Table

__all__ = ["BLOCKING_CALLS", "COPY_CALLS", "blocking_calls", "rows_by_thread"]

BLOCKING_CALLS = frozenset(
    f"{prefix}{call}"
    for prefix in ("cuda", "hip")
    for call in (
        "StreamSynchronize",
        "DeviceSynchronize",
        "EventSynchronize",
        "Memcpy",
        "Memcpy2D",
        "MemcpyToSymbol",
        "MemcpyFromSymbol",
        "Memset",
        "Free",
    )
) | {"cuStreamSynchronize", "cuCtxSynchronize", "cuEventSynchronize", "cuMemFree_v2"}
"""Runtime and driver calls that return when the device has caught up."""

COPY_CALLS = frozenset(
    ("cudaMemcpyAsync", "hipMemcpyAsync", "hipMemcpyWithStream", "cudaMemcpy2DAsync")
)
"""Copies that block in some uses (pageable memory); judged by whether they returned after it."""

BLOCKING_COPY_NS = 20_000  # a copy that is really asynchronous returns sooner


def blocking_calls(tables: RankTables, launches: Launches) -> Table:
    """Host rows of calls that waited for the device, in order of thread and time, none nested."""
    host = tables.host
    names = host.coded("name")
    blocks = names.where([name in BLOCKING_CALLS for name in names.values])
    copies = names.where([name in COPY_CALLS for name in names.values])
    blocks |= _waited_for_copy(tables, launches, copies)
    rows = np.flatnonzero(blocks)
    thread = host.coded("thread").codes[rows]
    rows = rows[np.lexsort((-host["end_ns"][rows], host["start_ns"][rows], thread))]
    return host.take(rows[_outermost(host.take(rows))])


def _waited_for_copy(
    tables: RankTables, launches: Launches, copies: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Mask over host rows: an asynchronous copy call that outlasted its copy, and was not short."""
    host, activity = tables.host, tables.activity
    result = np.zeros(len(host), dtype=np.bool_)
    own = np.flatnonzero(launches.known)
    call = launches.row[own]
    long_enough = host["end_ns"][call] - host["start_ns"][call] >= BLOCKING_COPY_NS
    outlasted = host["end_ns"][call] >= activity["end_ns"][own]
    result[call[long_enough & outlasted]] = True
    return result & copies


def _outermost(calls: Table) -> NDArray[np.bool_]:
    """Mask of the rows that lie in no earlier row of the same thread; rows sorted by start."""
    start, end = intervals_of(calls)
    keep = np.ones(len(calls), dtype=np.bool_)
    for _, rows in rows_by_thread(calls):
        reach = np.maximum.accumulate(end[rows])
        keep[rows[1:]] = start[rows[1:]] >= reach[:-1]
    return keep


def rows_by_thread(rows: Table) -> Iterator[tuple[int, Int64Array]]:
    """For each thread, its code and the positions of its rows."""
    codes = rows.coded("thread").codes
    for code in distinct(codes).tolist():
        yield code, np.flatnonzero(codes == code)
