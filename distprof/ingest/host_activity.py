"""Activity of a CPU-only trace: operators are computation, gloo operations are communication.

Without an accelerator, host threads do the work themselves. Gloo runs on its own threads, so a
collective and an operator can run at the same time. They still compete for the cores of the
machine, so a device named ``cpu`` is labelled as such everywhere.
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

WAIT_MARK = "distprof:pp_wait"
"""The probes' annotation around waiting for another pipeline stage."""

_REQUESTS_COMMUNICATION = re.compile(
    r"^(c10d::|_c10d_functional|c10d_functional|record_param_comms|.*wait_tensor)"
)


def host_activity(host: Table, classifier: Classifier) -> Table:
    """The ACTIVITY table of a trace without device rows, from HOST with every ``cpu_op`` row.

    Computation is the outermost ``cpu_op`` rows of every thread except gloo's. It excludes
    operators that request communication or wait for it (``c10d::``, ``_c10d_functional::``,
    ``wait_tensor``), the operators that these call, and operators that merely contain them, whose
    other children count. Communication is the ``gloo:`` operations as executed, on their threads,
    including copies inside them.

    Gloo annotates sends and receives from posting to the end of the wait, which is not their
    transfer time. Only the time in which the thread was blocked is known. The probes mark it
    (``distprof:pp_wait``). Without their marks, it is the time from the last operator before the
    annotation's end to that end.

    Rows are in order of start. ``stream`` is the index of the thread and ``device`` is absent. The
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
    """ACTIVITY rows of all communication that a CPU backend executed, including messages."""
    return _activity(host, _executed_operations(host, classifier), ActivityKind.COMMUNICATION)


def with_collectives(activity: Table, executed: Table) -> Table:
    """ACTIVITY of a device, plus the collectives that a CPU backend executed for it.

    Sends and receives are left out: their annotations begin at posting and cover computation.
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
    """Codes of the threads that execute collectives and therefore do nothing but communicate.

    Their name (``pt_gloo_runloop``) does not identify them, because one thread may carry two names.
    Sends and receives are annotated on the thread that posts them, which also computes.
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
    """The operators among ``rows`` that compute, outermost ones only."""
    names = host.coded("name")
    requests = names.where([bool(_REQUESTS_COMMUNICATION.match(value)) for value in names.values])
    threads = host.coded("thread").codes
    kept: list[NDArray[np.intp]] = []
    for thread in distinct(threads[rows]):
        mine = rows[threads[rows] == thread]
        mine = mine[np.lexsort((-host["end_ns"][mine], host["start_ns"][mine]))]
        spans = Intervals(host["start_ns"][mine], host["end_ns"][mine])
        working = ~_touches(spans, requests[mine])
        mine = mine[working]
        kept.append(mine[_outermost(host["end_ns"][mine])])
    if not kept:
        return np.empty(0, dtype=np.int64)
    return np.concatenate(kept).astype(np.int64)


def _touches(spans: Intervals, requests: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Operators that request communication, run inside one that does, or contain one."""
    start, end = spans
    wanted = np.flatnonzero(requests)
    if len(wanted) == 0:
        return requests
    begin = start[wanted]
    reach = np.maximum.accumulate(end[wanted])
    before = np.searchsorted(begin, start, side="right")
    inside = (before > 0) & (end <= reach[np.maximum(before - 1, 0)])
    contains = np.searchsorted(begin, end, side="left") > np.searchsorted(begin, start, side="left")
    result: NDArray[np.bool_] = requests | inside | contains
    return result


def _outermost(end: Int64Array) -> NDArray[np.bool_]:
    """Mask of the operators that no earlier one contains; sorted by start, longer ones first."""
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
