"""Messages that NCCL sends and receives in one kernel, as requested by ``batch_isend_irecv``.

Such a kernel has no arguments, and the call that launches it closes the batch without naming a
message. Each message has an earlier ``record_param_comms`` on the same thread, which launched
nothing.
"""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from distprof.ingest.collectives.sizes import CallFacts
from distprof.run.tables import distinct
from distprof.schema import ABSENT, Int64Array, Table
from distprof.terms import CollectiveKind


class Batches(msgspec.Struct, frozen=True, kw_only=True):
    """Messages that each of n operations sends and receives in one kernel."""

    # int64, shape ``(n,)``: row of ``comm_args`` of its first message, ABSENT if the operation is
    # not a batch.
    first: Int64Array
    # int8: ``SEND`` or ``RECV`` if all messages have one direction, else ``SEND_RECV``.
    kind: NDArray[np.int8]
    peer: Int64Array  # int64: the other end, ABSENT if there are several.
    bytes: Int64Array  # int64: of the direction that carries more, ABSENT if a size is unknown.


def batches_of(
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
    operation = _launched_next(launches, requests, host, comm_args)
    mine = (operation != ABSENT) & may_be_batch[operation]
    return _summed(operation[mine], requests[mine], len(launches), facts)


def _launched_next(
    launches: Int64Array, requests: Int64Array, host: Table, comm_args: Table
) -> Int64Array:
    """For each message, the first operation that its thread launched after the call."""
    result = np.full(len(requests), ABSENT, dtype=np.int64)
    known = np.flatnonzero(launches != ABSENT)
    threads, callers = host.coded("thread"), comm_args.coded("thread")
    number = {name: code for code, name in enumerate(threads.values)}
    thread_of = np.array([number.get(name, ABSENT) for name in callers.values], dtype=np.int64)
    thread = thread_of[callers.codes[requests]]
    launch_thread = threads.codes[launches[known]]
    launch_start = host["start_ns"][launches[known]]
    for code in distinct(thread[thread != ABSENT]):
        mine = np.flatnonzero(launch_thread == code)
        mine = mine[np.argsort(launch_start[mine], kind="stable")]
        called = np.flatnonzero(thread == code)
        end = comm_args["end_ns"][requests[called]]
        position = np.searchsorted(launch_start[mine], end)
        found = position < len(mine)
        result[called[found]] = known[mine[position[found]]]
    return result


def _summed(operation: Int64Array, message: Int64Array, count: int, facts: CallFacts) -> Batches:
    """Combine the messages of each operation."""
    first = np.full(count, ABSENT, dtype=np.int64)
    first[operation[::-1]] = message[::-1]
    sends = facts.kind[message] == CollectiveKind.SEND
    sent, received = (_bytes(operation, message, way, count, facts) for way in (sends, ~sends))
    low = np.full(count, np.iinfo(np.int64).max)
    high = np.full(count, ABSENT, dtype=np.int64)
    np.minimum.at(low, operation, facts.peer[message])
    np.maximum.at(high, operation, facts.peer[message])
    num_sent, num_received = (
        np.bincount(operation[way], minlength=count) for way in (sends, ~sends)
    )
    kind = np.select(
        [num_received == 0, num_sent == 0],
        [CollectiveKind.SEND, CollectiveKind.RECV],
        CollectiveKind.SEND_RECV,
    )
    known = (sent != ABSENT) & (received != ABSENT)
    return Batches(
        first=first,
        kind=kind.astype(np.int8),
        peer=np.where(low == high, high, ABSENT),
        bytes=np.where(known, np.maximum(sent, received), ABSENT),
    )


def _bytes(
    operation: Int64Array,
    message: Int64Array,
    chosen: NDArray[np.bool_],
    count: int,
    facts: CallFacts,
) -> Int64Array:
    """Bytes of the chosen messages of each operation; ABSENT if any size is unknown."""
    rows = message[chosen]
    elements = np.maximum(facts.in_elements[rows], facts.out_elements[rows])
    known = (elements >= 0) & (facts.element_bytes[rows] > 0)
    total = np.zeros(count, dtype=np.int64)
    np.add.at(total, operation[chosen], np.where(known, elements * facts.element_bytes[rows], 0))
    total[operation[chosen][~known]] = ABSENT
    return total
