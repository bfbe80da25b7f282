"""Start of the last member of each matched collective, on every member's own clock.

This module also gathers columns of matched collectives from the tables of many ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from distprof.join.blocks import blocks_of, joined, looked_up
from distprof.run.run import ClockAlignment, CollectiveMatches, Rank
from distprof.run.tables import distinct
from distprof.schema import ABSENT, Int64Array
from distprof.terms import CollectiveKind


def positions_of(ranks: Sequence[Rank], numbers: NDArray[Any]) -> NDArray[np.int64]:
    """Position in ``ranks``, which ascend, of each rank number, all of which are in ``ranks``."""
    known = np.array([rank.rank for rank in ranks], dtype=np.int64)
    return looked_up(known, np.arange(len(known), dtype=np.int64), numbers)


class MemberBlocks:
    """Matched collectives, a few instances at a time, with columns of their members' rows.

    ``columns`` of COLLECTIVES are not categories.
    """

    def __init__(
        self, matches: CollectiveMatches, ranks: Sequence[Rank], columns: Sequence[str] = ()
    ) -> None:
        self._matches = matches
        lengths = np.array([len(rank.collectives) for rank in ranks], dtype=np.int64)
        self._known = np.array([rank.rank for rank in ranks], dtype=np.int64)
        self._first = np.cumsum(lengths) - lengths
        self._columns = [joined([rank.collectives[name] for rank in ranks]) for name in columns]

    def __iter__(self) -> Iterator[MemberBlock]:
        matches = self._matches
        for low, high in blocks_of(matches.offsets):
            members = slice(int(matches.offsets[low]), int(matches.offsets[high]))
            rank = matches.member_rank[members]
            row = looked_up(self._known, self._first, rank) + matches.member_row[members]
            yield MemberBlock(
                instances=slice(low, high),
                members=members,
                first=matches.offsets[low:high] - matches.offsets[low],
                rank=rank,
                row=row,
                columns=tuple(column[row] for column in self._columns),
            )


class MemberBlock(msgspec.Struct, frozen=True, kw_only=True):
    """Consecutive instances with their members."""

    instances: slice  # Positions of the instances among all instances.
    members: slice  # Positions of their members among those of all instances.
    first: Int64Array  # int64 per instance, where its members begin within the block.
    rank: NDArray[np.int32]  # int32 per member, rank number.
    row: Int64Array  # int64 per member, its row among the COLLECTIVES rows of all ranks.
    columns: tuple[NDArray[Any], ...]  # Columns of COLLECTIVES, one entry per member each.


def member_rows(matches: CollectiveMatches, ranks: Sequence[Rank]) -> Int64Array:
    """Row of each member among the concatenated COLLECTIVES rows of all ranks, which ascend."""
    rows = np.empty(len(matches.member_rank), np.int64)
    for block in MemberBlocks(matches, ranks):
        rows[block.members] = block.row
    return rows


def member_column(
    matches: CollectiveMatches, ranks: Sequence[Rank], column: str
) -> NDArray[np.int64]:
    """One int64 column of COLLECTIVES, not a category, for every member, in their order."""
    values = np.empty(len(matches.member_rank), np.int64)
    for block in MemberBlocks(matches, ranks, [column]):
        values[block.members] = block.columns[0]
    return values


def timed_instances(matches: CollectiveMatches, ranks: Sequence[Rank]) -> NDArray[np.bool_]:
    """Whether the start and end of execution are known for every member of an instance."""
    everyone = np.ones(matches.count, np.bool_)
    if all(rank.collectives["is_timed"].all() for rank in ranks):
        return everyone
    for block in MemberBlocks(matches, ranks, ["is_timed"]):
        everyone[block.instances] = np.logical_and.reduceat(block.columns[0], block.first)
    return everyone


def domain_of_ranks(clock: ClockAlignment, numbers: NDArray[Any]) -> NDArray[np.int64]:
    """Clock domain of each rank number.

    Raises:
        ValueError: If a rank is in no domain.
    """
    known = distinct(numbers).astype(np.int64)
    domains = np.array([clock.domain_of(rank) for rank in known.tolist()], dtype=np.int64)
    return looked_up(known, domains, numbers)


def member_to_common(
    clock: ClockAlignment, domain: NDArray[np.int64], own_ns: Int64Array
) -> Int64Array:
    """Convert own times to the common clock with the correction of their clock domain; int64 ns."""
    if len(own_ns) == 0:
        return own_ns
    correction = clock.drift_ratio[domain] * (own_ns - clock.reference_ns)
    correction += clock.offset_ns[domain]
    whole: Int64Array = np.rint(correction, out=correction).astype(np.int64)
    return np.subtract(own_ns, whole, out=whole)


# Arrivals -----------------------------------------------------------------------------------------

_WAITS_FOR_ALL = [kind for kind in CollectiveKind if kind.is_symmetric or kind.is_point_to_point]


def last_start_on_own_clock(
    matches: CollectiveMatches, clock: ClockAlignment, ranks: Sequence[Rank]
) -> dict[int, Int64Array]:
    """Start of the last member, by rank number for each row of its COLLECTIVES table.

    The time before it is the member's wait, the time after it the transfer. Only instances of
    :func:`comparable_instances` count, and of them only those in which no member can finish before
    all have started (so not a broadcast, for example).

    Values are int64 ns on the rank's own clock, never before the row's own start, and ABSENT if the
    row has no matched and comparable instance. If the clock error exceeds the transfer time, a
    value can be after the row's end.

    Source:
        Formula sheet, "Measured from traces": each member's wait is the last member's start minus
        its own.
    """
    if not ranks:
        return {}
    lengths = [len(rank.collectives) for rank in ranks]
    waits = np.full(sum(lengths), ABSENT, np.int64)
    usable = comparable_instances(matches, clock) & np.isin(matches.kind, _WAITS_FOR_ALL)
    usable &= timed_instances(matches, ranks)
    if usable.any():
        for block in MemberBlocks(matches, ranks, ["start_ns"]):
            some, last = usable[block.instances], _last_starts(block, clock)
            if some.all():
                waits[block.row] = last
            else:
                keep = np.repeat(some, np.diff(block.first, append=len(last)))
                waits[block.row[keep]] = last[keep]
    parts = np.split(waits, np.cumsum(lengths)[:-1])
    return {rank.rank: part for rank, part in zip(ranks, parts, strict=True)}


def _last_starts(block: MemberBlock, clock: ClockAlignment) -> Int64Array:
    """Start of the last member of each member's instance, on the member's own clock."""
    (own_ns,) = block.columns
    domain = domain_of_ranks(clock, block.rank)
    common = member_to_common(clock, domain, own_ns)
    last = np.maximum.reduceat(common, block.first)
    # differences are small enough to apply clock drift to them in floating point
    late = np.repeat(last, np.diff(block.first, append=len(common)))
    late -= common
    own_late: Int64Array = np.rint(late / (1.0 - clock.drift_ratio[domain])).astype(np.int64)
    own_late += own_ns
    return own_late


def comparable_instances(matches: CollectiveMatches, clock: ClockAlignment) -> NDArray[np.bool_]:
    """Mask of the instances whose last member is known among the ranks of the run.

    Every rank of the run that takes part in the group's collectives must be a member, as a missing
    one might have been the last. All members must be on comparable clocks.
    """
    if matches.count == 0:
        return np.zeros(0, np.bool_)
    return _has_all_seen(matches) & _on_one_clock(matches, clock)


def _has_all_seen(matches: CollectiveMatches) -> NDArray[np.bool_]:
    """Whether an instance has as many members as take part in any instance of its group."""
    size = np.diff(matches.offsets)
    message = np.isin(matches.kind, [CollectiveKind.SEND, CollectiveKind.RECV])
    # several messages in one kernel, between two ranks of a larger group
    message |= (matches.kind == CollectiveKind.SEND_RECV) & matches.complete & (size == 2)
    seen = _ranks_seen(matches, ~message)
    whole: NDArray[np.bool_] = np.where(message, size == 2, size == seen[matches.group])
    return whole


_MAX_PAIRS = 1 << 26
"""Up to this many pairs of a group and a rank have a table entry each; more are sorted."""


def _ranks_seen(matches: CollectiveMatches, counted: NDArray[np.bool_]) -> Int64Array:
    """Number of ranks that take part in the counted instances of each group."""
    count, most = int(matches.group.max()) + 1, int(matches.member_rank.max()) + 1
    ticked = np.zeros(count * most if count * most <= _MAX_PAIRS else 0, np.bool_)
    found: Int64Array = np.empty(0, np.int64)
    for low, high in blocks_of(matches.offsets):
        members = slice(int(matches.offsets[low]), int(matches.offsets[high]))
        pair = np.where(counted[low:high], matches.group[low:high].astype(np.int64) * most, ABSENT)
        pair = np.repeat(pair, np.diff(matches.offsets[low : high + 1]))
        known = pair >= 0
        pair += matches.member_rank[members]
        if not known.all():
            pair = pair[known]
        if len(ticked):
            ticked[pair] = True
        else:
            found = distinct(np.concatenate((found, distinct(pair))))
    seen: Int64Array = np.bincount(found // most, minlength=count)
    return ticked.reshape(count, most).sum(axis=1) if len(ticked) else seen


def _on_one_clock(matches: CollectiveMatches, clock: ClockAlignment) -> NDArray[np.bool_]:
    same = np.ones(matches.count, np.bool_)
    if (clock.component == clock.component[:1]).all():
        return same
    for low, high in blocks_of(matches.offsets):
        members = slice(int(matches.offsets[low]), int(matches.offsets[high]))
        component = clock.component[domain_of_ranks(clock, matches.member_rank[members])]
        first = matches.offsets[low:high] - matches.offsets[low]
        lowest = np.minimum.reduceat(component, first)
        same[low:high] = lowest == np.maximum.reduceat(component, first)
    return same
