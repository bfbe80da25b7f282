"""Collective records: a description of each communication operation from the evidence in a trace.

Evidence for a record, strongest first. Each field comes from the first evidence that has it:

1. collective arguments on the GPU activity itself;
2. the ``record_param_comms`` operator around the call that launched it;
3. the ``c10d::`` or ``symm_mem::`` operator around that call, whose shapes give sizes;
4. the backend's annotation around that call (``nccl:all_reduce``), with the shape of the input;
5. the name of the GPU activity, which gives only the kind.

A kernel that carries a batch of messages (``batch_isend_irecv``) has no arguments, and the call
that launches it closes the batch without naming a message. Each message has an earlier
``record_param_comms`` on the same thread, which launched nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from distprof.ingest.collectives import (
    ANNOTATIONS,
    OPERATORS,
    CallFacts,
    GroupColumns,
    Membership,
    call_facts,
    full_buffer_bytes,
    splits_of_operators,
)
from distprof.ingest.communication import Classifier, is_wait
from distprof.run.tables import COLLECTIVES, distinct, join_launches
from distprof.schema import ABSENT, Coded, Int64Array, Table
from distprof.terms import ActivityKind, CollectiveKind, Origin


class Records(msgspec.Struct, frozen=True, kw_only=True):
    """COLLECTIVES table of one rank, with assumptions."""

    table: Table  # COLLECTIVES table, in order of start.
    notes: tuple[str, ...] = ()  # One sentence each.


def mark_communication(activity: Table, comm_args: Table, classifier: Classifier) -> Table:
    """The ACTIVITY table with its communication rows marked as such."""
    communication = classifier.communication_rows(activity.coded("name"))
    communication |= _own_arguments(activity, comm_args) != ABSENT
    communication &= activity["kind"] == ActivityKind.COMPUTATION
    kind = activity["kind"].copy()
    kind[communication] = ActivityKind.COMMUNICATION
    return activity.with_columns(kind=kind)


def device_records(
    activity: Table, host: Table, comm_args: Table, membership: Membership, classifier: Classifier
) -> Records:
    """Records of the communication marked in ``activity``, which ran on a GPU."""
    rows = np.flatnonzero(activity["kind"] == ActivityKind.COMMUNICATION)
    rows = rows[np.argsort(activity["start_ns"][rows], kind="stable")]
    executed = activity.take(rows)
    launches = join_launches(executed["correlation"], host)
    name_kinds = classifier.kinds(executed.coded("name"))
    own = _own_arguments(executed, comm_args)
    called, operator, annotation = _around(launches.row, host, comm_args)
    bare = (own == ABSENT) & (called == ABSENT) & (operator == ABSENT)
    may_be_batch = bare & (name_kinds == CollectiveKind.SEND_RECV)
    batches = None
    if may_be_batch.any():
        facts = call_facts(comm_args)
        is_message = np.isin(facts.kind, (CollectiveKind.SEND, CollectiveKind.RECV))
        is_unlaunched = _calls(comm_args) & is_message
        is_unlaunched[called[called != ABSENT]] = False
        requests = np.flatnonzero(is_unlaunched)
        if len(requests):
            batches = _batches(launches.row, may_be_batch, requests, host, comm_args, facts)
            called = np.where(batches.first != ABSENT, batches.first, called)
    records = records_table(
        executed=executed,
        enqueue_ns=launches.start,
        comm_args=comm_args,
        layers=(own, called, operator, annotation),
        name_kinds=name_kinds,
        membership=membership,
    )
    return records if batches is None else _with_batches(records.table, batches, membership)


def _with_batches(table: Table, batches: Batches, membership: Membership) -> Records:
    """The COLLECTIVES table with all messages of a kernel in its row instead of only the first."""
    several = batches.first != ABSENT
    size = np.where(several, batches.bytes, table["bytes"])
    origin = np.where(size == ABSENT, Origin.ABSENT, Origin.DERIVED).astype(np.int8)
    table = table.with_columns(
        kind=np.where(several, batches.kind, table["kind"]),
        peer=np.where(several, batches.peer, table["peer"]).astype(np.int32),
        bytes=size,
        bytes_origin=np.where(several, origin, table["bytes_origin"]),
    )
    return Records(table=table, notes=tuple(notes_on(table, membership)))


def records_table(
    *,
    executed: Table,
    enqueue_ns: Int64Array,
    comm_args: Table,
    layers: Sequence[Int64Array],
    name_kinds: NDArray[np.int8],
    membership: Membership,
) -> Records:
    """The COLLECTIVES table of executed operations, from the evidence on each.

    ``executed`` are their ACTIVITY rows, in order of start; ``enqueue_ns`` is when the CPU
    requested each, ABSENT if unknown; ``layers`` holds, for each kind of evidence, strongest first,
    the row of ``comm_args`` that describes each operation, ABSENT without one.
    """
    facts = call_facts(comm_args)
    kind, kind_origin = _kinds(facts, layers, name_kinds)
    groups = membership.columns(comm_args, layers, len(executed))
    size, size_origin = _bytes(facts, layers, kind, groups)
    out_splits, in_splits = splits_of_operators(
        comm_args.coded("name"), comm_args.coded("concrete_inputs")
    )
    columns: dict[str, NDArray[Any] | Coded] = {
        "start_ns": executed["start_ns"],
        "end_ns": executed["end_ns"],
        "is_timed": np.ones(len(executed), dtype=np.bool_),
        "enqueue_ns": enqueue_ns,
        "kind": kind,
        "kind_origin": kind_origin,
        "group": groups.group,
        "group_desc": groups.description,
        "group_ranks": groups.ranks,
        "group_size": groups.size,
        "group_origin": groups.origin,
        "seq": _first(np.maximum(comm_args["seq"], ABSENT), layers),
        "dtype": _first_text(comm_args.coded("dtype"), str, facts.dtype, layers),
        "bytes": size,
        "bytes_origin": size_origin,
        "peer": _first(facts.peer, layers).astype(np.int32),
        "in_splits": _first_text(comm_args.coded("in_splits"), _splits, in_splits, layers),
        "out_splits": _first_text(comm_args.coded("out_splits"), _splits, out_splits, layers),
        "stream": executed["stream"],
        "correlation": executed["correlation"],
        "name": executed.coded("name"),
    }
    table = Table(COLLECTIVES, columns)
    return Records(table=table, notes=tuple(notes_on(table, membership)))


def _own_arguments(activity: Table, comm_args: Table) -> Int64Array:
    """Row of ``comm_args`` recorded on each activity itself, ABSENT without one."""
    on_device = comm_args.coded("category").equals("kernel")
    rows = np.flatnonzero(on_device & _names_operation(comm_args))
    return same_event(activity, comm_args, rows, ("start_ns", "end_ns", "stream", "correlation"))


def same_event(
    executed: Table, comm_args: Table, rows: Int64Array, columns: Sequence[str]
) -> Int64Array:
    """The first of these rows of ``comm_args`` with the same columns as each operation."""
    result = np.full(len(executed), ABSENT, dtype=np.int64)
    if len(rows) == 0 or len(executed) == 0:
        return result
    keys, wanted = _hash(comm_args, columns)[rows], _hash(executed, columns)
    order = np.argsort(keys, kind="stable")
    rows, keys = rows[order], keys[order]
    position = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    found = keys[position] == wanted
    result[found] = rows[position[found]]
    return result


def _hash(table: Table, columns: Sequence[str]) -> NDArray[np.uint64]:
    key = np.zeros(len(table), dtype=np.uint64)
    for column in columns:
        key = key * np.uint64(0x9E3779B97F4A7C15) + table[column].view(np.uint64)
    return key


def _names_operation(comm_args: Table) -> NDArray[np.bool_]:
    """Rows whose collective name is an operation rather than waiting for one."""
    names = comm_args.coded("collective")
    return names.where([bool(name) and not is_wait(name) for name in names.values])


def _around(
    launches: Int64Array, host: Table, comm_args: Table
) -> tuple[Int64Array, Int64Array, Int64Array]:
    """Rows of ``comm_args`` around each launch: record_param_comms, c10d operator, annotation."""
    names = comm_args.coded("name")
    operator = names.where([name.startswith(OPERATORS) for name in names.values])
    annotation = names.where([name.startswith(ANNOTATIONS) for name in names.values])
    on_host = ~comm_args.coded("category").isin(("kernel", "gpu_user_annotation"))
    return (
        _enclosing(launches, host, comm_args, _calls(comm_args)),
        _enclosing(launches, host, comm_args, operator & on_host),
        _enclosing(launches, host, comm_args, annotation & on_host),
    )


def _calls(comm_args: Table) -> NDArray[np.bool_]:
    """Rows of ``record_param_comms`` on the CPU that name an operation."""
    return (
        comm_args.coded("name").equals("record_param_comms")
        & _names_operation(comm_args)
        & ~comm_args.coded("category").isin(("kernel", "gpu_user_annotation"))
    )


def _enclosing(
    launches: Int64Array, host: Table, comm_args: Table, wanted: NDArray[np.bool_]
) -> Int64Array:
    """The row among ``wanted`` around each launch on its thread; the last one to start."""
    result = np.full(len(launches), ABSENT, dtype=np.int64)
    known = np.flatnonzero(launches != ABSENT)
    candidates = np.flatnonzero(wanted)
    if len(known) == 0 or len(candidates) == 0:
        return result
    threads = host.coded("thread")
    thread = _threads(host, comm_args, candidates)
    start = comm_args["start_ns"][candidates]
    order = np.lexsort((start, thread))
    candidates, thread, start = candidates[order], thread[order], start[order]
    launch_thread = threads.codes[launches[known]]
    launch_start = host["start_ns"][launches[known]]
    for number in distinct(launch_thread):
        mine = launch_thread == number
        low, high = np.searchsorted(thread, [number, number + 1])
        if low == high:
            continue
        position = np.searchsorted(start[low:high], launch_start[mine], side="right") - 1
        row = candidates[low + np.maximum(position, 0)]
        inside = (position >= 0) & (launch_start[mine] < comm_args["end_ns"][row])
        result[known[mine][inside]] = row[inside]
    return result


def _threads(host: Table, comm_args: Table, rows: Int64Array) -> Int64Array:
    """Code in ``host`` of the thread of each of these rows, ABSENT if it is not there."""
    numbers = {name: number for number, name in enumerate(host.coded("thread").values)}
    callers = comm_args.coded("thread")
    codes = np.array([numbers.get(name, ABSENT) for name in callers.values], dtype=np.int64)
    return codes[callers.codes[rows]]


def _kinds(
    facts: CallFacts, layers: Sequence[Int64Array], name_kinds: NDArray[np.int8]
) -> tuple[NDArray[np.int8], NDArray[np.int8]]:
    """Kind of each operation and its origin."""
    kind = name_kinds.copy()
    origin = np.where(kind != CollectiveKind.UNKNOWN, Origin.DERIVED, Origin.ABSENT)
    for index, layer in reversed(list(enumerate(layers))):
        of_layer = _values_at(facts.kind, layer, CollectiveKind.UNKNOWN)
        known = of_layer != CollectiveKind.UNKNOWN
        kind[known] = of_layer[known]
        origin[known] = Origin.MEASURED if index == 0 else Origin.DERIVED
    return kind, origin.astype(np.int8)


def _bytes(
    facts: CallFacts, layers: Sequence[Int64Array], kind: NDArray[np.int8], groups: GroupColumns
) -> tuple[Int64Array, NDArray[np.int8]]:
    """Full-buffer bytes of each operation and their origin."""
    size = np.full(len(kind), ABSENT, dtype=np.int64)
    origin = np.full(len(kind), Origin.ABSENT, dtype=np.int8)
    element = _first(facts.element_bytes, layers)
    for layer in layers:
        open_rows = np.flatnonzero((size == ABSENT) & (layer != ABSENT))
        rows = layer[open_rows]
        num_bytes, scaled = full_buffer_bytes(
            kind=kind[open_rows],
            in_elements=facts.in_elements[rows],
            out_elements=facts.out_elements[rows],
            element_bytes=element[open_rows],
            group_size=groups.size[open_rows].astype(np.int64),
        )
        size[open_rows] = num_bytes
        written = facts.is_written[rows] & ~scaled
        origin[open_rows] = np.where(
            num_bytes == ABSENT, Origin.ABSENT, np.where(written, Origin.MEASURED, Origin.DERIVED)
        )
    best = np.full(len(kind), ABSENT, dtype=np.int64)
    for layer in reversed(layers):
        best = np.where(layer != ABSENT, layer, best)
    _, which, counts = np.unique(best, return_inverse=True, return_counts=True)
    shared = (counts[which] > 1) & (best != ABSENT)  # one call with several kernels
    size[shared], origin[shared] = ABSENT, Origin.ABSENT
    return size, origin


def _values_at(values: NDArray[Any], layer: Int64Array, otherwise: int) -> NDArray[Any]:
    """The value of each operation's row of evidence, ``otherwise`` without one."""
    if len(values) == 0:
        return np.full(len(layer), otherwise)
    return np.where(layer != ABSENT, values[layer], otherwise)


def _first(values: NDArray[np.int64], layers: Sequence[Int64Array]) -> Int64Array:
    """The value of each operation from its strongest evidence that has one, else ABSENT."""
    result = np.full(len(layers[0]), ABSENT, dtype=np.int64)
    for layer in reversed(layers):
        of_layer = _values_at(values, layer, ABSENT)
        result = np.where(of_layer != ABSENT, of_layer, result)
    return result


def _first_text(
    written: Coded, read: Callable[[str], str], derived: Coded, layers: Sequence[Int64Array]
) -> Coded:
    """The text of each operation: as written, else derived."""
    values = ("", *map(read, written.values), *derived.values)
    has = np.array([bool(value) for value in values])
    as_written = written.codes + 1
    codes = np.where(has[as_written], as_written, derived.codes + 1 + len(written.values))
    codes = np.where(has[codes], codes, ABSENT).astype(np.int64)
    return Coded.merged(np.maximum(_first(codes, layers), 0).astype(np.int32), values)


def _splits(written: str) -> str:
    """Split sizes as ``1,2,3``; empty if the split is even, absent or abbreviated."""
    inner = written.strip().removeprefix("[").removesuffix("]").replace(" ", "")
    return inner if inner.replace(",", "").isdecimal() else ""


def notes_on(table: Table, membership: Membership) -> Iterator[str]:
    """Unknown or assumed properties of the records in a table, one sentence each."""
    yield from membership.notes(table)
    unsized = int((table["bytes"] == ABSENT).sum())
    barriers = int((table["kind"] == CollectiveKind.BARRIER).sum())
    if unsized > barriers:
        yield f"{unsized - barriers} of {len(table)} collectives have an unknown size."
    unknown = int((table["kind"] == CollectiveKind.UNKNOWN).sum())
    if unknown:
        yield f"{unknown} of {len(table)} collectives have an unknown kind."


class Batches(msgspec.Struct, frozen=True, kw_only=True):
    """Messages that each of n operations sends and receives in one kernel."""

    # int64, shape ``(n,)``: row of ``comm_args`` of its first message, ABSENT if the operation is
    # not a batch.
    first: Int64Array
    # int8: ``SEND`` or ``RECV`` if all messages have one direction, else ``SEND_RECV``.
    kind: NDArray[np.int8]
    peer: Int64Array  # int64: the other end, ABSENT if there are several.
    bytes: Int64Array  # int64: of the direction that carries more, ABSENT if a size is unknown.


def _batches(
    launches: Int64Array,
    may_be_batch: NDArray[np.bool_],
    requests: Int64Array,
    host: Table,
    comm_args: Table,
    facts: CallFacts,
) -> Batches:
    """Assign each message to the first communication that its thread launched after requesting it.

    ``launches`` is the row of ``host`` that launched each operation, ABSENT if unknown;
    ``may_be_batch`` marks operations whose launch is not described by any call; ``requests`` are
    rows of ``comm_args`` of sends and receives whose calls launched nothing.
    """
    operation = np.full(len(requests), ABSENT, dtype=np.int64)
    known = np.flatnonzero(launches != ABSENT)
    thread = _threads(host, comm_args, requests)
    launch_thread = host.coded("thread").codes[launches[known]]
    launch_start = host["start_ns"][launches[known]]
    for code in distinct(thread[thread != ABSENT]):
        mine = np.flatnonzero(launch_thread == code)
        mine = mine[np.argsort(launch_start[mine], kind="stable")]
        called = np.flatnonzero(thread == code)
        end = comm_args["end_ns"][requests[called]]
        position = np.searchsorted(launch_start[mine], end)
        found = position < len(mine)
        operation[called[found]] = known[mine[position[found]]]
    is_batch = (operation != ABSENT) & may_be_batch[operation]
    return _summed(operation[is_batch], requests[is_batch], len(launches), facts)


def _summed(operation: Int64Array, message: Int64Array, count: int, facts: CallFacts) -> Batches:
    """Combine the messages of each operation."""
    first = np.full(count, ABSENT, dtype=np.int64)
    first[operation[::-1]] = message[::-1]
    elements = np.maximum(facts.in_elements[message], facts.out_elements[message])
    has_size = (elements >= 0) & (facts.element_bytes[message] > 0)
    size = np.where(has_size, elements * facts.element_bytes[message], 0)
    sends = facts.kind[message] == CollectiveKind.SEND
    num_sent, num_received = (np.bincount(operation[w], minlength=count) for w in (sends, ~sends))
    sums = []
    for way in (sends, ~sends):
        total = np.zeros(count, dtype=np.int64)
        np.add.at(total, operation[way], size[way])
        total[operation[way & ~has_size]] = ABSENT
        sums.append(total)
    low = np.full(count, np.iinfo(np.int64).max)
    high = np.full(count, ABSENT, dtype=np.int64)
    np.minimum.at(low, operation, facts.peer[message])
    np.maximum.at(high, operation, facts.peer[message])
    kind = np.select(
        [num_received == 0, num_sent == 0],
        [CollectiveKind.SEND, CollectiveKind.RECV],
        CollectiveKind.SEND_RECV,
    )
    known = (sums[0] != ABSENT) & (sums[1] != ABSENT)
    return Batches(
        first=first,
        kind=kind.astype(np.int8),
        peer=np.where(low == high, high, ABSENT),
        bytes=np.where(known, np.maximum(*sums), ABSENT),
    )
