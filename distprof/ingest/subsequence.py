"""Pairing the operations of two ranks by their order, where nothing numbers them.

Training repeats itself, so that a sequence fits its partner at many shifts. Which one is right
shows in time: the two ends of a collective differ by the clocks' offset and little else, so at the
right shift the difference of ends hardly changes from one pair to the next; at a wrong one it
changes by as much as one step differs from another. Step numbers, where both ranks have them, say
it outright.

Source: longest common subsequence by E. W. Myers, "An O(ND) Difference Algorithm and Its
Variations", Algorithmica 1, 1986, here with pairs allowed only where their times agree too.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from distprof.ingest.rows import NO_STEP
from distprof.schema import Int64Array
from distprof.units import NS_PER_MS, NS_PER_S

__all__ = ["Operations", "Pairing", "pair"]

MARGIN = 64  # shifts tried on either side of where windows, steps and clocks suggest one
SAMPLES = 512  # pairs looked at per shift
MIN_EXACT = 8  # pairs that hardly agree by chance
MIN_OVERLAP_RATIO = 0.3  # of the shorter sequence: shorter overlaps fit by chance
CLOSE_RATIO = 0.75  # of the best agreement: the steadiest of these is taken
USUAL_CLOCK_OFFSET_NS = NS_PER_MS
MAX_CLOCK_OFFSET_NS = NS_PER_S  # hosts kept by a time daemon differ by milliseconds
MAX_EDITS = 500  # differences after which two sequences are not called the same


@dataclass(frozen=True, slots=True, kw_only=True)
class Operations:
    """What one rank did, in order.

    Args:
        token: int64, equal for operations that could be the same.
        end_ns: int64, ends on the rank's own clock.
        step: int64, step number or NO_STEP.
        is_timed: bool, whether the operation ends on both ranks at once, so that its end tells.
        has_epoch: Whether the clock counts since the epoch.
    """

    token: Int64Array
    end_ns: Int64Array
    step: Int64Array
    is_timed: NDArray[np.bool_]
    has_epoch: bool

    def __len__(self) -> int:
        return len(self.token)

    def part(self, low: int, high: int) -> Operations:
        """The operations at positions ``low`` to ``high``."""
        return Operations(
            token=self.token[low:high],
            end_ns=self.end_ns[low:high],
            step=self.step[low:high],
            is_timed=self.is_timed[low:high],
            has_epoch=self.has_epoch,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairing:
    """Positions in two sequences that belong together, both ascending.

    Args:
        first: Positions in the one.
        second: Positions in the other.
        low: First position of ``first``'s sequence that the other's window covers.
        high: One past the last such position.
    """

    first: NDArray[np.int64]
    second: NDArray[np.int64]
    low: int
    high: int


def pair(a: Operations, b: Operations) -> Pairing | None:
    """Pair the operations of two ranks.

    Returns:
        None where no shift of one against the other makes sense.
    """
    best = _best_shift(a, b)
    if best is None:
        return None
    shift = best.shift
    low, high = max(0, -shift), min(len(a), len(b) - shift)
    i = np.arange(low, high)
    fits = _compatible(a, b, i, i + shift)
    clock = _fit_clock(a, b, i[fits], shift)
    if fits.all() and clock.is_steady(a, b, i, i + shift):
        return Pairing(first=i, second=i + shift, low=low, high=high)
    first, second = _common_subsequence(a, b, shift, clock)
    if 2 * len(first) < fits.sum():  # ends too far apart to judge by: keep what the order says
        first, second = i[fits], i[fits] + shift
    return Pairing(first=first, second=second, low=low, high=high)


def _compatible(
    a: Operations, b: Operations, i: NDArray[np.int64], j: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Whether two operations could be one: same token, and no two known steps that differ."""
    step_a, step_b = a.step[i], b.step[j]
    same_step = (step_a == step_b) | (step_a == NO_STEP) | (step_b == NO_STEP)
    could: NDArray[np.bool_] = (a.token[i] == b.token[j]) & same_step
    return could


@dataclass(frozen=True, slots=True)
class _Fit:
    """How well a shift fits.

    Args:
        shift: Position in the second sequence minus position in the first.
        count: Compatible pairs.
        num_tried: Pairs looked at.
        wobble_ns: Typical change of the difference of ends from pair to pair.
        offset_ns: Median difference of ends.
    """

    shift: int
    count: int
    num_tried: int
    wobble_ns: float
    offset_ns: float

    @property
    def agreement(self) -> float:
        """Share of compatible pairs; short overlaps agree by chance, hence two against each."""
        return self.count / (self.num_tried + 2)

    @property
    def is_exact(self) -> bool:
        """Whether all of a number of pairs are compatible."""
        return self.count == self.num_tried >= MIN_EXACT

    def surprise(self, steadiest: _Fit, has_epoch: bool) -> float:
        """How unlikely this fit is: minus the logarithm of a likelihood and of a prior.

        The likelihood of a standard deviation falls with the power of the number of values;
        neighbouring changes share an end, so that half of them count. Offsets of clocks that
        are kept by a time daemon are around a millisecond, now and then far more.
        """
        if not np.isfinite(self.wobble_ns):
            return 0.0
        times = max(self.wobble_ns, 1.0) / max(steadiest.wobble_ns, 1.0)
        unsteady = min(self.count, steadiest.count) / 2 * float(np.log(times))
        far = float(np.log1p((self.offset_ns / USUAL_CLOCK_OFFSET_NS) ** 2)) if has_epoch else 0.0
        return round(unsteady + far, 6)


def _best_shift(a: Operations, b: Operations) -> _Fit | None:
    if not len(a) or not len(b):
        return None
    needed = max(1, int(MIN_OVERLAP_RATIO * min(len(a), len(b))))
    fits = [fit for shift in _shifts(a, b, needed) if (fit := _fit(a, b, shift)) is not None]
    fits = [fit for fit in fits if _plausible(a, b, fit)]
    if not fits:
        return None
    best = max(fit.agreement for fit in fits)
    fits = [fit for fit in fits if fit.agreement >= CLOSE_RATIO * best]
    fits = [fit for fit in fits if fit.is_exact] or fits
    fits = [fit for fit in fits if np.isfinite(fit.wobble_ns)] or fits
    steadiest = min(fits, key=lambda fit: fit.wobble_ns)
    has_epoch = a.has_epoch and b.has_epoch
    return min(fits, key=lambda fit: (fit.surprise(steadiest, has_epoch), abs(fit.offset_ns)))


def _shifts(a: Operations, b: Operations, needed: int) -> list[int]:
    """Shifts worth trying: around equal starts, equal ends, equal times and equal steps."""
    extra = len(b) - len(a)
    ranges = [(min(0, extra), max(0, extra))]
    by_time = int(np.median(np.searchsorted(np.sort(b.end_ns), a.end_ns) - np.arange(len(a))))
    ranges.append((by_time, by_time))
    common, in_a, in_b = np.intersect1d(a.step, b.step, return_indices=True)
    known = common != NO_STEP
    by_step = (in_b - in_a)[known]
    if len(by_step):
        ranges.append((int(by_step.min()), int(by_step.max())))
    tried = {shift for low, high in ranges for shift in range(low - MARGIN, high + MARGIN + 1)}
    return sorted(s for s in tried if min(len(a), len(b) - s) - max(0, -s) >= needed)


def _fit(a: Operations, b: Operations, shift: int) -> _Fit | None:
    low, high = max(0, -shift), min(len(a), len(b) - shift)
    # a contiguous run in the middle: neighbours are needed to see the difference of ends change
    middle = max(0, (high - low - SAMPLES) // 2)
    i = np.arange(low + middle, min(high, low + middle + SAMPLES))
    num_tried = len(i)
    ok = _compatible(a, b, i, i + shift)
    i = i[ok]
    if len(i) == 0:
        return None
    difference = b.end_ns[i + shift] - a.end_ns[i]
    # two or three ends say nothing about steadiness
    wobble = _typical_size(np.diff(difference)) if len(i) > 3 else np.inf
    return _Fit(shift, len(i), num_tried, wobble, float(np.median(difference)))


def _typical_size(values: Int64Array) -> float:
    """Mean absolute value; what is three times the median counts as that much."""
    sizes = np.abs(values).astype(np.float64)
    return float(np.minimum(sizes, 3 * np.median(sizes)).mean())


def _plausible(a: Operations, b: Operations, fit: _Fit) -> bool:
    """Whether the clock offset that a shift implies can be believed."""
    if not (a.has_epoch and b.has_epoch):
        return True
    steps_agree = len(np.intersect1d(a.step[a.step != NO_STEP], b.step[b.step != NO_STEP])) > 0
    return steps_agree or abs(fit.offset_ns) <= MAX_CLOCK_OFFSET_NS


@dataclass(frozen=True, slots=True, kw_only=True)
class _Clock:
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
        self, a: Operations, b: Operations, i: NDArray[np.int64], j: NDArray[np.int64]
    ) -> NDArray[np.bool_]:
        """Whether two operations can have ended at the same time, where that tells."""
        off = np.abs(b.end_ns[j] - self.expected(a.end_ns[i]))
        possible: NDArray[np.bool_] = (off <= self.tolerance_ns) | ~a.is_timed[i] | ~b.is_timed[j]
        return possible

    def is_steady(
        self, a: Operations, b: Operations, i: NDArray[np.int64], j: NDArray[np.int64]
    ) -> bool:
        """Whether pairs agree throughout: one that does not is noise, two in a row are a loss."""
        off = ~self.agrees(a, b, i, j)
        return not (off[1:] & off[:-1]).any()


def _fit_clock(a: Operations, b: Operations, i: NDArray[np.int64], shift: int) -> _Clock:
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
    return _Clock(
        reference_ns=reference,
        offset_ns=_most_frequent(steady),
        drift_ratio=drift,
        tolerance_ns=_typical_gap(a.end_ns) / 2,
    )


def _most_frequent(differences: Int64Array) -> int:
    """The middle of the narrowest stretch that holds a third of all values."""
    ordered = np.sort(differences)
    width = max(1, len(ordered) // 3)
    if len(ordered) <= width:
        return int(np.median(ordered))
    spread = ordered[width:] - ordered[:-width]
    start = int(np.argmin(spread))
    return int(ordered[start + width // 2])


def _typical_gap(end_ns: Int64Array) -> int:
    gaps = np.diff(np.sort(end_ns))
    return int(np.median(gaps)) if len(gaps) else NS_PER_S


def _common_subsequence(
    a: Operations, b: Operations, shift: int, clock: _Clock
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Longest common subsequence near ``shift`` of operations that can have ended together."""
    low, high = max(0, -shift), min(len(a), len(b) - shift)
    start_a, start_b = max(0, low - MARGIN), max(0, low + shift - MARGIN)
    part_a = a.part(start_a, high + MARGIN)
    part_b = b.part(start_b, high + shift + MARGIN)
    pairs = np.array(_edit_trace(part_a, part_b, clock), dtype=np.int64).reshape(-1, 2)
    return pairs[:, 0] + start_a, pairs[:, 1] + start_b


def _edit_trace(a: Operations, b: Operations, clock: _Clock) -> list[tuple[int, int]]:
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
