"""Whether sequence numbers make sense in time, and what they tell of the clocks if they do.

A rank whose numbers are off by a whole period has partners of the right kind and bytes under every
number, only never the right ones. It shows in time: ends of ranks that share a clock are then a
period apart, or one group tells another offset of two clocks than the rest.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from distprof.ingest.clock_links import SEPARATE_NS, ClockLinks
from distprof.ingest.found import MESSAGES
from distprof.ingest.operations import TIMED, operations_of
from distprof.ingest.rows import Rows
from distprof.ingest.shifts import CLEAR, Expectation, best_shift, typical_gap
from distprof.schema import Int64Array

__all__ = ["Doubts", "check_numbers"]

_SAMPLES = 32  # instances looked at per group
_OVERRULES = 2 * CLEAR  # numbers are good evidence themselves


@dataclass(frozen=True, slots=True, kw_only=True)
class Doubts:
    """Groups whose numbers and times do not go together, with the ranks that show it.

    Args:
        refuted: Times show clearly that the numbers pair wrong operations.
        odd: Offsets of clocks differ from what other groups tell, but no other pairing is clear.
    """

    refuted: dict[int, set[int]]
    odd: dict[int, set[int]]


@dataclass(frozen=True, slots=True)
class _Link:
    """Median difference of ends of two ranks over collectives of equal number."""

    group: int
    first: int
    second: int
    offset_ns: float


def check_numbers(
    rows: Rows, order: Int64Array, first: Int64Array, keep: Int64Array, clocks: ClockLinks
) -> Doubts:
    """Compare what the ends of equally numbered collectives say of the clocks with itself.

    Args:
        rows: The rows of all ranks.
        order: Rows sorted by group and number.
        first: Where each instance begins in ``order``.
        keep: Instances to look at, by position in ``first``.
        clocks: Takes what is learnt.
    """
    doubts = Doubts(refuted={}, odd={})
    for link in _links(rows, order, first, keep):
        a, b = clocks.clock_of(link.first), clocks.clock_of(link.second)
        expected = clocks.expected(a, b)
        off = abs(link.offset_ns - expected.offset_ns)
        if not np.isinf(expected.usual_error_ns) and off > SEPARATE_NS:
            if _is_refuted(rows, link, off, clocks):
                doubts.refuted.setdefault(link.group, set()).update((link.first, link.second))
                continue
            if a == b:
                clocks.separate(link.second)
                b = clocks.clock_of(link.second)
            elif clocks.knows(a, b) and off > 10 * expected.usual_error_ns:
                doubts.odd.setdefault(link.group, set()).update((link.first, link.second))
        clocks.learn(a, b, link.offset_ns)
    return doubts


def _links(rows: Rows, order: Int64Array, first: Int64Array, keep: Int64Array) -> Iterator[_Link]:
    """Links of each group's ranks with the first rank of a sample of its instances."""
    timed = keep[np.isin(rows.kind[order[first[keep]]], TIMED)]
    chosen = _sample_per_group(rows.group[order[first[timed]]], timed)
    begin = first[chosen]
    sizes = np.append(first, len(order))[chosen + 1] - begin
    inside = np.repeat(np.cumsum(sizes) - sizes, sizes)
    member = order[np.arange(len(inside)) - inside + np.repeat(begin, sizes)]
    leader = np.repeat(order[begin], sizes)
    difference = rows.end_ns[member] - rows.end_ns[leader]
    group, one, other = rows.group[member], rows.rank[leader], rows.rank[member]
    by_link = np.lexsort((difference, other, one, group))
    by_link = by_link[one[by_link] != other[by_link]]
    if not len(by_link):
        return
    keys = np.stack((group[by_link], one[by_link], other[by_link]))
    starts = np.flatnonzero(np.append(True, (keys[:, 1:] != keys[:, :-1]).any(axis=0)))
    counts = np.diff(np.append(starts, len(by_link)))
    for start, count in zip(starts.tolist(), counts.tolist(), strict=True):
        median = difference[by_link[start + count // 2]]
        number, leading, following = keys[:, start].tolist()
        yield _Link(number, leading, following, float(median))


def _sample_per_group(group: NDArray[np.int32], instances: Int64Array) -> Int64Array:
    """Some instances of each group, evenly spread; ``group`` comes in runs."""
    if not len(group):
        return instances
    starts = np.flatnonzero(np.append(True, group[1:] != group[:-1]))
    counts = np.diff(np.append(starts, len(group)))
    parts = [
        start + np.unique(np.linspace(0, count - 1, min(count, _SAMPLES)).astype(np.int64))
        for start, count in zip(starts.tolist(), counts.tolist(), strict=True)
    ]
    return instances[np.concatenate(parts)]


def _is_refuted(rows: Rows, link: _Link, off_ns: float, clocks: ClockLinks) -> bool:
    """Whether the two ranks' operations clearly fit at another shift than the numbers say.

    What other groups tell of the clocks does not count here: their numbers may be the wrong ones.
    """
    parts = [_rows_of(rows, link.group, rank) for rank in (link.first, link.second)]
    a, b = operations_of(rows, parts)
    if off_ns < typical_gap(a.end_ns) / 2:
        return False  # no other shift is nearer
    _, in_a, in_b = np.intersect1d(rows.seq[parts[0]], rows.seq[parts[1]], return_indices=True)
    same = clocks.clock_of(link.first) == clocks.clock_of(link.second)
    expected = clocks.expected(*map(clocks.clock_of, (link.first, link.second)))
    choice = best_shift(a, b, expected if same else Expectation())
    return (
        choice is not None
        and choice.log_odds >= _OVERRULES
        and choice.shift not in set((in_b - in_a).tolist())
    )


def _rows_of(rows: Rows, group: int, rank: int) -> Int64Array:
    """Numbered rows of a rank in a group; rows are kept rank by rank."""
    low, high = np.searchsorted(rows.rank, np.array([rank, rank + 1], rows.rank.dtype))
    index = np.arange(low, high)
    numbered = (rows.group[index] == group) & (rows.seq[index] >= 0)
    own: Int64Array = index[numbered & ~np.isin(rows.kind[index], MESSAGES)]
    return own
