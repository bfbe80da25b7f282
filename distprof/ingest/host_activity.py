"""What a CPU-only trace executed: operators as computation, operations of gloo as communication.

Without a device the host threads do the work themselves. Gloo executes on threads of its own, so a
collective and an operator can truly run at the same time; on one machine they compete for the same
cores all the same, which is why a device of the name ``cpu`` is labelled as such everywhere.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distprof.ingest.communication import Classifier, collective_kind
from distprof.intervals import Intervals
from distprof.run.tables import ACTIVITY, distinct
from distprof.schema import ABSENT, Coded, Int64Array, Table
from distprof.terms import ActivityKind

__all__ = ["WAIT_MARK", "executed_activity", "host_activity", "with_collectives"]

WAIT_MARK = "distprof:pp_wait"
"""The probes' mark around waiting for another pipeline stage."""

_ASKS_FOR_COMMUNICATION = re.compile(
    r"^(c10d::|_c10d_functional|c10d_functional|record_param_comms|.*wait_tensor)"
)


def host_activity(host: Table, classifier: Classifier) -> Table:
    """The ACTIVITY table of a trace without device rows.

    Computation is the outermost ``cpu_op`` rows of every thread but gloo's, without operators that
    ask for communication or wait for it (``c10d::``, ``_c10d_functional::``, ``wait_tensor``), what
    those call, and operators that merely contain them (their other children count). Communication
    is the ``gloo:`` operations as executed, on their threads; a copy inside one is part of it.

    Sends and receives of gloo are annotated from posting to the end of waiting: no transfer time.
    What is known is when the thread was blocked: the probes' mark says so (``distprof:pp_wait``),
    else it is the time from the last operator before the annotation's end up to that end.

    Args:
        host: HOST table with every ``cpu_op`` row.
        classifier: Tells communication from names.

    Returns:
        Rows in order of start. ``stream`` is the index of the thread, ``device`` is absent. The
        computation rows of one thread never overlap.
    """
    executed = _executed_operations(host, classifier)
    message = _are_messages(host)[executed]
    runs = _communication_threads(host, executed[~message])
    operators = np.flatnonzero(host.coded("category").equals("cpu_op"))
    elsewhere = operators[~np.isin(host.coded("thread").codes[operators], runs)]
    parts = (
        _activity(host, _working(host, elsewhere), ActivityKind.COMPUTATION),
        _activity(host, executed[~message], ActivityKind.COMMUNICATION),
        _waiting(host, executed[message], operators),
    )
    return _in_order(*parts)


def executed_activity(host: Table, classifier: Classifier) -> Table:
    """ACTIVITY rows of all communication that a CPU backend executed, messages too.

    Args:
        host: HOST table.
        classifier: Tells communication from names.
    """
    return _activity(host, _executed_operations(host, classifier), ActivityKind.COMMUNICATION)


def with_collectives(activity: Table, executed: Table) -> Table:
    """ACTIVITY of a device with the collectives that a CPU backend executed for it.

    Sends and receives are left out: their annotations last from posting, while others compute.

    Args:
        activity: ACTIVITY table of the device.
        executed: As :func:`executed_activity` returns it.
    """
    return _in_order(activity, executed.take(~_are_messages(executed)))


def _in_order(*parts: Table) -> Table:
    joined = Table.concat(ACTIVITY, parts)
    return joined.take(np.lexsort((joined["end_ns"], joined["start_ns"])))


def _executed_operations(host: Table, classifier: Classifier) -> Int64Array:
    """Rows of ``host`` that are communication as executed by a CPU backend, in order of start."""
    rows = np.flatnonzero(
        host.coded("category").equals("annotation")
        & classifier.communication_rows(host.coded("name"))
    )
    return rows[np.argsort(host["start_ns"][rows], kind="stable")].astype(np.int64)


def _are_messages(rows: Table) -> NDArray[np.bool_]:
    """Which rows have the name of a send or receive."""
    names = rows.coded("name")
    return names.where([collective_kind(n).is_point_to_point for n in names.values])


def _communication_threads(host: Table, executed: Int64Array) -> NDArray[np.int32]:
    """Codes of the threads that only communicate: they execute collectives.

    The thread's name would say so too (``pt_gloo_runloop``), but one thread may carry two names.
    Sends and receives are annotated on the thread that posts them, which computes as well.
    """
    return distinct(host.coded("thread").codes[executed])


def _waiting(host: Table, messages: Int64Array, operators: NDArray[np.intp]) -> Table:
    """ACTIVITY rows of the times in which a thread was blocked in a send or receive."""
    marks = np.flatnonzero(
        host.coded("category").equals("annotation") & host.coded("name").equals(WAIT_MARK)
    )
    if len(marks):
        return _activity(host, marks, ActivityKind.WAITING)
    threads = host.coded("thread").codes
    start = host["start_ns"][messages].copy()
    for thread in distinct(threads[messages]).tolist():
        mine = threads[messages] == thread
        own = operators[threads[operators] == thread]
        times = np.sort(np.concatenate((host["start_ns"][own], host["end_ns"][own])))
        end = host["end_ns"][messages[mine]]
        last = np.searchsorted(times, end, side="left") - 1
        busy_until = times[np.maximum(last, 0)] if len(times) else start[mine]
        start[mine] = np.where(last >= 0, np.maximum(start[mine], busy_until), start[mine])
    return _activity(host, messages, ActivityKind.WAITING).with_columns(start_ns=start)


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
    """Operators that request communication, run inside one that does, or contain one.

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


def _activity(host: Table, rows: NDArray[np.integer[Any]], kind: ActivityKind) -> Table:
    absent = np.full(len(rows), ABSENT, dtype=np.int64)
    columns: dict[str, NDArray[np.generic] | Coded] = {
        "start_ns": host["start_ns"][rows],
        "end_ns": host["end_ns"][rows],
        "name": host.coded("name").take(rows),
        "kind": np.full(len(rows), kind, dtype=np.int8),
        "stream": host.coded("thread").codes[rows].astype(np.int64),
        "device": absent.astype(np.int32),
        "correlation": absent,
        "bytes": absent,
        "blocks": absent.astype(np.int32),
    }
    return Table(ACTIVITY, columns)
