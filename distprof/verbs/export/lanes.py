"""Slices that overlap in part cannot share a track: which sub-track each one goes to.

On a track of Perfetto slices are opened and closed like brackets. Two slices are fine one after
another or one inside the other; two that overlap in part are not. Kernels on a stream and calls of
a thread nearly always are fine, so that is checked for all slices at once, and only a track that
fails is walked slice by slice.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from distprof.intervals import Intervals
from distprof.schema import Int64Array

__all__ = ["bracket_order", "lanes_of"]


def lanes_of(slices: Intervals) -> NDArray[np.int64]:
    """For each slice the number of its lane, from 0; slices of one lane nest properly.

    Args:
        slices: In any order; each starts no later than it ends.
    """
    lanes = np.zeros(slices.size, np.int64)
    order = _outer_first(slices)
    if _nests(slices, order):
        return lanes
    open_ends: list[list[int]] = []
    starts, ends = slices.start[order].tolist(), slices.end[order].tolist()
    chosen = [_place(open_ends, start, end) for start, end in zip(starts, ends, strict=True)]
    lanes[order] = chosen
    return lanes


def _place(lanes: list[list[int]], start: int, end: int) -> int:
    """The first lane in which the slice fits; ``lanes`` holds the ends of open slices of each."""
    for number, ends in enumerate(lanes):
        while ends and ends[-1] <= start:
            ends.pop()
        if not ends or end <= ends[-1]:
            ends.append(end)
            return number
    lanes.append([end])
    return len(lanes) - 1


def bracket_order(slices: Intervals) -> Int64Array:
    """The place of every bracket, the opening ones of all slices first, then the closing ones.

    At one moment slices close before others open, an inner one closes before its outer one, an
    outer one opens before its inner one, and a slice without length closes at once.

    Args:
        slices: All in one lane, in any order.
    """
    size = slices.size
    turn = np.empty(size, np.int64)
    turn[_outer_first(slices)] = np.arange(size)
    empty = slices.start == slices.end
    time = np.concatenate((slices.start, slices.end))
    phase = np.concatenate((np.where(empty, 2, 1), np.where(empty, 2, 0)))
    within = np.concatenate((2 * turn, np.where(empty, 2 * turn + 1, -turn)))
    place = np.empty(2 * size, np.int64)
    place[np.lexsort((within, phase, time))] = np.arange(2 * size)
    return place


def _outer_first(slices: Intervals) -> Int64Array:
    order: Int64Array = np.lexsort((-slices.end, slices.start))
    return order


def _nests(slices: Intervals, order: Int64Array) -> bool:
    """Whether no two slices overlap in part."""
    start, end = slices.start[order], slices.end[order]
    if (start[1:] >= end[:-1]).all():
        return True
    place = bracket_order(Intervals(start, end))
    size = slices.size
    step = np.empty(2 * size, np.int64)
    step[place[:size]], step[place[size:]] = 1, -1
    depth = np.cumsum(step)
    opened, closed = depth[place[:size]], depth[place[size:]] + 1
    # at one depth brackets open and close alternately: the k-th that opens, the k-th that closes
    of_open = np.lexsort((place[:size], opened))
    of_close = np.lexsort((place[size:], closed))
    return bool((of_open == of_close).all())
