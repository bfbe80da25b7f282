"""Members of matched collectives as flat columns over all ranks, for cross-rank analyzers.

Rows of the COLLECTIVES tables are numbered across all ranks, one rank after another. Per-row arrays
of the ranks, joined in the same way, are indexed by that number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from distprof.join import waits
from distprof.join.waits import blocks_of, index_type, joined, spans
from distprof.run.run import CollectiveMatches, Rank, Run
from distprof.run.tables import distinct
from distprof.run.topology import ProcessGroup
from distprof.schema import ABSENT, Int64Array
from distprof.sections.context import RankAnalysis
from distprof.terms import MESSAGES

_MANY = 4_000_000
"""Members processed at once: limits intermediate arrays to about 100 MB. Sums of fractions are
rounded block by block, so another value would change their last digit."""

_PAIR = 1 << 24  # More than any number of ranks


def places(matches: CollectiveMatches) -> Int64Array:
    """Ranks that exchange data in each instance: index of a group, negative for a pair of ranks."""
    place = matches.group.astype(np.int64)
    size = np.diff(matches.offsets)
    pairs = np.flatnonzero(np.isin(matches.kind, MESSAGES) & (size == 2))
    first = matches.offsets[:-1][pairs]
    ends = np.stack((matches.member_rank[first], matches.member_rank[first + 1])).astype(np.int64)
    place[pairs] = -1 - ends.min(axis=0) * _PAIR - ends.max(axis=0)
    return place


def ranks_at(place: int, groups: Sequence[ProcessGroup]) -> tuple[int, ...]:
    """Ranks of a number from :func:`places`."""
    return groups[place].ranks if place >= 0 else divmod(-1 - place, _PAIR)


def place_of(ranks: tuple[int, ...], groups: Sequence[ProcessGroup]) -> tuple[int, ...]:
    """All numbers of these ranks: of their groups, and of the pair if there are two."""
    pair = (-1 - ranks[0] * _PAIR - ranks[1],) if len(ranks) == 2 else ()
    return (*(i for i, group in enumerate(groups) if group.ranks == ranks), *pair)


def transfer_of(rank: Rank, wait_ends: Mapping[int, Int64Array]) -> Int64Array:
    """Time of each COLLECTIVES row of a rank after its last member started; ABSENT if unknown."""
    until = wait_ends[rank.rank]
    after = np.maximum(rank.collectives["end_ns"] - until, 0)
    return np.where(until == ABSENT, ABSENT, after).astype(np.int64)


class RowIndex(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers the COLLECTIVES rows of the analysed ranks."""

    ranks: tuple[Rank, ...]  # Ranks that were analysed, ascending.
    base: Int64Array  # int64, shape ``(len(ranks) + 1,)``: number of each rank's first row.
    # int64, shape ``(len(ranks),)``: that row in the rank's table. Rows before it, and rows after
    # the last numbered one, are left out.
    low: Int64Array

    @staticmethod
    def of(run: Run, analyses: Mapping[int, RankAnalysis]) -> RowIndex:
        """The rows of the ranks that have an analysis."""
        ranks = tuple(rank for rank in run.ranks if rank.rank in analyses)
        lengths = [len(rank.collectives) for rank in ranks]
        return RowIndex(
            ranks=ranks,
            base=np.concatenate(([0], np.cumsum(lengths))).astype(np.int64),
            low=np.zeros(len(ranks), dtype=np.int64),
        )

    def cut(self, low: Int64Array, high: Int64Array) -> RowIndex:
        """The same ranks with only the rows from ``low`` to below ``high`` of each table."""
        lengths = np.maximum(high - low, 0)
        base = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
        return RowIndex(ranks=self.ranks, base=base, low=low)

    def __len__(self) -> int:
        return int(self.base[-1])

    @property
    def rank_index(self) -> NDArray[np.int32]:
        """Position of each row's rank in ``ranks``."""
        return np.repeat(np.arange(len(self.ranks), dtype=np.int32), np.diff(self.base))

    def column(self, of: Callable[[Rank], NDArray[Any]]) -> NDArray[Any]:
        """A per-row array of all ranks, joined."""
        of_ranks = zip(self.ranks, self.low.tolist(), np.diff(self.base).tolist(), strict=True)
        return joined([of(rank)[low : low + length] for rank, low, length in of_ranks])

    def members(self, matches: CollectiveMatches) -> Members:
        """Members of the matched instances; members whose row has no number are left out."""
        highest = max((rank.rank for rank in self.ranks), default=-1)
        if len(matches.member_rank):
            highest = max(highest, int(matches.member_rank.max()))
        position = np.full(highest + 1, -1, dtype=np.int32)
        position[[rank.rank for rank in self.ranks]] = np.arange(len(self.ranks))
        rank_index = position[matches.member_rank]
        shift = (self.base[:-1] - self.low).astype(index_type(len(self)))
        is_whole = len(self) == sum(len(rank.collectives) for rank in self.ranks)
        if is_whole and (rank_index >= 0).all():
            row = np.empty(len(rank_index), shift.dtype)
            for span in spans(len(row)):
                row[span] = shift[rank_index[span]] + matches.member_row[span]
            return Members(row=row, rank_index=rank_index, offsets=matches.offsets)
        return self._known_members(matches, rank_index, shift)

    def _known_members(
        self, matches: CollectiveMatches, rank_index: NDArray[np.int32], shift: NDArray[Any]
    ) -> Members:
        """Members whose row has a number."""
        low, length = np.append(self.low, 0), np.append(np.diff(self.base), 0)
        offsets = np.zeros(matches.count + 1, np.int64)
        rows, indices = [np.empty(0, shift.dtype)], [np.empty(0, np.int32)]
        for first, last in blocks_of(matches.offsets):
            begin = matches.offsets[first : last + 1]
            part = slice(int(begin[0]), int(begin[-1]))
            rank, own = rank_index[part], matches.member_row[part]
            row = own - low[rank]
            known = (rank >= 0) & (row >= 0) & (row < length[rank])
            kept = np.concatenate(([0], np.cumsum(known)))
            offsets[first + 1 : last + 1] = offsets[first] + kept[begin[1:] - begin[0]]
            rows.append((shift[rank[known]] + own[known]).astype(shift.dtype))
            indices.append(rank[known])
        return Members(
            row=np.concatenate(rows), rank_index=np.concatenate(indices), offsets=offsets
        )


class Members(msgspec.Struct, frozen=True, kw_only=True):
    """Members of all instances, instance after instance."""

    row: NDArray[Any]  # Number of the member's row, int32 if all numbers fit, else int64.
    rank_index: NDArray[np.int32]  # int32, position of its rank among the analysed ranks.
    offsets: Int64Array  # int64, shape ``(instances + 1,)``; an instance may have no members left.

    @property
    def count(self) -> int:
        """Number of instances."""
        return len(self.offsets) - 1

    @property
    def first_row(self) -> Int64Array:
        """Row of each instance's first member; -1 for an instance without one."""
        has = np.diff(self.offsets) > 0
        first = np.full(self.count, -1, dtype=np.int64)
        first[has] = self.row[self.offsets[:-1][has]]
        return first


def by_size(offsets: Int64Array, at_once: int = _MANY) -> Iterator[tuple[Int64Array, Int64Array]]:
    """Segments of equal size together, as rows of a matrix.

    Yields segment numbers, shape ``(n,)``, and positions of their elements, shape ``(n, size)``.
    ``offsets`` is where each segment begins. A matrix has at most ``at_once`` elements, unless a
    single segment has more.
    """
    sizes = np.diff(offsets)
    for size in distinct(sizes[sizes > 0]).tolist():
        segments = np.flatnonzero(sizes == size)
        height = max(at_once // size, 1)
        for low in range(0, len(segments), height):
            chosen = segments[low : low + height]
            yield chosen, offsets[chosen][:, None] + np.arange(size, dtype=np.int64)


def segment_median(
    values: Int64Array, offsets: Int64Array, rows: NDArray[Any] | None = None
) -> Int64Array:
    """Median of each segment of ``values``, int64, rounded down; 0 for an empty segment.

    ``offsets`` is where each segment begins. ``rows`` is the index of the value of each element of
    the segments; None for the values in order.
    """
    result = np.zeros(len(offsets) - 1, dtype=np.int64)
    for segments, positions in by_size(offsets, waits.BLOCK):
        elements = values[positions if rows is None else rows[positions]]
        middle = np.median(elements, axis=1, overwrite_input=True)
        result[segments] = np.floor(middle).astype(np.int64)
    return result


def median_by_code(codes: NDArray[Any], values: Int64Array, num_codes: int) -> list[int | None]:
    """Median of the values of each code, rounded down; None for a code without values."""
    order = np.argsort(codes, kind="stable")
    bounds = np.searchsorted(codes[order], np.arange(num_codes + 1))
    ordered = values[order]
    return [
        int(np.median(ordered[low:high])) if high > low else None
        for low, high in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)
    ]
