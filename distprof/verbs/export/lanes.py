"""Assigns slices to lanes, because slices that partly overlap cannot share a track.

Slices on a Perfetto track open and close like brackets. Two slices may follow or contain each
other, but must not partly overlap. Kernels on a stream and calls of a thread almost never do. All
slices are therefore checked at once, and only a track that fails is processed slice by slice.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from distprof.intervals import Intervals
from distprof.schema import Int64Array


def lanes_of(slices: Intervals) -> NDArray[np.int64]:
    """The lane of each slice, from 0; slices in one lane nest properly."""
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
    """The first lane in which the slice fits; ``lanes`` holds the ends of the open slices."""
    for number, ends in enumerate(lanes):
        while ends and ends[-1] <= start:
            ends.pop()
        if not ends or end <= ends[-1]:
            ends.append(end)
            return number
    lanes.append([end])
    return len(lanes) - 1


def bracket_order(slices: Intervals) -> Int64Array:
    """Position of every bracket: the opening brackets of all slices, then the closing ones.

    At the same time, slices close before others open, inner slices close before outer ones, outer
    slices open before inner ones, and an empty slice closes right after it opens.
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
    """Whether no two slices partly overlap."""
    start, end = slices.start[order], slices.end[order]
    if (start[1:] >= end[:-1]).all():
        return True
    place = bracket_order(Intervals(start, end))
    size = slices.size
    step = np.empty(2 * size, np.int64)
    step[place[:size]], step[place[size:]] = 1, -1
    depth = np.cumsum(step)
    opened, closed = depth[place[:size]], depth[place[size:]] + 1
    # Brackets of one depth open and close alternately, so the k-th closing one matches the k-th
    # opening one
    of_open = np.lexsort((place[:size], opened))
    of_close = np.lexsort((place[size:], closed))
    return bool((of_open == of_close).all())
