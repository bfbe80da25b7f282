"""Pairing the operations of two ranks by their order, where nothing numbers them.

The shift of one sequence against the other is chosen first (:mod:`.shifts`); where operations of
either are missing in the other, the longest common subsequence near that shift decides.

Source: longest common subsequence by E. W. Myers, "An O(ND) Difference Algorithm and Its
Variations", Algorithmica 1, 1986, here with pairs allowed only where their times agree too.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from distprof.join.instances import NO_STEP
from distprof.join.shifts import MARGIN, Operations, compatible, most_frequent, typical_gap
from distprof.schema import Int64Array

__all__ = ["Clock", "Pairing", "pair"]

MAX_EDITS = 500  # differences after which two sequences are not called the same


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """The second clock minus the first, over time, and what a pair may be off."""

    reference_ns: int
    offset_ns: int
    drift_ratio: float
    tolerance_ns: float

    def expected(self, own_ns: Int64Array) -> Int64Array:
        """Where ends on the first clock lie on the second."""
        drift = self.drift_ratio * (own_ns - self.reference_ns)
        moved: Int64Array = own_ns + self.offset_ns + np.rint(drift).astype(np.int64)
        return moved

    def agrees(
        self, a: Operations, b: Operations, i: Int64Array, j: Int64Array
    ) -> NDArray[np.bool_]:
        """Whether two operations can have ended at the same time, where that tells."""
        off = np.abs(b.end_ns[j] - self.expected(a.end_ns[i]))
        possible: NDArray[np.bool_] = (off <= self.tolerance_ns) | ~a.is_timed[i] | ~b.is_timed[j]
        return possible

    def is_steady(self, a: Operations, b: Operations, i: Int64Array, j: Int64Array) -> bool:
        """Whether pairs agree throughout: one that does not is noise, two in a row are a loss."""
        off = ~self.agrees(a, b, i, j)
        return not (off[1:] & off[:-1]).any()


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairing:
    """Positions in two sequences that belong together, both ascending.

    Args:
        first: Positions in the one.
        second: Positions in the other.
        low: First position of ``first``'s sequence that the other's window covers.
        high: One past the last such position.
        clock: How the clocks relate.
    """

    first: Int64Array
    second: Int64Array
    low: int
    high: int
    clock: Clock


def pair(a: Operations, b: Operations, shift: int) -> Pairing:
    """Pair the operations of two ranks at and near a shift of one against the other.

    Args:
        a: The one.
        b: The other.
        shift: Position in ``b`` minus position in ``a``, at which some operations are compatible.
    """
    low, high = max(0, -shift), min(len(a), len(b) - shift)
    i = np.arange(low, high)
    fits = compatible(a, b, i, i + shift)
    clock = _fit_clock(a, b, i[fits], shift)
    if fits.all() and clock.is_steady(a, b, i, i + shift):
        return Pairing(first=i, second=i + shift, low=low, high=high, clock=clock)
    first, second = _common_subsequence(a, b, shift, clock)
    if 2 * len(first) < fits.sum():  # ends too far apart to judge by: keep what the order says
        first, second = i[fits], i[fits] + shift
    return Pairing(first=first, second=second, low=low, high=high, clock=clock)


def _fit_clock(a: Operations, b: Operations, i: Int64Array, shift: int) -> Clock:
    """Offset and drift from pairs of which a part may be wrong: after a lost operation, all are."""
    end = a.end_ns[i]
    difference = b.end_ns[i + shift] - end
    lag = max(1, len(i) // 8)  # long enough to see the drift, short enough to miss most losses
    drift = 0.0
    if len(i) > 8:
        elapsed = np.maximum(end[lag:] - end[:-lag], 1)
        drift = float(np.median((difference[lag:] - difference[:-lag]) / elapsed))
    reference = int(end[0])
    steady = difference - np.rint(drift * (end - reference)).astype(np.int64)
    return Clock(
        reference_ns=reference,
        offset_ns=most_frequent(steady),
        drift_ratio=drift,
        tolerance_ns=typical_gap(a.end_ns) / 2,
    )


def _common_subsequence(
    a: Operations, b: Operations, shift: int, clock: Clock
) -> tuple[Int64Array, Int64Array]:
    """Longest common subsequence near ``shift`` of operations that can have ended together."""
    low, high = max(0, -shift), min(len(a), len(b) - shift)
    start_a, start_b = max(0, low - MARGIN), max(0, low + shift - MARGIN)
    part_a = a.part(start_a, high + MARGIN)
    part_b = b.part(start_b, high + shift + MARGIN)
    pairs = np.array(_edit_trace(part_a, part_b, clock), dtype=np.int64).reshape(-1, 2)
    return pairs[:, 0] + start_a, pairs[:, 1] + start_b


def _edit_trace(a: Operations, b: Operations, clock: Clock) -> list[tuple[int, int]]:
    """Myers' greedy algorithm; gives up, with no pair, beyond MAX_EDITS differences."""
    token_a, token_b = a.token.tolist(), b.token.tolist()
    end_a, end_b = clock.expected(a.end_ns).tolist(), b.end_ns.tolist()
    step_a, step_b = a.step.tolist(), b.step.tolist()
    timed_a, timed_b = a.is_timed.tolist(), b.is_timed.tolist()
    tolerance = clock.tolerance_ns

    def same(i: int, j: int) -> bool:
        if token_a[i] != token_b[j]:
            return False
        if step_a[i] != step_b[j] and NO_STEP not in (step_a[i], step_b[j]):
            return False
        together = abs(end_b[j] - end_a[i]) <= tolerance
        return bool(together or not (timed_a[i] and timed_b[j]))

    reach = {1: 0}
    history: list[dict[int, int]] = []
    for edits in range(min(len(a) + len(b), MAX_EDITS) + 1):
        history.append(dict(reach))
        for diagonal in range(-edits, edits + 1, 2):
            down = diagonal == -edits or (
                diagonal != edits and reach[diagonal - 1] < reach[diagonal + 1]
            )
            i = reach[diagonal + 1] if down else reach[diagonal - 1] + 1
            j = i - diagonal
            while i < len(token_a) and j < len(token_b) and same(i, j):
                i, j = i + 1, j + 1
            reach[diagonal] = i
            if i >= len(token_a) and j >= len(token_b):
                return _walk_back(history, len(token_a), len(token_b))
    return []


def _walk_back(history: list[dict[int, int]], i: int, j: int) -> list[tuple[int, int]]:
    pairs = []
    for edits in range(len(history) - 1, -1, -1):
        reach = history[edits]
        diagonal = i - j
        down = diagonal == -edits or (
            diagonal != edits and reach[diagonal - 1] < reach[diagonal + 1]
        )
        before = diagonal + 1 if down else diagonal - 1
        start_i, start_j = reach[before], reach[before] - before
        while i > start_i and j > start_j:
            i, j = i - 1, j - 1
            pairs.append((i, j))
        i, j = start_i, start_j
    return pairs[::-1]
