"""Propagated lateness: a rank that waited in one group arrives late at the next.

In a mesh of several axes a slow rank delays its own group, whose members then come late to *their*
other groups although they did nothing wrong. A rank's start at a collective is therefore compared
after taking off what it had waited since its group last met: after the group's previous collective
all members continue together, and the rank did not cause exposed waiting in other groups since
then. Where that explains at least :data:`INHERITED` of the lateness of the last member, the
instance points to the one in which that member had waited longest, and blame follows the pointers
to their root. Where transfers that took the last member longer than the others explain as much, it
was held up by a link, and no rank is to blame.
"""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from distprof.run.run import Rank
from distprof.run.tables import distinct
from distprof.schema import Int64Array
from distprof.sections.matched import Members, RowIndex, by_size

__all__ = ["INHERITED", "find_roots", "range_argmax"]

INHERITED = 0.5
"""Part of the last member's lateness that earlier waiting must explain for blame to move on."""


def find_roots(
    index: RowIndex,
    members: Members,
    start_ns: Int64Array,
    exposed_wait_ns: Int64Array,
    exposed_transfer_ns: Int64Array | None = None,
) -> Int64Array:
    """For each instance, the instance whose last member is to blame for it: itself, or an earlier.

    Args:
        index: Rows of the analysed ranks.
        members: Members of the matched instances.
        start_ns: Start of each row on the common clock.
        exposed_wait_ns: Of each row; negative where not known.
        exposed_transfer_ns: Of each row; None not to look at transfers.

    Returns:
        int64, shape ``(instances,)``; -1 where a transfer is to blame.
    """
    wait = np.maximum(exposed_wait_ns, 0)
    meeting = _previous_meeting(index)
    before = np.concatenate(([0], np.cumsum(wait)))
    waited = before[: len(wait)] - before[meeting + 1]
    moved = np.zeros_like(wait)
    if exposed_transfer_ns is not None:
        before = np.concatenate(([0], np.cumsum(np.maximum(exposed_transfer_ns, 0))))
        moved = before[: len(wait)] - before[meeting + 1]
    last = _last_members(members, start_ns, waited, moved)
    source = _longest_wait(index, members, wait, meeting, last)
    # A pointer leads back in time, so that following them ends.
    source = np.where((source >= 0) & (last.start_ns[source] < last.start_ns), source, -1)
    root = _follow(source)
    return np.where(last.held_up[root], -1, root)


class _Last(msgspec.Struct, frozen=True, kw_only=True):
    """Per instance: row and start of its last member, and where its lateness is from.

    ``inherited``: from waiting; ``held_up``: from transfers instead.
    """

    row: Int64Array
    start_ns: Int64Array
    inherited: NDArray[np.bool_]
    held_up: NDArray[np.bool_]


def _last_members(
    members: Members, start_ns: Int64Array, waited: Int64Array, moved: Int64Array
) -> _Last:
    row = np.full(members.count, -1, dtype=np.int64)
    last_start = np.zeros(members.count, dtype=np.int64)
    inherited = np.zeros(members.count, dtype=np.bool_)
    held_up = np.zeros(members.count, dtype=np.bool_)
    for instances, positions in by_size(members.offsets):
        rows = members.row[positions]
        start, before = start_ns[rows], waited[rows]
        at = (np.arange(len(rows)), start.argmax(axis=1))
        late = start[at] - np.median(start, axis=1)
        row[instances] = rows[at]
        last_start[instances] = start[at]
        excess = before[at] - np.median(before, axis=1)
        inherited[instances] = (late > 0) & (excess >= INHERITED * late)
        longer = moved[rows][at] - np.median(moved[rows], axis=1)
        held_up[instances] = (late > 0) & (longer >= INHERITED * late)
    return _Last(row=row, start_ns=last_start, inherited=inherited, held_up=held_up & ~inherited)


def _previous_meeting(index: RowIndex) -> Int64Array:
    """For each row, the rank's row before it of the same group; one before its first row if none.

    The result is a row number, so that the waits between are those of ``result + 1`` to the row.
    """
    return np.concatenate(
        [
            low + _previous_of_group(rank)
            for rank, low in zip(index.ranks, index.base[:-1].tolist(), strict=True)
        ]
        or [np.empty(0, np.int64)]
    )


def _previous_of_group(rank: Rank) -> Int64Array:
    group, ranks = rank.collectives.coded("group"), rank.collectives.coded("group_ranks")
    code = group.codes.astype(np.int64) * max(len(ranks.values), 1) + ranks.codes
    order = np.argsort(code, kind="stable")
    same = np.flatnonzero(code[order[1:]] == code[order[:-1]])
    previous = np.full(len(code), -1, dtype=np.int64)
    previous[order[same + 1]] = order[same]
    return previous


def _longest_wait(
    index: RowIndex, members: Members, wait: Int64Array, meeting: Int64Array, last: _Last
) -> Int64Array:
    """For each inherited instance, the instance in which its last member had waited longest."""
    instance_of_row = np.full(len(wait), -1, dtype=np.int64)
    sizes = np.diff(members.offsets)
    instance_of_row[members.row] = np.repeat(np.arange(members.count, dtype=np.int64), sizes)
    result = np.full(members.count, -1, dtype=np.int64)
    asked = np.flatnonzero(last.inherited)
    rank_of = np.searchsorted(index.base, last.row[asked], side="right") - 1
    for position in distinct(rank_of).tolist():
        chosen = asked[rank_of == position]
        base, end = int(index.base[position]), int(index.base[position + 1])
        low, high = meeting[last.row[chosen]] + 1 - base, last.row[chosen] - base
        found = range_argmax(wait[base:end], low, high)
        result[chosen] = instance_of_row[base + found]
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
    """Where pointers end; -1 points to itself."""
    target = np.where(source >= 0, source, np.arange(len(source), dtype=np.int64))
    while True:
        further = target[target]
        if (further == target).all():
            return target
        target = further
