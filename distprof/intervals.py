"""Interval algebra on int64 nanoseconds: the arithmetic behind every time that distprof reports.

Intervals are half-open ``[start, end)``, stored as two arrays. A *set* is sorted and disjoint, and
no two members touch; :func:`union` makes one. All functions are linear in the number of intervals,
except for sorting, which is skipped for sorted input.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from distprof.schema import Bools, Int64Array


class Intervals(NamedTuple):
    """Half-open intervals as two int64 arrays of equal shape ``(n,)``, in nanoseconds."""

    start: Int64Array
    end: Int64Array

    @property
    def size(self) -> int:
        """Number of intervals."""
        return len(self.start)

    @staticmethod
    def of(*pairs: tuple[int, int]) -> Intervals:
        """Intervals from pairs, for example ``Intervals.of((0, 5), (7, 9))``."""
        array = np.array(pairs, dtype=np.int64).reshape(-1, 2)
        return Intervals(array[:, 0].copy(), array[:, 1].copy())


EMPTY = Intervals(np.empty(0, np.int64), np.empty(0, np.int64))


def union(intervals: Intervals, *, overwrite: bool = False) -> Intervals:
    """The set that covers the same time as ``intervals``; empty and negative ones are ignored.

    Intervals may be in any order and overlap. ``overwrite`` lets the arrays be sorted in place,
    which saves memory and time; the caller must not use them afterwards.
    """
    start, end = intervals
    keep = end > start
    if not keep.all():
        start, end = start[keep], end[keep]
        overwrite = True
    if len(start) == 0:
        return EMPTY
    if (start[1:] > end[:-1]).all():
        return Intervals(start, end)
    # Starts and ends are sorted separately and need not stay paired: a member of the union begins
    # where as many intervals have ended as have started before.
    return _joined(_ascending(start, overwrite), _ascending(end, overwrite))


def _ascending(times: Int64Array, overwrite: bool) -> Int64Array:
    """Times sorted by timsort, because traces are nearly sorted already."""
    if not (times[1:] < times[:-1]).any():
        return times
    if not overwrite:
        return np.sort(times, kind="stable")
    times.sort(kind="stable")
    return times


def _joined(start: Int64Array, end: Int64Array) -> Intervals:
    """The set from sorted starts and ends, at least one of each."""
    (breaks,) = (start[1:] > end[:-1]).nonzero()
    first = np.empty(len(breaks) + 1, dtype=np.int64)
    last = np.empty(len(breaks) + 1, dtype=np.int64)
    first[0], last[-1] = start[0], end[-1]
    np.take(start[1:], breaks, out=first[1:], mode="clip")  # clip: written without a buffer
    np.take(end[:-1], breaks, out=last[:-1], mode="clip")
    return Intervals(first, last)


def total(disjoint: Intervals) -> int:
    """The time that a set covers, in ns."""
    return int((disjoint.end - disjoint.start).sum())


def union_where(intervals: Intervals, mask: Bools) -> Intervals:
    """The set that the chosen intervals cover."""
    return union(Intervals(intervals.start[mask], intervals.end[mask]))


def covered_ns(windows: Intervals, disjoint: Intervals) -> int:
    """The time that a set covers inside the windows, in ns."""
    return int(covered(windows, disjoint).sum())


def intersect(a: Intervals, b: Intervals) -> Intervals:
    """The set covered by both sets ``a`` and ``b``."""
    if a.size == 0 or b.size == 0:
        return EMPTY
    if a.size < b.size:
        a, b = b, a  # search for the smaller set in the larger one
    first = a.end.searchsorted(b.start, side="right")
    last = a.start.searchsorted(b.end, side="left")
    hits = np.maximum(last - first, 0)
    which_b = np.arange(b.size).repeat(hits)
    which_a = (first - hits.cumsum() + hits).take(which_b)
    which_a += np.arange(len(which_b))
    start, end = a.start.take(which_a), a.end.take(which_a)
    np.maximum(start, b.start.take(which_b), out=start)
    np.minimum(end, b.end.take(which_b), out=end)
    return Intervals(start, end)


def complement(disjoint: Intervals, low: int, high: int) -> Intervals:
    """The part of ``[low, high)`` outside the set ``disjoint``."""
    inside = clip(disjoint, low, high)
    start = np.concatenate(([low], inside.end)).astype(np.int64)
    end = np.concatenate((inside.start, [high])).astype(np.int64)
    keep = end > start
    return Intervals(start[keep], end[keep])


def subtract(a: Intervals, b: Intervals) -> Intervals:
    """The set covered by set ``a`` and not by set ``b``."""
    if a.size == 0 or b.size == 0:
        return a
    parts = (
        clip(a, int(a.start[0]), int(b.start[0])),
        intersect(a, Intervals(b.end[:-1], b.start[1:])),
        clip(a, int(b.end[-1]), int(a.end[-1])),
    )
    return Intervals(*map(np.concatenate, zip(*parts, strict=True)))


def clip(disjoint: Intervals, low: int, high: int) -> Intervals:
    """The part of a set inside ``[low, high)``; empty if ``high`` is not after ``low``."""
    if high <= low:
        return EMPTY
    first = int(disjoint.end.searchsorted(low, side="right"))
    last = int(disjoint.start.searchsorted(high, side="left"))
    if last <= first:
        return EMPTY
    start, end = disjoint.start[first:last].copy(), disjoint.end[first:last].copy()
    start[0] = max(start[0], low)
    end[-1] = min(end[-1], high)
    return Intervals(start, end)


def covered(queries: Intervals, disjoint: Intervals) -> Int64Array:
    """The time of each query interval that the set covers, int64 ns, shape ``(queries.size,)``.

    Queries may be in any order and overlap; one that ends before it starts counts 0.
    """
    if disjoint.size == 0 or queries.size == 0:
        return np.zeros(queries.size, dtype=np.int64)
    lengths = disjoint.end - disjoint.start
    until = lengths.cumsum()
    result = _covered_until(queries.end, disjoint, lengths, until)
    result -= _covered_until(queries.start, disjoint, lengths, until)
    return np.maximum(result, 0, out=result)


def index_of(moments: Int64Array, disjoint: Intervals) -> Int64Array:
    """Index of the interval that holds each moment; -1 if none does."""
    if disjoint.size == 0:
        return np.full(len(moments), -1, dtype=np.int64)
    at = np.searchsorted(disjoint.start, moments, side="right") - 1
    return np.where(moments < disjoint.end[np.maximum(at, 0)], at, -1)


def reach(disjoint: Intervals, amounts: Int64Array) -> Int64Array:
    """The times at which a non-empty set has covered each of ``amounts``, counted from its start.

    Amounts are int64 ns, 0 to the set's total. If one is reached at the end of a member, the result
    is the start of the next member, if there is one.
    """
    until: Int64Array = np.cumsum(disjoint.end - disjoint.start)
    index = np.minimum(np.searchsorted(until, amounts, side="right"), disjoint.size - 1)
    remaining: Int64Array = until[index] - amounts
    return disjoint.end[index] - remaining


def _covered_until(
    times: Int64Array, disjoint: Intervals, lengths: Int64Array, until: Int64Array
) -> Int64Array:
    """Time that the set covers before each of ``times``; ``until`` is the cumulative length."""
    index = disjoint.start.searchsorted(times, side="right")
    index -= 1
    before = index < 0
    np.maximum(index, 0, out=index)
    after = disjoint.end.take(index)
    after -= times
    np.maximum(after, 0, out=after)
    np.minimum(after, lengths.take(index), out=after)
    result = until.take(index)
    result -= after
    result[before] = 0
    return result


def outermost(start: Int64Array, end: Int64Array) -> Int64Array:
    """Indices, sorted by start, of the intervals that do not start inside an earlier one."""
    order = np.lexsort((-end, start))
    if len(order) == 0:
        return order
    until = np.maximum.accumulate(end[order])
    first = np.concatenate(([True], start[order][1:] >= until[:-1]))
    return order[first]
