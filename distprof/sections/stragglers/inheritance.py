"""Propagated lateness: a rank that waited in one group arrives late at the next.

In a mesh of several axes a slow rank delays its own group, whose members then come late to *their*
other groups although they did nothing wrong. Lateness is therefore compared with the time that each
rank waited since its group last met: after the group's previous collective all members continue
together, and a rank does not cause its own exposed waiting in other groups after that. If this
waiting explains at least :data:`INHERITED` of the lateness of the last member, the instance points
to the one in which that member waited longest, and blame follows the pointers to their root. If
transfers that took the last member longer than the others explain as much, a link held it up, and
no rank is to blame. In a group with a rank that was not recorded, such a transfer may be waiting
for that rank, also if it is hidden: a collective that needs its result starts no sooner.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from distprof.join.waits import blocks_of, index_type, positions_by_code
from distprof.run.run import Rank
from distprof.run.tables import distinct, order_of_codes
from distprof.schema import Int64Array
from distprof.sections.matched import Members, RowIndex, by_size

INHERITED = 0.5
"""Share of the last member's lateness that earlier waiting must explain for blame to move on."""

UNRECORDED = -2
"""Root of an instance whose last member may have waited for a rank that was not recorded."""

_OfRank: TypeAlias = "Callable[[Rank], Int64Array]"
"""A column of a rank's COLLECTIVES rows."""


def find_roots(
    index: RowIndex,
    members: Members,
    start_ns: Int64Array,
    exposed_wait_ns: _OfRank,
    exposed_transfer_ns: _OfRank,
    unseen_ns: _OfRank,
) -> tuple[Int64Array, Int64Array]:
    """For each instance, the one whose last member is to blame for it: itself or an earlier one.

    Rows are those of the analysed ranks: starts on the common clock, and by rank the exposed waits
    (negative if unknown), exposed transfers, and how long each row was held up in groups with a
    rank that was not recorded, since its own group last met.

    Returns:
        The instances to blame, int64, -1 if a transfer is to blame, :data:`UNRECORDED` if that may
        be waiting for a rank that was not recorded; and the row of each instance's last member, -1
        without members.
    """
    reasons = (
        index.column(lambda rank: since_meeting(rank, exposed_wait_ns(rank))),
        index.column(lambda rank: since_meeting(rank, exposed_transfer_ns(rank))),
        index.column(unseen_ns),
    )
    last_row = np.full(members.count, -1, dtype=np.int64)
    last_ns = np.zeros(members.count, dtype=np.int64)
    waited, moved, unseen = explains = np.zeros((len(reasons), members.count), dtype=np.bool_)
    for instances, positions in by_size(members.offsets):
        rows = members.row[positions]
        start = start_ns[rows]
        at = (np.arange(len(rows)), start.argmax(axis=1))
        late = start[at] - np.median(start, axis=1)
        last_row[instances], last_ns[instances] = rows[at], start[at]
        for times, reason in zip(reasons, explains, strict=True):
            of_rows = times[rows]
            more = of_rows[at] - np.median(of_rows, axis=1)
            reason[instances] = (late > 0) & (more >= INHERITED * late)
    del reasons
    source = _longest_wait(index, members, exposed_wait_ns, last_row, np.flatnonzero(waited))
    # Pointers lead back in time, so following them ends.
    root = _follow(np.where((source >= 0) & (last_ns[source] < last_ns), source, -1))
    held_up = (moved | unseen) & ~waited
    return np.where(held_up[root], np.where(unseen[root], UNRECORDED, -1), root), last_row


def since_meeting(rank: Rank, exposed_ns: Int64Array) -> Int64Array:
    """For each row, exposed time of the rank's rows since its group last met."""
    before = np.concatenate(([0], np.cumsum(np.maximum(exposed_ns, 0))))
    since: Int64Array = before[:-1] - before[_previous_of_group(rank) + 1]
    return since


def _previous_of_group(rank: Rank) -> Int64Array:
    """For each row, the rank's row before it of the same group; -1 if none."""
    group, ranks = rank.collectives.coded("group"), rank.collectives.coded("group_ranks")
    code = group.codes.astype(np.int64) * max(len(ranks.values), 1) + ranks.codes
    order = order_of_codes(code, int(code.max(initial=0)) + 1)
    same = np.flatnonzero(code[order[1:]] == code[order[:-1]])
    previous = np.full(len(code), -1, dtype=np.int64)
    previous[order[same + 1]] = order[same]
    return previous


def _longest_wait(
    index: RowIndex,
    members: Members,
    exposed_wait_ns: _OfRank,
    last_row: Int64Array,
    inherited: Int64Array,
) -> Int64Array:
    """For each inherited instance, the instance in which its last member had waited longest."""
    result = np.full(members.count, -1, dtype=np.int64)
    if not len(inherited):
        return result
    instance_of_row = np.full(len(index), -1, dtype=index_type(members.count))
    sizes = np.diff(members.offsets)
    for low, high in blocks_of(members.offsets):
        rows = members.row[members.offsets[low] : members.offsets[high]]
        instance_of_row[rows] = np.repeat(np.arange(low, high), sizes[low:high])
    rank_of = np.searchsorted(index.base, last_row[inherited], side="right") - 1
    for position, mine in enumerate(positions_by_code(rank_of)):
        if len(mine):
            chosen, rank, base = inherited[mine], index.ranks[position], int(index.base[position])
            high = last_row[chosen] - base
            low = _previous_of_group(rank)[high] + 1
            longest = range_argmax(np.maximum(exposed_wait_ns(rank), 0), low, high)
            result[chosen] = instance_of_row[base + longest]
    return result


def range_argmax(values: Int64Array, low: Int64Array, high: Int64Array) -> Int64Array:
    """Position of the largest value in each range ``[low, high)``; ranges are not empty.

    A sparse table: position of the largest among the ``2**k`` values from each position on.
    """
    longest = int((high - low).max(initial=1))
    levels = [np.arange(len(values), dtype=np.int64)]
    while 2 ** len(levels) <= longest:
        half = 2 ** (len(levels) - 1)
        left, right = levels[-1][:-half], levels[-1][half:]
        levels.append(np.where(values[right] > values[left], right, left))
    exponent = np.frexp((high - low).astype(np.float64))[1].astype(np.int64) - 1
    result = np.empty(len(low), dtype=np.int64)
    for k in distinct(exponent).tolist():
        chosen = exponent == k
        left, right = levels[k][low[chosen]], levels[k][high[chosen] - 2**k]
        result[chosen] = np.where(values[right] > values[left], right, left)
    return result


def _follow(source: Int64Array) -> Int64Array:
    """Where the chain of pointers from each instance ends; -1 points to the instance itself."""
    target = np.where(source >= 0, source, np.arange(len(source), dtype=np.int64))
    while True:
        further = target[target]
        if (further == target).all():
            return target
        target = further
