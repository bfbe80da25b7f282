"""What a CPU-only trace executed: operators as computation, operations of gloo as communication.

Without a device the host threads do the work themselves. Gloo executes on threads of its own, so a
collective and an operator can truly run at the same time; on one machine they compete for the same
cores all the same, which is why a device of the name ``cpu`` is labelled as such everywhere.
"""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from distprof.ingest.communication import Classifier, collective_kind
from distprof.intervals import Intervals
from distprof.run.codes import distinct
from distprof.run.tables import ACTIVITY
from distprof.schema import ABSENT, Coded, Int64Array, Table
from distprof.terms import ActivityKind

__all__ = ["host_activity"]

_ASKS_FOR_COMMUNICATION = re.compile(
    r"^(c10d::|_c10d_functional|c10d_functional|record_param_comms|.*wait_tensor)"
)


def host_activity(host: Table, classifier: Classifier) -> Table:
    """The ACTIVITY table of a trace without device rows.

    Computation is the outermost ``cpu_op`` rows of every thread but gloo's, without operators that
    ask for communication or wait for it (``c10d::``, ``_c10d_functional::``, ``wait_tensor``), what
    those call, and operators that merely contain them (their other children count). Communication
    is the ``gloo:`` operations as executed, on their threads; a copy inside one is part of it.

    Args:
        host: HOST table with every ``cpu_op`` row.
        classifier: Tells communication from names.

    Returns:
        Rows in order of start. ``stream`` is the index of the thread, ``device`` is absent. The
        computation rows of one thread never overlap.
    """
    executed = executed_operations(host, classifier)
    runs = _communication_threads(host, executed)
    operators = host.coded("category").equals("cpu_op") & ~np.isin(host.coded("thread").codes, runs)
    working = _working(host, np.flatnonzero(operators))
    rows = np.concatenate((working, executed))
    kind = np.full(len(rows), ActivityKind.COMPUTATION, dtype=np.int8)
    kind[len(working) :] = ActivityKind.COMMUNICATION
    order = np.lexsort((host["end_ns"][rows], host["start_ns"][rows]))
    return _activity(host, rows[order], kind[order])


def executed_operations(host: Table, classifier: Classifier) -> Int64Array:
    """Rows of ``host`` that are communication as executed by a CPU backend, in order of start."""
    rows = np.flatnonzero(
        host.coded("category").equals("annotation")
        & classifier.communication_rows(host.coded("name"))
    )
    return rows[np.argsort(host["start_ns"][rows], kind="stable")].astype(np.int64)


def _communication_threads(host: Table, executed: Int64Array) -> NDArray[np.int32]:
    """Codes of the threads that only communicate: they execute collectives.

    The thread's name would say so too (``pt_gloo_runloop``), but one thread may carry two names.
    Sends and receives are annotated on the thread that posts them, which computes as well.
    """
    names, threads = host.coded("name"), host.coded("thread")
    collective = names.where([not collective_kind(n).is_point_to_point for n in names.values])
    codes: NDArray[np.int32] = distinct(threads.codes[executed[collective[executed]]])
    return codes


def _working(host: Table, rows: NDArray[np.intp]) -> Int64Array:
    """Those of the operators ``rows`` that compute, outermost ones only."""
    names = host.coded("name")
    asks = names.where([bool(_ASKS_FOR_COMMUNICATION.match(value)) for value in names.values])
    threads = host.coded("thread").codes
    kept: list[NDArray[np.intp]] = []
    for thread in distinct(threads[rows]):
        mine = rows[threads[rows] == thread]
        mine = mine[np.lexsort((-host["end_ns"][mine], host["start_ns"][mine]))]
        spans = Intervals(host["start_ns"][mine], host["end_ns"][mine])
        working = ~_touches(spans, asks[mine])
        mine = mine[working]
        kept.append(mine[_outermost(host["end_ns"][mine])])
    if not kept:
        return np.empty(0, dtype=np.int64)
    return np.concatenate(kept).astype(np.int64)


def _touches(spans: Intervals, asks: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Operators that ask for communication, lie inside one that does, or contain one.

    Args:
        spans: Operators of one thread, properly nested, by start, the longer first.
        asks: Which of them ask for communication.
    """
    start, end = spans
    wanted = np.flatnonzero(asks)
    if len(wanted) == 0:
        return asks
    begin = start[wanted]
    reach = np.maximum.accumulate(end[wanted])
    before = np.searchsorted(begin, start, side="right")
    inside = (before > 0) & (end <= reach[np.maximum(before - 1, 0)])
    contains = np.searchsorted(begin, end, side="left") > np.searchsorted(begin, start, side="left")
    result: NDArray[np.bool_] = asks | inside | contains
    return result


def _outermost(end: Int64Array) -> NDArray[np.bool_]:
    """Mask of the operators that no earlier one contains; by start, the longer first."""
    mask = np.ones(len(end), dtype=np.bool_)
    if len(end) > 1:
        np.greater(end[1:], np.maximum.accumulate(end)[:-1], out=mask[1:])
    return mask


def _activity(host: Table, rows: Int64Array, kind: NDArray[np.int8]) -> Table:
    absent = np.full(len(rows), ABSENT, dtype=np.int64)
    columns: dict[str, NDArray[np.generic] | Coded] = {
        "start_ns": host["start_ns"][rows],
        "end_ns": host["end_ns"][rows],
        "name": host.coded("name").take(rows),
        "kind": kind,
        "stream": host.coded("thread").codes[rows].astype(np.int64),
        "device": absent.astype(np.int32),
        "correlation": absent,
        "bytes": absent,
    }
    return Table(ACTIVITY, columns)
