"""Find the shift between the operation sequences of two ranks, and the confidence in it.

Training is repetitive, so one sequence fits the other at many shifts. The two ends of a collective
differ by little more than the clock offset, so at the right shift the difference of ends hardly
changes from one pair to the next. If both ranks number their steps, the numbers decide.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from distprof.join.instances import MESSAGES, NO_STEP, SAME_BYTES, Rows
from distprof.join.waits import spans
from distprof.schema import ABSENT, Bools, Floats, Int64Array
from distprof.terms import CollectiveKind
from distprof.units import NS_PER_MS, NS_PER_S, NS_PER_US

SAMPLES = 512  # pairs compared per shift
TIMED = [kind for kind in CollectiveKind if kind.is_symmetric]


class Operations(msgspec.Struct, frozen=True, kw_only=True):
    """Operations of one rank, in order."""

    token: Int64Array  # int64, equal for operations that could be the same.
    end_ns: Int64Array  # int64, ends on the rank's own clock.
    step: Int64Array  # int64, step number or NO_STEP.
    # bool, whether the operation ends on both ranks at once, so its end is evidence.
    is_timed: Bools

    def __len__(self) -> int:
        return len(self.token)

    def part(self, low: int, high: int) -> Operations:
        """The operations at positions ``low`` to ``high``."""
        return Operations(
            token=self.token[low:high],
            end_ns=self.end_ns[low:high],
            step=self.step[low:high],
            is_timed=self.is_timed[low:high],
        )


def compatible(a: Operations, b: Operations, i: Int64Array, j: Int64Array) -> Bools:
    """Whether two operations could be one: equal tokens, and no two known steps that differ."""
    step_a, step_b = a.step[i], b.step[j]
    same_step = (step_a == step_b) | (step_a == NO_STEP) | (step_b == NO_STEP)
    could: Bools = (a.token[i] == b.token[j]) & same_step
    return could


def middle_of_overlap(a: Operations, b: Operations, shift: int) -> Int64Array:
    """Consecutive positions in the middle of the overlap, at most ``SAMPLES``."""
    low, high = max(0, -shift), min(len(a), len(b) - shift)
    first = low + max(0, (high - low - SAMPLES) // 2)
    return np.arange(first, min(high, first + SAMPLES))


def operations_of(rows: Rows, parts: Sequence[Int64Array]) -> list[Operations]:
    """The operations of several ranks, with comparable tokens; ``parts`` are each rank's rows."""
    # a number per kind and element type, and per bytes for kinds whose members report the same
    index = np.concatenate(parts)
    kind = rows.kind[index].astype(np.int64)
    size = np.where(np.isin(kind, (*SAME_BYTES, *MESSAGES)), rows.bytes[index], ABSENT)
    sizes, size_code = np.unique(size, return_inverse=True)
    dtype = rows.dtype[index].astype(np.int64)
    tokens: Int64Array = (dtype * 64 + kind) * len(sizes) + size_code
    ends = np.cumsum([len(part) for part in parts])[:-1]
    return [
        Operations(
            token=token,
            end_ns=rows.end_ns[part],
            step=rows.step[part],
            is_timed=np.isin(rows.kind[part], TIMED),
        )
        for part, token in zip(parts, np.split(tokens, ends), strict=True)
    ]


# How much likelier one shift between two ranks' operations is than another, given their ends -----

RESOLUTION_NS = NS_PER_US  # of the times in most traces: smaller differences are not significant
NOISE_NS2 = 2.0 * RESOLUTION_NS**2  # minimum variance of the change of a difference
LAGS = (1, 2, 3, 4)  # the difference of ends of a pair is compared with those this many pairs ago
MIN_PAIRS = 5  # fewer pairs give no result


def steadier(a: Operations, b: Operations, shifts: Sequence[int], lead: int) -> Floats:
    """Log likelihood ratio of the shift ``lead`` over each of the shifts, given operations' ends.

    Shifts, positions in ``b`` minus positions in ``a``, are compared over the same operations by
    the Pitman-Morgan test for the variances of paired samples: a plain ratio of variances favours a
    random shift if steps are too regular for times to be evidence. A second test uses all
    operations that each shift covers. The larger of the two values counts; 0 if there are too few
    pairs.

    Source: E. J. G. Pitman, "A Note on Normal Correlation", Biometrika 31, 1939; W. A. Morgan, "A
    Test for the Significance of the Difference between the Two Variances in a Sample from a Normal
    Bivariate Population", Biometrika 31, 1939.
    """
    samples = [middle_of_overlap(a, b, shift) for shift in shifts]
    column = np.array(shifts)[:, np.newaxis]
    i = np.broadcast_to(samples[lead], (len(shifts), len(samples[lead])))
    common, known_common = _differences(a, b, i, column)
    known_common &= known_common[lead].copy()
    first = np.array([[sample[0]] for sample in samples])
    longest = max(len(sample) for sample in samples)
    each, known_each = _differences(a, b, first + np.arange(longest), column)
    paired = [_steadier_paired(*_changes(common, known_common, lag), lead) for lag in LAGS]
    apart = [_steadier_apart(*_changes(each, known_each, lag), lead) for lag in LAGS]
    return np.maximum(_mean_of_known(paired), _mean_of_known(apart))


def _mean_of_known(parts: Sequence[Floats]) -> Floats:
    """Mean over the parts that are not NaN; 0 if all are."""
    stacked = np.stack(parts)
    known = ~np.isnan(stacked)
    mean: Floats = np.where(known, stacked, 0.0).sum(axis=0) / np.maximum(known.sum(axis=0), 1)
    return mean


def _differences(
    a: Operations, b: Operations, i: Int64Array, shift: Int64Array
) -> tuple[Int64Array, Bools]:
    """Differences of ends, one row per shift, and a mask of the compatible pairs."""
    j = i + shift
    inside = (i < len(a)) & (j >= 0) & (j < len(b))
    i, j = np.minimum(i, len(a) - 1), np.clip(j, 0, len(b) - 1)
    return b.end_ns[j] - a.end_ns[i], inside & compatible(a, b, i, j)


def _changes(difference: Int64Array, known: Bools, lag: int) -> tuple[Floats, Bools]:
    """Changes of the differences over ``lag`` pairs, and a mask of those with both pairs known."""
    change = (difference[:, lag:] - difference[:, :-lag]).astype(np.float64)
    return change, known[:, lag:] & known[:, :-lag]


def _steadier_paired(values: Floats, known: Bools, lead: int) -> Floats:
    """Log likelihood ratio that row u varies less around 0 than each row v; NaN for few pairs.

    With the correlation r of v + u and v - u, which is zero if both have the same variance, it is
    ``(1 - r**2) ** (-n / 2)`` (Pitman, Morgan).
    """
    v = _clipped(values, known)
    u = _clipped(np.broadcast_to(values[lead], values.shape), known)
    count = known.sum(axis=1)
    var_u, var_v = _mean_square(u, count), _mean_square(v, count)
    both = (u * v).sum(axis=1) / np.maximum(count, 1)
    product = np.maximum((var_v + var_u) ** 2 - 4 * both**2, NOISE_NS2**2)
    r = np.clip((var_v - var_u) / np.sqrt(product), -1 + 1e-9, 1 - 1e-9)
    return np.where(count >= MIN_PAIRS, np.sign(r) * -0.5 * count * np.log1p(-r * r), np.nan)


def _steadier_apart(values: Floats, known: Bools, lead: int) -> Floats:
    """The same from separate variances of two independent samples and one common variance."""
    count = known.sum(axis=1)
    var = _mean_square(_clipped(values, known), count)
    pooled = (count * var + count[lead] * var[lead]) / np.maximum(count + count[lead], 1)
    pooled = np.maximum(pooled, NOISE_NS2)
    ratio = 0.5 * (count * np.log(pooled / var) + count[lead] * np.log(pooled / var[lead]))
    enough = np.minimum(count, count[lead]) >= MIN_PAIRS
    return np.where(enough, np.sign(var - var[lead]) * ratio, np.nan)


def _mean_square(values: Floats, count: Int64Array) -> Floats:
    mean: Floats = (values * values).sum(axis=1) / np.maximum(count, 1) + NOISE_NS2
    return mean


def _clipped(values: Floats, known: Bools) -> Floats:
    """Values clipped to three times the median size of their row; 0 for unknown values."""
    if values.shape[1] == 0:
        return values
    sizes = np.sort(np.where(known, np.abs(values), np.inf), axis=1)
    middle = np.maximum(known.sum(axis=1) - 1, 0) // 2
    limit = 3 * sizes[np.arange(len(sizes)), middle]
    limit = np.where(np.isfinite(limit), limit, 0.0)[:, np.newaxis]
    return np.where(known, np.clip(values, -limit, limit), 0.0)


# Shift in operations between two ranks' sequences, and its confidence ----------------------------

CLEAR = 5.0  # least log odds of a clear shift: a hundred and fifty to one
MARGIN = 64  # shifts tried on either side of those that windows, steps and clocks suggest
MIN_EXACT = 8  # this many pairs are unlikely to agree by chance
MIN_OVERLAP_RATIO = 0.3  # of the shorter sequence: shorter overlaps fit by chance
CLOSE_RATIO = 0.75  # of the best agreement: the right shift agrees at least this well
USUAL_CLOCK_OFFSET_NS = 10 * NS_PER_MS
MAX_CLOCK_OFFSET_NS = NS_PER_S  # hosts kept by a time daemon differ by milliseconds
MAX_CANDIDATES = 256
MAX_TURNS = 8  # changes of the leading shift


class Expectation(msgspec.Struct, frozen=True, kw_only=True):
    """Expected offset of the second clock from the first, before operations are compared."""

    offset_ns: float = 0.0  # Expected offset.
    # Typical error of the expected offset, with occasional large outliers. Infinite if nothing is
    # known, for example if times do not count from the epoch.
    usual_error_ns: float = USUAL_CLOCK_OFFSET_NS

    @property
    def is_vague(self) -> bool:
        """Whether the expected offset is too uncertain to select a shift."""
        return self.usual_error_ns >= USUAL_CLOCK_OFFSET_NS

    def surprise(self, offset_ns: float) -> float:
        """Improbability of an offset: minus the log of the Cauchy density, 0 at the centre."""
        return float(np.log1p(((offset_ns - self.offset_ns) / self.usual_error_ns) ** 2))

    def allows(self, offset_ns: float) -> bool:
        """Whether an offset is plausible at all."""
        far = abs(offset_ns - self.offset_ns) > MAX_CLOCK_OFFSET_NS
        return bool(np.isinf(self.usual_error_ns)) or not far


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """The shift that fits best."""

    shift: int  # Position in the second sequence minus position in the first.
    offset_ns: float  # Implied offset of the second clock from the first.
    # Natural logarithm of the odds against the best shift that implies another clock offset;
    # infinite if there is none.
    log_odds: float

    @property
    def is_clear(self) -> bool:
        """Whether the shift is certain enough to use."""
        return self.log_odds >= CLEAR


def best_shift(a: Operations, b: Operations, expected: Expectation) -> Choice | None:
    """The shift of one rank's operations relative to another's; None if no shift is plausible."""
    fits = _candidates(a, b, expected)
    if not fits:
        return None
    if len(fits) == 1:  # the usual case if steps are numbered
        return Choice(shift=fits[0].shift, offset_ns=fits[0].offset_ns, log_odds=float("inf"))
    lead, shifts = 0, [fit.shift for fit in fits]
    surprise = np.array([expected.surprise(fit.offset_ns) for fit in fits])
    for _ in range(MAX_TURNS):
        odds = steadier(a, b, shifts, lead) + surprise - surprise[lead]
        odds[lead] = np.inf
        rival = int(np.argmin(odds))
        if odds[rival] >= 0:
            break
        lead = rival
    else:  # no shift beats all others
        return Choice(shift=fits[lead].shift, offset_ns=fits[lead].offset_ns, log_odds=0.0)
    rivals = [
        float(odd)
        for fit, odd in zip(fits, odds, strict=True)
        if odd >= CLEAR or _differ(a, b, fits[lead], fit)
    ]
    return Choice(
        shift=fits[lead].shift,
        offset_ns=fits[lead].offset_ns,
        log_odds=min(rivals, default=float("inf")),
    )


# --- candidates -----------------------------------------------------------------------------------


class _Fit(msgspec.Struct, frozen=True):
    """Quality of fit of a shift."""

    shift: int  # Position in the second sequence minus position in the first.
    count: int  # Number of compatible pairs.
    num_tried: int  # Number of pairs compared.
    wobble_ns: float  # Typical change of the difference of ends from pair to pair.
    offset_ns: float  # Median difference of ends.


def _candidates(a: Operations, b: Operations, expected: Expectation) -> list[_Fit]:
    """The shifts with the best agreement of operations, the steadiest first."""
    if not len(a) or not len(b):
        return []
    share = MIN_OVERLAP_RATIO if expected.is_vague else 0.0
    needed = max(1, int(share * min(len(a), len(b))))
    by_step = _shifts_of_steps(a, b)
    steps_agree = len(by_step) > 0
    shifts = np.array(_shifts(a, b, needed, expected, by_step), np.int64)
    count, num_tried = _compatible_pairs(a, b, shifts)
    worth = count > 0
    if steps_agree or np.isinf(expected.usual_error_ns):  # no shift is left out for its offset
        worth = _without_misfit(count, num_tried, expected)
    tried = (_fit(a, b, shift) for shift in shifts[worth].tolist())
    fits = [f for f in tried if f is not None and (steps_agree or expected.allows(f.offset_ns))]
    if not fits:
        return []
    counts, sizes = (np.array([getattr(f, of) for f in fits]) for of in ("count", "num_tried"))
    tight = (counts == sizes) & ((sizes >= _conclusive(sizes.max())) | (not expected.is_vague))
    kept = tight
    if not (tight & (counts >= MIN_EXACT) & (2 * counts >= sizes.max())).any():
        agreement = counts / (sizes + 2)  # with two misfits added: short overlaps fit by chance
        kept = tight | (agreement >= CLOSE_RATIO * agreement.max())
    chosen = (i for mask in (tight, kept & ~tight) for i in np.flatnonzero(mask).tolist())
    # the steadiest difference of ends first, then the likeliest offset
    return sorted(
        (fits[i] for i in chosen),
        key=lambda fit: (fit.wobble_ns + RESOLUTION_NS, expected.surprise(fit.offset_ns)),
    )[:MAX_CANDIDATES]


def _conclusive(longest: int) -> float:
    """Least number of pairs without a misfit that is conclusive, given the longest overlap."""
    return longest / 2 if longest <= 2 * MIN_PAIRS else MIN_PAIRS + 1


def _without_misfit(count: Int64Array, num_tried: Int64Array, expected: Expectation) -> Bools:
    """Mask of the shifts with only compatible pairs, if conclusive; otherwise of those with any."""
    some = count > 0
    longest = int(num_tried[some].max(initial=0))
    tight = some & (count == num_tried)
    if expected.is_vague:
        tight &= num_tried >= _conclusive(longest)
    decides = (tight & (count >= MIN_EXACT) & (2 * count >= longest)).any()
    return tight if decides else some


_AT_ONCE = 32  # shifts, of up to SAMPLES pairs each


def _compatible_pairs(
    a: Operations, b: Operations, shifts: Int64Array
) -> tuple[Int64Array, Int64Array]:
    """Number of compatible pairs per shift in the middle of the overlap, and of all pairs there."""
    low, high = np.maximum(-shifts, 0), np.minimum(len(b) - shifts, len(a))
    first = low + np.maximum(high - low - SAMPLES, 0) // 2
    num_tried = np.minimum(high, first + SAMPLES) - first
    place = np.arange(int(num_tried.max(initial=0)))
    count = np.empty_like(num_tried)
    for part in spans(len(shifts), _AT_ONCE):
        i = np.minimum(first[part, np.newaxis] + place, len(a) - 1)
        j = np.minimum(i + shifts[part, np.newaxis], len(b) - 1)
        could = compatible(a, b, i, j) & (place < num_tried[part, np.newaxis])
        count[part] = could.sum(axis=1)
    return count, num_tried


def _shifts_of_steps(a: Operations, b: Operations) -> Int64Array:
    """Shifts at which steps of equal numbers begin together; empty without such steps."""
    if np.array_equal(a.step, b.step):  # as in most programs
        return np.zeros(int((a.step != NO_STEP).any()), np.int64)
    common, in_a, in_b = np.intersect1d(a.step, b.step, return_indices=True)
    by_step: Int64Array = (in_b - in_a)[common != NO_STEP]
    return by_step


def _shifts(
    a: Operations, b: Operations, needed: int, expected: Expectation, by_step: Int64Array
) -> list[int]:
    """Shifts worth trying: near equal starts, equal ends, equal times and equal steps."""
    extra = len(b) - len(a)
    ranges = [(min(0, extra), max(0, extra))]
    at = a.end_ns + round(expected.offset_ns)
    by_time = int(median(np.searchsorted(np.sort(b.end_ns), at) - np.arange(len(a))))
    ranges.append((by_time, by_time))
    if len(by_step):
        ranges.append((int(by_step.min()), int(by_step.max())))
    lowest, highest = needed - len(a), len(b) - needed  # shifts with enough overlap
    tried: set[int] = set()
    for low, high in ranges:
        tried.update(range(max(low - MARGIN, lowest), min(high + MARGIN, highest) + 1))
    return sorted(tried)


def _fit(a: Operations, b: Operations, shift: int) -> _Fit | None:
    i = middle_of_overlap(a, b, shift)
    num_tried = len(i)
    i = i[compatible(a, b, i, i + shift)]
    if len(i) == 0:
        return None
    difference = b.end_ns[i + shift] - a.end_ns[i]
    wobble = np.inf
    if len(i) > 3:  # two or three ends are no evidence of steadiness
        sizes = np.abs(np.diff(difference)).astype(np.float64)
        wobble = float(np.minimum(sizes, 3 * median(sizes)).mean())
    return _Fit(shift, len(i), num_tried, wobble, median(difference))


def median(values: NDArray[Any]) -> float:
    """Same as ``np.median`` without NaN, but five times as fast for few values."""
    ordered = np.sort(values)
    high = len(ordered) // 2
    if len(ordered) % 2:
        return float(ordered[high])
    return (float(ordered[high - 1]) + float(ordered[high])) / 2


def _differ(a: Operations, b: Operations, one: _Fit, other: _Fit) -> bool:
    """Whether two shifts imply different clock offsets; before and after a loss, they do not."""
    offsets = []
    for fit in (one, other):
        i = middle_of_overlap(a, b, fit.shift)
        i = i[compatible(a, b, i, i + fit.shift)]
        offsets.append(most_frequent(b.end_ns[i + fit.shift] - a.end_ns[i]))
    return abs(offsets[0] - offsets[1]) > typical_gap(a.end_ns) / 2


def most_frequent(differences: Int64Array) -> int:
    """The middle of the narrowest interval that holds a third of all values."""
    ordered = np.sort(differences)
    width = max(1, len(ordered) // 3)
    if len(ordered) <= width:
        return int(np.median(ordered))
    spread = ordered[width:] - ordered[:-width]
    start = int(np.argmin(spread))
    return int(ordered[start + width // 2])


def typical_gap(end_ns: Int64Array) -> int:
    """Median time between successive ends; 1 s if there are fewer than two."""
    gaps = np.diff(np.sort(end_ns))
    return int(median(gaps)) if len(gaps) else NS_PER_S
