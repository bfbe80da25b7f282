"""Rows of many ranks in blocks, and the start of the last member of each matched collective.

Blocks are of a size that the allocator reuses.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from distprof.run.run import ClockAlignment, CollectiveMatches, Rank
from distprof.run.tables import distinct, order_of_codes
from distprof.schema import ABSENT, Bools, Int64Array
from distprof.terms import CollectiveKind

BLOCK = 1 << 20
"""Rows per block. The allocator keeps freed arrays of this size for reuse and returns larger ones
to the system."""

_MAX_TABLE = 1 << 24
"""Numbers below this are looked up in a table."""

_INT32 = np.iinfo(np.int32)
_Value = TypeVar("_Value", bound=np.generic)


def spans(length: int, size: int | None = None) -> Iterator[slice]:
    """Slices of ``size`` elements (default: a block) that cover ``length`` elements."""
    size = size or BLOCK
    for low in range(0, length, size):
        yield slice(low, min(low + size, length))


def blocks_of(offsets: Int64Array) -> Iterator[tuple[int, int]]:
    """Ranges of segments with at most a block of elements each; a larger segment comes alone."""
    low, count = 0, len(offsets) - 1
    while low < count:
        high = int(np.searchsorted(offsets, offsets[low] + BLOCK, side="right")) - 1
        high = min(max(high, low + 1), count)
        yield low, high
        low = high


def index_type(count: int) -> type[np.signedinteger[Any]]:
    """The integer type for positions among ``count`` rows: int32 if it suffices, else int64."""
    return np.int32 if count <= _INT32.max else np.int64


def joined(parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """The parts concatenated; if all are views of one repeated value, so is the result."""
    some = [part for part in parts if len(part)]
    if not some:
        return parts[0] if parts else np.empty(0, np.int64)
    if all(part.strides == (0,) and part[0] == some[0][0] for part in some):
        return np.broadcast_to(some[0][:1], (sum(map(len, some)),))
    return np.concatenate(some)


def looked_up(
    known: NDArray[Any], values: NDArray[_Value], numbers: NDArray[Any]
) -> NDArray[_Value]:
    """The value of each number; ``known`` holds the distinct numbers, ascending."""
    if len(known) == 0 or known[0] < 0 or known[-1] >= _MAX_TABLE:
        return values[np.searchsorted(known, numbers)]
    table = np.zeros(int(known[-1]) + 1, values.dtype)
    table[known] = values
    found: NDArray[_Value] = table[numbers]
    return found


def positions_by_code(
    codes: NDArray[Any], chosen: Bools | None = None, lookup: Int64Array | None = None
) -> list[NDArray[Any]]:
    """Positions of each code, ascending; takes linear time and usually four bytes per position.

    Codes are small non-negative integers, replaced by those in ``lookup``; only ``chosen`` ones
    count.
    """

    def of(span: slice) -> tuple[Int64Array, NDArray[Any]]:
        index = np.arange(span.start, span.stop)
        index = index if chosen is None else index[chosen[span]]
        own = codes[index]
        return index, own if lookup is None else lookup[own]

    count = int(codes.max(initial=-1) if lookup is None else lookup.max(initial=-1)) + 1
    sizes = np.zeros(count, np.int64)
    for span in spans(len(codes)):
        sizes += np.bincount(of(span)[1], minlength=count)
    order = np.empty(int(sizes.sum()), index_type(len(codes)))
    free = np.cumsum(sizes) - sizes
    for span in spans(len(codes)):
        index, own = of(span)
        taken, place = sorted_into(free, own)
        order[place] = index[taken]
    return np.split(order, free[:-1])


def sorted_into(free: Int64Array, codes: NDArray[Any]) -> tuple[Int64Array, Int64Array]:
    """Sort one block in a counting sort: positions in the order of codes, and the place of each."""
    some = np.bincount(codes, minlength=len(free))
    place = np.arange(len(codes)) + np.repeat(free - np.cumsum(some) + some, some)
    free += some
    return order_of_codes(codes, len(free)), place


def positions_of(ranks: Sequence[Rank], numbers: NDArray[Any]) -> Int64Array:
    """Position in ``ranks``, which ascend, of each rank number, all of which are in ``ranks``."""
    known = np.array([rank.rank for rank in ranks], dtype=np.int64)
    return looked_up(known, np.arange(len(known), dtype=np.int64), numbers)


class MemberBlocks:
    """Matched collectives, a few instances at a time, with columns of COLLECTIVES."""

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


def member_column(matches: CollectiveMatches, ranks: Sequence[Rank], column: str) -> Int64Array:
    """One int64 column of COLLECTIVES, not a category, for every member, in their order."""
    values = np.empty(len(matches.member_rank), np.int64)
    for block in MemberBlocks(matches, ranks, [column]):
        values[block.members] = block.columns[0]
    return values


def timed_instances(matches: CollectiveMatches, ranks: Sequence[Rank]) -> Bools:
    """Whether the start and end of execution are known for every member of an instance."""
    everyone = np.ones(matches.count, np.bool_)
    if all(rank.collectives["is_timed"].all() for rank in ranks):
        return everyone
    for block in MemberBlocks(matches, ranks, ["is_timed"]):
        everyone[block.instances] = np.logical_and.reduceat(block.columns[0], block.first)
    return everyone


def domain_of_ranks(clock: ClockAlignment, numbers: NDArray[Any]) -> Int64Array:
    """Clock domain of each rank number; ValueError if a rank is in no domain."""
    known = distinct(numbers).astype(np.int64)
    domains = np.array([clock.domain_of(rank) for rank in known.tolist()], dtype=np.int64)
    return looked_up(known, domains, numbers)


def member_to_common(clock: ClockAlignment, domain: Int64Array, own_ns: Int64Array) -> Int64Array:
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

    The time before it is the member's wait, the time after it the transfer (formula sheet,
    "Measured from traces"). int64 ns on the rank's own clock, never before the row's own start;
    ABSENT without a comparable instance (:func:`comparable_instances`) in which no member can
    finish before all have started. If the clock error exceeds the transfer time, it can be after
    the row's end.
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


def comparable_instances(matches: CollectiveMatches, clock: ClockAlignment) -> Bools:
    """Mask of the instances whose last member is known among the ranks of the run.

    Every rank of the run that takes part in the group's collectives is a member, on comparable
    clocks.
    """
    if matches.count == 0:
        return np.zeros(0, np.bool_)
    size = np.diff(matches.offsets)
    message = np.isin(matches.kind, [CollectiveKind.SEND, CollectiveKind.RECV])
    # several messages in one kernel, between two ranks of a larger group
    message |= (matches.kind == CollectiveKind.SEND_RECV) & matches.complete & (size == 2)
    seen = _ranks_seen(matches, ~message)
    whole = np.where(message, size == 2, size == seen[matches.group])
    comparable: Bools = whole & _on_one_clock(matches, clock)
    return comparable


_MAX_PAIRS = 1 << 26
"""Up to this many pairs of a group and a rank have a table entry each; more are sorted."""


def _ranks_seen(matches: CollectiveMatches, counted: Bools) -> Int64Array:
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


def _on_one_clock(matches: CollectiveMatches, clock: ClockAlignment) -> Bools:
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
