"""What is computed beside a collective: while it begins, and on its own stream."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from distprof.intervals import Intervals, covered
from distprof.run.codes import encode
from distprof.run.tables import RankTables, intervals_of
from distprof.schema import ABSENT, Table
from distprof.terms import ActivityKind

__all__ = ["among_kernels", "begins_beside"]

BEGINNING_NS = 20_000
"""A kernel ends and the next one starts within less."""

_LEAST_SHARE = 0.2
"""Streams of copies and of reductions beside communication compute less than this."""


def begins_beside(collectives: Table, computation: Intervals) -> NDArray[np.bool_]:
    """For each row, whether computation covers most of its first 20 µs.

    Something that was asked for ahead begins while what was asked for before is computed; something
    that is needed at once begins when the computation before it has ended.
    """
    start, end = intervals_of(collectives)
    beginning = Intervals(start, np.minimum(end, start + BEGINNING_NS))
    length = beginning.end - beginning.start
    beside: NDArray[np.bool_] = (2 * covered(beginning, computation) >= length) & (length > 0)
    return beside


def among_kernels(tables: RankTables, *, is_cpu: bool) -> NDArray[np.bool_]:
    """For each row of COLLECTIVES, whether its stream holds a fifth of all computation or more.

    Work of one stream follows in order: a collective there hides behind nothing. Empty on a CPU,
    whose threads are no streams.
    """
    if is_cpu:
        return np.empty(0, np.bool_)
    rows = tables.activity["kind"] == ActivityKind.COMPUTATION
    start, end = intervals_of(tables.activity)
    streams, which = encode(tables.activity["stream"][rows])
    busy = np.bincount(which, weights=(end - start)[rows], minlength=len(streams))
    main = streams[(busy >= _LEAST_SHARE * busy.sum()) & (busy > 0) & (streams != ABSENT)]
    among: NDArray[np.bool_] = np.isin(tables.collectives["stream"], main)
    return among
