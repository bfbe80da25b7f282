"""Which collectives cut the time of peers into sections that can be compared.

Peers that run the same program issue the same collectives, but those of different streams may
interleave differently: a gradient reduction starts before or after the next tensor-parallel
collective. Then only classes of collectives that all peers issue in the same order cut sections,
and classes with the most collectives are tried first.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from distprof.schema import Int64Array

MAX_CLASSES = 8
"""Number of classes that are tried; the others are too rare to cut much."""


def common_cuts(
    program: Int64Array,
    peers: Sequence[Sequence[int]],
    low: Int64Array,
    high: Int64Array,
) -> NDArray[np.bool_]:
    """Mask of the collectives that peers issue in the same order in their window.

    Args:
        program: Class of each collective, in order of rank and start.
        peers: Positions of ranks to compare, by group.
        low: Shape ``(P, W)``, the first collective of each rank's window.
        high: Shape ``(P, W)``, the end of the window.
    """
    result = np.zeros(len(program), dtype=np.bool_)
    for group in peers:
        for window in range(low.shape[1]):
            rows = [slice(low[rank, window], high[rank, window]) for rank in group]
            programs = [program[row] for row in rows]
            kept = _common(programs)
            for row, of_rank in zip(rows, programs, strict=True):
                result[row] = True if kept is None else np.isin(of_rank, kept)
    return result


def _common(programs: Sequence[Int64Array]) -> list[int] | None:
    """Classes that are issued in the same order; None for all."""
    if _are_equal(programs):
        return None
    classes, count = np.unique(programs[0], return_counts=True)
    kept: list[int] = []
    for candidate in classes[np.argsort(-count, kind="stable")][:MAX_CLASSES].tolist():
        tried = [*kept, candidate]
        if _are_equal([program[np.isin(program, tried)] for program in programs]):
            kept = tried
    return kept


def _are_equal(programs: Sequence[Int64Array]) -> bool:
    return all(np.array_equal(programs[0], program) for program in programs[1:])
