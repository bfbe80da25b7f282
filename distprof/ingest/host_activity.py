"""Ranks without device rows: whether they are CPU ranks, and the activity of those that are.

Host operators look the same in a CPU trace and in one that lost its accelerator's activity.
Counting their time as work would invent numbers if kernels ran elsewhere, so a rank counts as a CPU
only if nothing in its file points to another device.

On a CPU, operators are computation, and gloo operations are communication: host threads do the work
themselves. Gloo runs on its own threads, so a collective and an operator can run at the same time.
They still compete for the cores of the machine, so a device named ``cpu`` is labelled as such
everywhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from distprof.ingest.communication import Classifier, collective_kind
from distprof.ingest.kineto.events import DEVICE_KINDS, HOST_WORDS, PYTHON_FRAME, USUAL_CATEGORIES
from distprof.ingest.kineto.parsed import ParsedTrace
from distprof.ingest.metadata import TraceMetadata
from distprof.intervals import Intervals
from distprof.run.tables import ACTIVITY, distinct
from distprof.schema import ABSENT, Coded, Int64Array, Table
from distprof.terms import ActivityKind
from distprof.units import format_duration

WAIT_MARK = "distprof:pp_wait"  # the probes' annotation around waiting for another pipeline stage

_MODE = "PythonDispatchMode"  # Python that looks at an operator, such as torch's FlopCounterMode

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
    # Threads that execute collectives do nothing else. Their name (``pt_gloo_runloop``) does not
    # identify them, as one thread may carry two names. Messages are on threads that compute, too.
    runs = distinct(host.coded("thread").codes[executed[~message]])
    is_operator = host.coded("category").equals("cpu_op") & ~host.coded("name").equals(_MODE)
    operators = np.flatnonzero(is_operator)
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
    annotation = host.coded("category").equals("annotation")
    rows = np.flatnonzero(annotation & classifier.communication_rows(host.coded("name")))
    return rows[np.argsort(host["start_ns"][rows], kind="stable")].astype(np.int64)


def _are_messages(rows: Table) -> NDArray[np.bool_]:
    names = rows.coded("name")
    return names.where([collective_kind(n).is_point_to_point for n in names.values])


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
        mine = mine[~_touches(spans, requests[mine])]
        # outermost: no earlier one contains it
        end = host["end_ns"][mine]
        kept.append(mine[np.append([True], end[1:] > np.maximum.accumulate(end)[:-1])[: len(end)]])
    return np.concatenate([np.empty(0, np.int64), *kept]).astype(np.int64)


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
    return requests | inside | contains


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


# Signs of a device whose activity is missing ------------------------------------------------------

_KNOWN = {*USUAL_CATEGORIES, *HOST_WORDS.values(), *DEVICE_KINDS, PYTHON_FRAME, ""}
_CALLS = ("runtime", "driver", "sync")
_ON_CPU = re.compile(r"(gloo|mpi):")
_ON_ACCELERATOR = re.compile(r"(nccl|rccl|xccl|hccl|cncl|mccl|eccl):")
_CPU_BACKENDS = ("gloo", "mpi")
_MOST_NAMED = 4


class UnreadCategory(msgspec.Struct, frozen=True, kw_only=True):
    """Events of a category that distprof does not know."""

    name: str  # The category, as in the file.
    count: int  # Number of its events.
    duration_ns: int  # Sum of their durations.


def unread_categories(host: Table) -> tuple[UnreadCategory, ...]:
    """Categories of events that distprof does not know, longest total duration first."""
    categories = host.coded("category")
    length = host["end_ns"] - host["start_ns"]
    unread = []
    for code, name in enumerate(categories.values):
        rows = categories.codes == code
        if name not in _KNOWN and rows.any():
            total = int(length[rows].sum())
            unread.append(UnreadCategory(name=name, count=int(rows.sum()), duration_ns=total))
    return tuple(sorted(unread, key=lambda item: (-item.duration_ns, item.name)))


def is_known(host: Table) -> bool:
    """Whether any row has a category that torch.profiler writes."""
    return any(name and name in _KNOWN for name in host.coded("category").values)


def missing_device(parsed: ParsedTrace, host: Table, metadata: TraceMetadata) -> str:
    """Why a file without device rows is not a CPU trace, as a sentence; empty if it is one."""
    signs = []  # that only an accelerator leaves on the host
    if calls := int(host.coded("category").isin(_CALLS).sum()):
        signs.append(f"the trace holds {calls:,} calls of an accelerator's runtime")
    if _mentions(host, _ON_ACCELERATOR):
        signs.append("collectives ran on an accelerator's library")
    if not (_mentions(host, _ON_CPU) or metadata.backend in _CPU_BACKENDS):
        signs += _weaker_signs(parsed, metadata)
    signs += _unread(host)
    if not signs:
        return ""
    *others, last = signs
    evidence = f"{', '.join(others)} and {last}" if others else last
    return f"No device activity was recorded, although {evidence}. {_fix(parsed, host)}"


def _unread(host: Table) -> Iterator[str]:
    unread = unread_categories(host)
    if unread:
        named = [
            f"{item.name} ({item.count:,} event{'s' if item.count > 1 else ''}, "
            f"{format_duration(item.duration_ns)})"
            for item in unread[:_MOST_NAMED]
        ]
        more = [f"{len(unread) - _MOST_NAMED} more"] if len(unread) > _MOST_NAMED else []
        what = "events of a kind" if len(unread) == 1 else "events of kinds"
        yield f"the trace holds {what} that distprof cannot read: {', '.join([*named, *more])}"


def _weaker_signs(parsed: ParsedTrace, metadata: TraceMetadata) -> Iterator[str]:
    """Evidence that a CPU job may show as well, so CPU collectives outweigh it."""
    if metadata.device.name:
        count = f"{metadata.device.count} × " if metadata.device.count else ""
        yield f"the trace lists {count}{metadata.device.name}"
    if metadata.backend and metadata.backend not in _CPU_BACKENDS:
        yield f"the process group uses {metadata.backend}"
    if parsed.quality.truncated:
        yield "the file ends early"


def _mentions(host: Table, pattern: re.Pattern[str]) -> bool:
    names = host.coded("name")
    used = np.unique(names.codes).tolist()
    return any(pattern.match(names.values[code]) for code in used)


def _fix(parsed: ParsedTrace, host: Table) -> str:
    if parsed.quality.truncated:
        return "The profiler writes it last, so it may be in the missing part of the file."
    if unread_categories(host):
        return "Record with activities that distprof reads: kernel, gpu_memcpy and gpu_memset."
    return "Profile with the accelerator's ProfilerActivity, for example ProfilerActivity.CUDA."
