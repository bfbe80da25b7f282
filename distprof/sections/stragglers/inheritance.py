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

import msgspec
import numpy as np
from numpy.typing import NDArray

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

    Args:
        index: Rows of the analysed ranks.
        members: Members of the matched instances.
        start_ns: Start of each row on the common clock.
        exposed_wait_ns: Exposed wait of each row of a rank; negative if unknown.
        exposed_transfer_ns: Exposed transfer of each row of a rank.
        unseen_ns: For each row of a rank, how long it was held up in groups with a rank that was
            not recorded, since the row's own group last met.

    Returns:
        The instances to blame, int64, -1 if a transfer is to blame, :data:`UNRECORDED` if that may
        be waiting for a rank that was not recorded; and the row of the last member
        of each instance, -1 for an instance without members.
    """
    waited = index.column(lambda rank: since_meeting(rank, exposed_wait_ns(rank)))
    moved = index.column(lambda rank: since_meeting(rank, exposed_transfer_ns(rank)))
    unseen = index.column(unseen_ns)
    last = _last_members(members, start_ns, waited, moved, unseen)
    del waited, moved, unseen
    source = _longest_wait(index, members, exposed_wait_ns, last)
    # Pointers lead back in time, so following them ends.
    source = np.where((source >= 0) & (last.start_ns[source] < last.start_ns), source, -1)
    root = _follow(source)
    held_up = np.where(last.unseen[root], UNRECORDED, -1)
    return np.where(last.held_up[root], held_up, root), last.row


class _Last(msgspec.Struct, frozen=True, kw_only=True):
    """Per instance: row and start of its last member, and the origin of its lateness.

    ``inherited``: earlier waiting. ``held_up``: transfers instead. ``unseen``: transfers in groups
    with a rank that was not recorded.
    """

    row: Int64Array
    start_ns: Int64Array
    inherited: NDArray[np.bool_]
    held_up: NDArray[np.bool_]
    unseen: NDArray[np.bool_]


def _last_members(
    members: Members,
    start_ns: Int64Array,
    waited: Int64Array,
    moved: Int64Array,
    unseen: Int64Array,
) -> _Last:
    row = np.full(members.count, -1, dtype=np.int64)
    last_start = np.zeros(members.count, dtype=np.int64)
    inherited = np.zeros(members.count, dtype=np.bool_)
    held_up, lacking = inherited.copy(), inherited.copy()
    for instances, positions in by_size(members.offsets):
        rows = members.row[positions]
        start, before = start_ns[rows], waited[rows]
        at = (np.arange(len(rows)), start.argmax(axis=1))
        late = start[at] - np.median(start, axis=1)
        row[instances] = rows[at]
        last_start[instances] = start[at]
        inherited[instances] = _explains(before, at, late)
        held_up[instances] = _explains(moved[rows], at, late)
        lacking[instances] = _explains(unseen[rows], at, late)
    held_up = (held_up | lacking) & ~inherited
    return _Last(row=row, start_ns=last_start, inherited=inherited, held_up=held_up, unseen=lacking)


def _explains(
    times: Int64Array, at: tuple[Int64Array, Int64Array], late: NDArray[np.float64]
) -> NDArray[np.bool_]:
    """Whether the last member's time above the median explains its lateness."""
    more = times[at] - np.median(times, axis=1)
    result: NDArray[np.bool_] = (late > 0) & (more >= INHERITED * late)
    return result


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
    index: RowIndex, members: Members, exposed_wait_ns: _OfRank, last: _Last
) -> Int64Array:
    """For each inherited instance, the instance in which its last member had waited longest."""
    result = np.full(members.count, -1, dtype=np.int64)
    inherited = np.flatnonzero(last.inherited)
    if not len(inherited):
        return result
    instance_of_row = np.full(len(index), -1, dtype=index_type(members.count))
    sizes = np.diff(members.offsets)
    for low, high in blocks_of(members.offsets):
        rows = members.row[members.offsets[low] : members.offsets[high]]
        instance_of_row[rows] = np.repeat(np.arange(low, high), sizes[low:high])
    rank_of = np.searchsorted(index.base, last.row[inherited], side="right") - 1
    for position, mine in enumerate(positions_by_code(rank_of)):
        if not len(mine):
            continue
        chosen, rank, base = inherited[mine], index.ranks[position], int(index.base[position])
        high = last.row[chosen] - base
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
