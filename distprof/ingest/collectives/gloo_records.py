"""Collective records of CPU backends: requests joined with their execution.

The ``c10d::`` operator gives the kind of a collective and the time of the request. The ``gloo:``
annotation, on one of gloo's threads, gives the time of execution. No id in the trace connects the
two, so they are paired in order among operations of the same kind as executed and the same size,
and of the same process group if the Flight Recorder names it. Gloo has no reduce-scatter and
executes an all-reduce instead, so the kind comes from the operator.

The annotation of a send or receive lasts from posting it until waiting for it, on the thread that
does both, so it is not a transfer time. The record has the time of posting.
"""

from __future__ import annotations

import msgspec
import numpy as np
from msgspec.structs import asdict, replace
from numpy.typing import NDArray

from distprof.ingest.collectives import CallFacts, Membership, call_facts, peer_in_group
from distprof.ingest.collectives.device_records import Records, notes_on, records_table, same_event
from distprof.ingest.communication import Classifier
from distprof.ingest.flight.recorder import FlightEntries
from distprof.run.tables import distinct
from distprof.schema import ABSENT, Coded, Int64Array, Table
from distprof.terms import CollectiveKind, Origin

TOLERANCE_NS = 20_000  # timestamps of trace and recorder agree within 8 µs (torch 2.13, gloo)
_CLEAR = 2.0  # least ratio of the delay after another group's requests to that after its own
_MIN_RUNS = 4  # fewer may follow another group's requests by chance
_MOSTLY = 0.5  # least requests per execution: the first may be requested before the capture


class _Side(msgspec.Struct, frozen=True, kw_only=True):
    """Operations on one side of the pairing: requests in order of start, or executions."""

    rows: Int64Array  # int64, rows of COMM_ARGS, or of the executed operations.
    kind: NDArray[np.int8]  # int8, a CollectiveKind as executed.
    elements: Int64Array  # int64, elements of the input, ABSENT if unknown.
    group: NDArray[np.int32]  # int32, code of its name in COMM_ARGS, ABSENT if unknown.

    def take(self, chosen: NDArray[np.bool_]) -> _Side:
        """The chosen operations."""
        return _Side(**{name: values[chosen] for name, values in asdict(self).items()})


def groups_of_threads(
    run_key: Int64Array,
    run_thread: NDArray[np.int32],
    run_start: Int64Array,
    ask_key: Int64Array,
    ask_group: NDArray[np.int32],
    ask_start: Int64Array,
) -> NDArray[np.int32]:
    """The group of each executed operation, from its thread; ABSENT if unclear.

    A key is a kind and size; that of an executed operation is negative if it is no evidence.
    Requests are in order of start, with ABSENT for an unknown group. Starts are in ns.
    """
    known = (ask_group != ABSENT) & (ask_key >= 0)
    requests = _Requests(key=ask_key[known], group=ask_group[known], start=ask_start[known])
    open_threads = {
        thread: (run_thread == thread) & (run_key >= 0) for thread in distinct(run_thread).tolist()
    }
    group_of: dict[int, int] = {}
    for by_delay in (False, True):
        settled = True
        while settled:  # a settled thread uses up requests, which may settle other threads
            settled = False
            for thread, runs in list(open_threads.items()):
                group = _group_of(run_key[runs], run_start[runs], requests, by_delay=by_delay)
                if group is not None:
                    group_of[thread] = group
                    requests = requests.without(group, run_key[runs])
                    del open_threads[thread]
                    settled = True
    result = np.full(len(run_key), ABSENT, dtype=np.int32)
    for thread, group in group_of.items():
        result[run_thread == thread] = group
    return result


class _Requests(msgspec.Struct, frozen=True, kw_only=True):
    """Requests of known group, kind and size, in order of start."""

    key: Int64Array
    group: NDArray[np.int32]
    start: Int64Array

    def without(self, group: int, runs: Int64Array) -> _Requests:
        keep = np.ones(len(self.key), dtype=np.bool_)
        for value, count in zip(*np.unique(runs, return_counts=True), strict=True):
            used = np.flatnonzero((self.key == value) & (self.group == group))[:count]
            keep[used] = False
        return _Requests(**{name: values[keep] for name, values in asdict(self).items()})

    def candidates(self, runs: Int64Array) -> list[int]:
        """Groups with enough requests of each kind and size; empty without evidence."""
        kept: set[int] | None = None
        for value, count in zip(*np.unique(runs, return_counts=True), strict=True):
            groups, num_requests = np.unique(self.group[self.key == value], return_counts=True)
            enough = set(groups[num_requests >= _MOSTLY * count].tolist())
            if len(groups):
                kept = enough if kept is None else kept & enough
        return sorted(kept or ())


def _group_of(
    runs: Int64Array, starts: Int64Array, requests: _Requests, *, by_delay: bool
) -> int | None:
    """The only group that can have requested the operations, or by far the latest one to do so."""
    found = requests.candidates(runs)
    if len(found) == 1:
        return found[0]
    if not found or not by_delay or len(runs) < _MIN_RUNS:
        return None
    delays = sorted((_delay(runs, starts, requests, group), group) for group in found)
    return delays[0][1] if delays[0][0] * _CLEAR < delays[1][0] else None


def _delay(runs: Int64Array, starts: Int64Array, requests: _Requests, group: int) -> float:
    """Median time since the group's latest request of the same kind and size, in ns."""
    delays = []
    for value in distinct(runs).tolist():
        requested = requests.start[(requests.key == value) & (requests.group == group)]
        ran = starts[runs == value]
        at = np.searchsorted(requested, ran, side="right") - 1
        delays.append(ran[at >= 0] - requested[at[at >= 0]])
    joined = np.concatenate(delays)
    return float(np.median(joined)) if len(joined) else np.inf


def _entry_of(comm_args: Table, requested: _Side, flight: FlightEntries) -> Int64Array:
    """The entry of each operator; ABSENT without one."""
    result = np.full(len(requested.rows), ABSENT, dtype=np.int64)
    if len(requested.rows) == 0 or len(flight) == 0:
        return result
    start = comm_args["start_ns"][requested.rows]
    end = comm_args["end_ns"][requested.rows]
    window = np.searchsorted(flight.time_ns, (start[0] - TOLERANCE_NS, end.max() + TOLERANCE_NS))
    inside = np.arange(window[0], window[1])
    operators = np.arange(len(start))
    if len(inside) == len(start) and _fits(flight, inside, requested, operators, start, end).all():
        return inside  # one entry for each operator, in the same order
    for tolerance, back in ((0, 0), (TOLERANCE_NS, 0), (TOLERANCE_NS, 1), (TOLERANCE_NS, 2)):
        free = inside[~np.isin(inside, result)]
        at = np.searchsorted(start, flight.time_ns[free] + tolerance, side="right") - 1 - back
        free, at = free[at >= 0], at[at >= 0]
        fits = _fits(flight, free, requested, at, start, end, tolerance) & (result[at] == ABSENT)
        result[at[fits][::-1]] = free[fits][::-1]  # the last assignment is the first entry
    return result


def _fits(
    flight: FlightEntries,
    entries: Int64Array,
    requested: _Side,
    operators: Int64Array,
    start: Int64Array,
    end: Int64Array,
    tolerance: int = TOLERANCE_NS,
) -> NDArray[np.bool_]:
    """Whether each entry may belong to its operator, as time, kind and size agree."""
    time, elements = flight.time_ns[entries], flight.elements[entries]
    fits = (time >= start[operators] - tolerance) & (time <= end[operators] + tolerance)
    fits &= flight.kind[entries] == requested.kind[operators]
    asked = requested.elements[operators]
    same: NDArray[np.bool_] = fits & ((elements == asked) | (elements < 0) | (asked < 0))
    return same


def _overlaid(column: Coded, rows: Int64Array, replacement: Coded) -> Coded:
    """The column with other values in the given rows."""
    codes = column.codes.copy()
    codes[rows] = replacement.codes + len(column.values)
    return Coded.merged(codes, (*column.values, *replacement.values))


# Requests joined with their execution -------------------------------------------------------------

# These are not executed as one operation: the list form of reduce-scatter runs one all-reduce per
# member, and the monitored barrier consists of sends and receives.
_RUNS_IN_PARTS = ("c10d::reduce_scatter_", "c10d::monitored_barrier_")
_MAX_GROUPS = 1 << 16  # the product with the largest key fits into int64
_MESSAGES = (CollectiveKind.SEND, CollectiveKind.RECV)


def gloo_records(
    executed: Table,
    comm_args: Table,
    membership: Membership,
    classifier: Classifier,
    flight: FlightEntries | None = None,
) -> Records:
    """Records of the communication that a CPU backend executed.

    ``executed`` comes from :func:`distprof.ingest.host_activity.executed_activity`, ``comm_args``
    has the ``c10d::`` and ``gloo:`` events, and ``flight`` is None without the Flight Recorder.
    """
    facts = call_facts(comm_args)
    names = comm_args.coded("name")
    rows = np.flatnonzero(names.where([not n.startswith("c10d::") for n in names.values]))
    own = same_event(executed, comm_args, rows, ("start_ns", "end_ns"))
    notes: tuple[str, ...] = ()
    if flight is not None and len(flight):
        comm_args, notes = _with_flight(comm_args, facts, flight)
    requested = _pair(own, comm_args, facts)
    enqueue = np.full(len(executed), ABSENT, dtype=np.int64)
    enqueue[requested != ABSENT] = comm_args["start_ns"][requested[requested != ABSENT]]
    records = records_table(
        executed=executed,
        enqueue_ns=enqueue,
        comm_args=comm_args,
        layers=(requested, own),
        name_kinds=classifier.kinds(executed.coded("name")),
        membership=membership,
    )
    table = _with_peers(records.table, requested, comm_args, membership)
    # messages have the time of posting, as the time of sending is unknown
    message = np.isin(table["kind"], _MESSAGES)
    end = np.where(message, table["start_ns"], table["end_ns"])
    posted = table.with_columns(end_ns=end, is_timed=~message)
    return Records(table=posted, notes=(*notes_on(table, membership), *notes))


def _with_flight(
    comm_args: Table, facts: CallFacts, flight: FlightEntries
) -> tuple[Table, tuple[str, ...]]:
    """COMM_ARGS with groups and sequence numbers from the recorder, and a note on their number."""
    requested = _requested(comm_args, facts)
    requested = requested.take(~np.isin(requested.kind, _MESSAGES))
    if not len(requested.rows):
        return comm_args, ()
    entry = _entry_of(comm_args, requested, flight)
    found = entry != ABSENT
    rows, entries = requested.rows[found], entry[found]
    if len(rows):
        seq = comm_args["seq"].copy()
        seq[rows] = flight.seq[entries]
        names, descriptions = flight.group.take(entries), flight.description.take(entries)
        comm_args = comm_args.with_columns(
            seq=seq,
            group=_overlaid(comm_args.coded("group"), rows, names),
            group_desc=_overlaid(comm_args.coded("group_desc"), rows, descriptions),
        )
    share = f"{len(rows)} of {len(requested.rows)}"
    origin = "collectives come from the Flight Recorder"
    return comm_args, (f"Process group and sequence number of {share} {origin}.",)


def _pair(own: Int64Array, comm_args: Table, facts: CallFacts) -> Int64Array:
    """Row of ``comm_args`` that requested each executed operation, ABSENT without one."""
    result = np.full(len(own), ABSENT, dtype=np.int64)
    known = np.flatnonzero(own != ABSENT)
    requested = _requested(comm_args, facts)
    executed = _Side(
        rows=known,
        kind=facts.kind[own[known]],
        elements=facts.in_elements[own[known]],
        group=np.full(len(known), ABSENT, dtype=np.int32),
    )
    runs, starts = own[executed.rows], comm_args["start_ns"]
    message = np.isin(executed.kind, _MESSAGES)
    groups = groups_of_threads(
        run_key=np.where(message, ABSENT, _keys(executed, sized=True)),
        run_thread=comm_args.coded("thread").codes[runs],
        run_start=starts[runs],
        ask_key=_keys(requested, sized=True),
        ask_group=requested.group,
        ask_start=starts[requested.rows],
    )
    executed = replace(executed, group=groups)
    # operations of known group and size first, then the rest with less and less evidence
    for by_group, sized in ((True, True), (False, True), (False, False)):
        run_key, ask_key = _keys(executed, sized=sized), _keys(requested, sized=sized)
        free_run = result[executed.rows] == ABSENT
        free_ask = ~np.isin(requested.rows, result)
        if by_group:
            run_key = _in_group(run_key, executed.group)
            ask_key = _in_group(ask_key, requested.group)
        for key in distinct(run_key[free_run & (run_key >= 0)]):
            runs = executed.rows[free_run & (run_key == key)]
            requests = requested.rows[free_ask & (ask_key == key)]
            count, skip = _alignment(starts[own[runs]], starts[requests])
            result[runs[skip : skip + count]] = requests[:count]
    return result


def _requested(comm_args: Table, facts: CallFacts) -> _Side:
    """The ``c10d::`` operators, in order of start."""
    names = comm_args.coded("name")
    wanted = names.where([n.startswith("c10d::") and n not in _RUNS_IN_PARTS for n in names.values])
    rows = np.flatnonzero(wanted & (facts.kind != CollectiveKind.UNKNOWN)).astype(np.int64)
    rows = rows[np.lexsort((-comm_args["end_ns"][rows], comm_args["start_ns"][rows]))]
    # a dispatch mode passes a call on, and the inner operator is the call that reaches the group
    name, thread = names.codes[rows], comm_args.coded("thread").codes[rows]
    end = comm_args["end_ns"][rows]
    again = (np.diff(name) == 0) & (np.diff(thread) == 0) & (np.diff(end) <= 0)
    rows = rows[~np.append(again, np.zeros(min(len(rows), 1), np.bool_))]
    kind = facts.kind[rows].copy()
    kind[kind == CollectiveKind.REDUCE_SCATTER] = CollectiveKind.ALL_REDUCE  # as gloo runs it
    names = comm_args.coded("group")
    has_group = names.where([bool(name) for name in names.values])[rows]
    group = np.where(has_group, names.codes[rows], ABSENT).astype(np.int32)
    return _Side(rows=rows, kind=kind, elements=facts.in_elements[rows], group=group)


def _in_group(key: Int64Array, group: NDArray[np.int32]) -> Int64Array:
    """Keys that also differ between groups, negative if the group is unknown."""
    known = (key >= 0) & (group != ABSENT) & (group < _MAX_GROUPS)
    return np.where(known, key * _MAX_GROUPS + group, ABSENT)


def _keys(side: _Side, *, sized: bool) -> Int64Array:
    """Keys that are equal for possible partners, and negative for operations to leave out."""
    kind = side.kind.astype(np.int64)
    if not sized:
        return np.where(kind > 0, kind, ABSENT)
    return np.where((side.elements >= 0) & (kind > 0), side.elements * 64 + kind, ABSENT)


def _alignment(runs: Int64Array, requests: Int64Array) -> tuple[int, int]:
    """Number of pairs, and of unrequested first runs, the least so that no run precedes."""
    if len(requests) == 0:
        return 0, 0
    not_before = np.searchsorted(runs, requests, side="left") - np.arange(len(requests))
    count = len(runs) - max(0, int(not_before[: len(runs)].max(initial=0)))
    skip = len(runs) - count
    return max(0, min(count, len(requests))), skip


def _with_peers(
    table: Table, requested: Int64Array, comm_args: Table, membership: Membership
) -> Table:
    """The table with group and global peer of messages, if their group is unambiguous."""
    group = membership.message_group()
    message = np.isin(table["kind"], _MESSAGES)
    if group is None or not message.any():
        return table
    ranks = np.array(group.ranks, dtype=np.int64)
    in_group = peer_in_group(comm_args.coded("concrete_inputs"))
    asked = in_group[requested] if len(in_group) else ABSENT
    group_peer = np.where(message & (requested != ABSENT), asked, ABSENT)
    valid = (group_peer >= 0) & (group_peer < len(ranks))
    peer = table["peer"].copy()
    peer[valid] = ranks[group_peer[valid]]
    unknown = message & (table["group_origin"] == Origin.ABSENT)
    return membership.with_group(table.with_columns(peer=peer), unknown, group)
