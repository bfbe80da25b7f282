"""Decides from repeats whether a change made a run slower, or how many more repeats are needed.

A difference counts when two tests agree: the whole bootstrap interval of the change is beyond the
tolerance, and a rank test finds an order of repeats that chance rarely produces.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from distprof.artefacts.record import grouped
from distprof.bounds import table_beside
from distprof.costs.repeats import (
    Interval,
    Level,
    compare_pairs,
    compare_repeats,
    pseudo_median,
    student_quantile,
)

Floats = NDArray[np.float64]
_MOST_EXACT = 60
"""Maximum number of values for the exact test, which counts all orders."""


def mann_whitney(first: ArrayLike, second: ArrayLike) -> float:
    """One-sided p-value of ``second`` ranking this high if both have the same distribution.

    Both have one value per repeat; if a side is empty, the result is 1.0. It counts all ways to
    choose which of the values belong to ``second``. Ties have their mean rank. Above 60 values, it
    uses the normal approximation with correction for ties.

    Source:
        Mann and Whitney, "On a test of whether one of two random variables is stochastically
        larger than the other" (1947).
    """
    a, b = np.asarray(first, np.float64), np.asarray(second, np.float64)
    if not len(a) or not len(b):
        return 1.0
    ranks = _doubled_ranks(np.concatenate([a, b]))
    seen = int(ranks[len(a) :].sum())
    if len(ranks) > _MOST_EXACT:
        return _normal_tail(seen, ranks, len(b))
    ways = _ways_to_choose(ranks, len(b))
    return float(ways[seen:].sum() / ways.sum())


def aligned_ranks(first: ArrayLike, second: ArrayLike) -> float:
    """p-value of ``second`` ranking this high if the two values of each pair are exchangeable.

    Both have one value per pair, in order of time; without pairs, the result is 1.0. The test is
    one-sided and exact: it counts all ways to exchange the values within pairs. It first removes
    drift, the median of the means of the five nearest pairs, which exchanges do not change. Then it
    ranks all values together, so a pair with one disturbed run has little weight. Among signed
    ranks, that pair would outvote the others.

    Source:
        Hodges and Lehmann, "Rank methods for combination of independent experiments in analysis of
        variance" (1962).
    """
    pairs = np.stack([np.asarray(first, np.float64), np.asarray(second, np.float64)])
    if not pairs.shape[1]:
        return 1.0
    ranks = _doubled_ranks((pairs - _local(pairs.mean(axis=0))).ravel()).reshape(2, -1)
    lead = ranks[1] - ranks[0]
    scores, seen = np.abs(lead), int(lead[lead > 0].sum())
    if len(scores) > _MOST_EXACT:
        deviation = math.sqrt(float(np.sum(scores.astype(np.float64) ** 2))) / 2
        return _upper_tail((seen - 1 - scores.sum() / 2) / max(deviation, 1e-9))
    ways = np.ones(1)
    for score in scores.tolist():
        longer = np.zeros(len(ways) + score)
        longer[: len(ways)] += ways
        longer[score:] += ways
        ways = longer
    return float(ways[seen:].sum() / ways.sum())


def _local(means: Floats) -> Floats:
    """Running median over each value and up to two neighbours on either side."""
    around = np.pad(means, 2, constant_values=np.nan)
    windows = np.lib.stride_tricks.sliding_window_view(around, 5)
    return np.asarray(np.nanmedian(windows, axis=1))


def least_repeats(alpha: float, fixed: int | None = None) -> int:
    """Repeats with which :func:`mann_whitney` can reach ``alpha``; a million if none suffices.

    ``fixed`` are those of the side that gets no more; None if both get the same number.
    """
    enough = (n for n in range(1, 1_000) if 1 / math.comb(n + (fixed or n), n) <= alpha)
    return next(enough, 1_000_000)


def least_pairs(alpha: float) -> int:
    """Smallest number of pairs with which :func:`aligned_ranks` can reach ``alpha``."""
    return math.ceil(-math.log2(alpha))


def _doubled_ranks(values: Floats) -> NDArray[np.int64]:
    """Twice the ranks, counted from 1, so mean ranks of ties are integers."""
    ordered = np.sort(values)
    below = np.searchsorted(ordered, values, side="left")
    return np.asarray(below + np.searchsorted(ordered, values, side="right") + 1, np.int64)


def _ways_to_choose(ranks: NDArray[np.int64], count: int) -> Floats:
    """For each sum, the number of ways to choose ``count`` ranks with that sum, as float64."""
    ways = np.zeros((count + 1, int(np.sort(ranks)[-count:].sum()) + 1))
    ways[0, 0] = 1
    for rank in ranks.tolist():
        ways[1:, rank:] += ways[:-1, : ways.shape[1] - rank].copy()
    return np.asarray(ways[count])


def _normal_tail(seen: int, ranks: NDArray[np.int64], count: int) -> float:
    """Normal approximation from the sum of ``count`` doubled ranks drawn without replacement."""
    total = len(ranks)
    deviation = math.sqrt(
        count * (total - count) / (total - 1) * float(ranks.astype(np.float64).var())
    )
    if deviation == 0:
        return 1.0
    return _upper_tail((seen - 1 - count * float(ranks.mean())) / deviation)


def _upper_tail(z: float) -> float:
    return math.erfc(z / math.sqrt(2)) / 2


# The decision from repeats, or how many more are needed -------------------------------------------

State = Literal["passed", "regressed", "improved", "inconclusive", "acknowledged"]
Better = Literal["lower", "higher"]
Scale = Literal["ratio", "difference"]
ALPHA = 0.01
"""Level of the one-sided rank test. The test is exact, so the false alarm rate of one look stays
below it for any noise. A look that can only pass a change, and not fail it, adds none."""
EARLY_ALPHA = 0.001
"""Level of interim looks, strict enough for the last look to keep ``ALPHA`` (the Haybittle-Peto
rule). Each interim look adds no more than this to the false alarm rate."""
LEVEL: Level = 90
"""Level of the interval in %: each end is exceeded by chance in 5 of 100 cases, and only one end
matters."""
FEWEST_SESSIONS = 3
"""Minimum number of sessions in a baseline to estimate the spread between sessions."""
UNKNOWN_NOISE = 0.15
"""Assumed standard deviation between sessions if it is unknown. Only a loss far beyond it counts as
a change. Shared machines are rarely worse."""

_SAID: Mapping[str, str] = {
    name: text.format(sessions=FEWEST_SESSIONS, noise=100 * UNKNOWN_NOISE)
    for name, text in table_beside(__package__, "metrics.toml")["said"].items()
}
SHORT_BASELINE, UNKNOWN_SESSIONS = _SAID["short baseline"], _SAID["unknown sessions"]
NOT_BY_REPEATS = (SHORT_BASELINE, UNKNOWN_SESSIONS, _SAID["sessions differ"])
"""Reasons that more candidate repeats do not remove; each one says what does."""

_MOST_NEEDED = 200  # more repeats than this are not practical, so no number is given


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """The decision from the repeats."""

    # ``passed``: any loss is within the tolerance. ``regressed`` and ``improved``: the change is
    # beyond it. ``inconclusive``: the interval contains the tolerance, the rank test disagrees, or
    # sessions may differ as much. ``acknowledged``: the baseline accepts the loss.
    state: State
    # Candidate over baseline, or candidate minus baseline on the scale ``difference``.
    change: float
    low: float | None  # Lower end of its 90 % interval; None if there are too few repeats for one.
    high: float | None  # Upper end of the interval.
    p: float  # p-value of the rank test in the direction of the change.
    tolerance: float  # Tolerance that was requested.
    num_baseline: int  # Repeats of the baseline.
    num_candidate: int  # Repeats of the candidate.
    # Number of further repeats of the candidate (and of the baseline, if both can be run) that
    # would settle it at the current spread; None if it is settled, or if no reasonable number would
    # settle it.
    needed_repeats: int | None
    why: str  # Reason for the state, one sentence.
    assumes: str = ""  # Assumption of the decision, one sentence; empty if there is none.


class _Sessions(msgspec.Struct, frozen=True):
    """Sessions of the baseline's repeats, and how far another session may differ from them."""

    keys: tuple[object, ...]  # Session of each repeat.
    noise: float | None  # Known standard deviation; None if unknown.
    # Whether a change can be separated from differences between sessions, because there are pairs,
    # enough sessions, or a known noise. Otherwise, only a change far beyond ``UNKNOWN_NOISE`` can.
    can_blame: bool

    @classmethod
    def of(
        cls, keys: Sequence[object] | None, noise: float | None, count: int, *, is_paired: bool
    ) -> _Sessions:
        if is_paired and (keys is not None or noise is not None):
            raise ValueError("pairs are measured alternately and have no sessions")
        if keys is not None and len(keys) != count:
            raise ValueError(f"{len(keys)} sessions for {count} repeats of the baseline")
        if noise is not None and not 0 <= noise < math.inf:
            raise ValueError(f"a session noise of {noise} is impossible")
        known = tuple(keys) if keys is not None else (None,) * count
        enough = len(set(known)) >= FEWEST_SESSIONS
        return cls(known, noise, can_blame=is_paired or enough or noise is not None)

    def centres(self, values: Floats) -> Floats:
        """Centre of each session."""
        members = grouped(zip(self.keys, values.tolist(), strict=True))
        return np.array([float(pseudo_median(each)) for each in members.values()])

    @property
    def margin(self) -> float:
        """How far beyond the tolerance a difference must be to count as a change."""
        if self.can_blame:
            return 0.0
        count = len(set(self.keys))
        return student_quantile(1e9, 98) * UNKNOWN_NOISE * math.sqrt(1 + 1 / count)

    def spread(self, centres: Floats) -> float:
        """How far one more session may be from these by chance, exceeded in 1 % on either side.

        The rank test does not protect against this, because repeats of one session are not
        independent.
        """
        count = len(centres)
        if count >= FEWEST_SESSIONS:
            wide = student_quantile(count - 1, 98) * float(centres.std(ddof=1))
        else:
            wide = student_quantile(1e9, 98) * (self.noise or 0.0)
        return wide * math.sqrt(1 + 1 / count)


class _Evidence(msgspec.Struct, frozen=True):
    """Changes on an additive scale (logarithms for ratios), on which worse is positive."""

    worse: Interval
    p_worse: float
    p_better: float
    limit: float
    alpha: float
    fewest: int
    num_growing: int
    num_fixed: int | None
    margin: float
    spread: float


def decide(
    baseline: Sequence[ArrayLike],
    candidate: Sequence[ArrayLike],
    *,
    tolerance: float,
    better: Better = "lower",
    scale: Scale = "ratio",
    is_paired: bool = False,
    sessions: Sequence[object] | None = None,
    session_noise: float | None = None,
    can_repeat_baseline: bool = True,
    alpha: float = ALPHA,
    seed: int = 0,
) -> Decision:
    """Compare repeats of a candidate with those of a baseline.

    Args:
        baseline: One array per repeat: its steps, or a single figure. The median of the steps
            counts. Steps are not resampled, because steps of one run are not independent.
        candidate: The same for the candidate.
        tolerance: Accepted loss: 0.02 for 2 %, or in the unit of the values on the scale
            ``difference``.
        better: Which direction is an improvement.
        scale: ``ratio`` for times and sizes; ``difference`` for shares, which may be near 0.
        is_paired: Whether repeats of both sides were measured alternately, so that drift cancels.
        sessions: For each repeat of the baseline, a key of the session that measured it. From three
            sessions on, differences between sessions do not count as a change: the candidate is
            treated as one more session. None for a single session. Not with ``is_paired``.
        session_noise: Known standard deviation between sessions (relative on the scale ``ratio``),
            used if the baseline has fewer than three; 0 for a machine that is known to be stable.
            None if unknown: then a change may be due to the session and is inconclusive, unless it
            is far beyond ``UNKNOWN_NOISE``. Not with ``is_paired``.
        can_repeat_baseline: Whether further repeats of the baseline are possible too.
        alpha: Significance level of the rank test.
        seed: Seed of the bootstrap; the same input gives the same decision.

    Raises:
        ValueError: If a side is empty, a value is not finite (or not positive on the scale
            ``ratio``), the tolerance is negative or not below 1, pairs are incomplete, or
            there is not one session per repeat.
    """
    a, b = _values(baseline, scale, "baseline"), _values(candidate, scale, "candidate")
    if is_paired and len(a) != len(b):
        raise ValueError(f"{len(a)} and {len(b)} repeats do not form pairs")
    if not 0 <= tolerance < (1 if scale == "ratio" else math.inf):
        raise ValueError(f"tolerance {tolerance}: it must be at least 0, and below 1 for a ratio")
    between = _Sessions.of(sessions, session_noise, len(a), is_paired=is_paired)
    sign = 1.0 if better == "lower" else -1.0
    below, above = (np.log(a), np.log(b)) if scale == "ratio" else (a, b)
    change = _interval(below, above, between, is_paired=is_paired, seed=seed)
    worse = change if sign > 0 else Interval(-change.value, -change.high, -change.low)
    test = aligned_ranks if is_paired else mann_whitney
    p_worse, p_better = test(sign * below, sign * above), test(sign * above, sign * below)
    fixed = None if can_repeat_baseline else len(a)
    evidence = _Evidence(
        worse=worse,
        p_worse=p_worse,
        p_better=p_better,
        limit=_limit(tolerance, better, scale),
        alpha=alpha,
        fewest=least_pairs(alpha) if is_paired else least_repeats(alpha, fixed),
        num_growing=len(b) if fixed else min(len(a), len(b)),
        num_fixed=fixed,
        margin=between.margin,
        spread=0.0 if is_paired else between.spread(between.centres(below)),
    )
    state, needed, why = _judge(evidence)
    assumes = ""
    if not between.can_blame and state != "inconclusive":
        assumes = _SAID["assumes calm" if state == "passed" else "assumes noise"]
    ends = [(None if math.isinf(end) else plain(end, scale)) for end in (change.low, change.high)]
    return Decision(
        state=state,
        change=plain(change.value, scale),
        low=ends[0],
        high=ends[1],
        p=min(p_worse, p_better),
        tolerance=tolerance,
        num_baseline=len(a),
        num_candidate=len(b),
        needed_repeats=needed,
        why=why,
        assumes=assumes,
    )


def _values(repeats: Sequence[ArrayLike], scale: Scale, name: str) -> Floats:
    """One value per repeat."""
    arrays = [np.atleast_1d(np.asarray(repeat, np.float64)) for repeat in repeats]
    if not arrays or any(not array.size for array in arrays):
        raise ValueError(f"the {name} has no repeats, or a repeat without values")
    if not all(np.isfinite(array).all() for array in arrays):
        raise ValueError(f"the {name} has values that are not finite")
    if scale == "ratio" and any((array <= 0).any() for array in arrays):
        raise ValueError(f"the {name} has values that are not positive, so there is no ratio")
    return np.array([float(np.median(array)) for array in arrays])


def _limit(tolerance: float, better: Better, scale: Scale) -> float:
    """The tolerance on the additive scale: a loss of 5 % is a time × 1.05, or a rate × 0.95."""
    if scale == "difference":
        return tolerance
    return math.log1p(tolerance) if better == "lower" else -math.log1p(-tolerance)


def _interval(
    below: Floats, above: Floats, between: _Sessions, *, is_paired: bool, seed: int
) -> Interval:
    if is_paired:
        return compare_pairs(below, above, level=LEVEL, seed=seed)
    within = compare_repeats(below, above, level=LEVEL, seed=seed)
    centres = between.centres(below)
    spread = between.spread(centres)
    if not spread:
        return within
    value = float(pseudo_median(above) - pseudo_median(centres))
    return Interval(value, min(within.low, value - spread), max(within.high, value + spread))


def _judge(evidence: _Evidence) -> tuple[State, int | None, str]:
    """The state, the needed repeats, and the reason."""
    worse, limit = evidence.worse, evidence.limit
    changes: tuple[tuple[State, str, float, float], ...] = (
        ("regressed", "a loss", worse.low - limit, evidence.p_worse),
        ("improved", "a gain", -limit - worse.high, evidence.p_better),
    )
    for state, side, beyond, p in changes:
        if beyond > 0 and p <= evidence.alpha:
            if beyond < evidence.margin:
                return "inconclusive", None, UNKNOWN_SESSIONS
            why = f"The whole interval is {side} beyond the tolerance, and the rank test agrees."
            return state, None, why
    if worse.high <= limit:
        return "passed", None, "Any loss in the interval is within the tolerance."
    if evidence.num_fixed == 1:
        return "inconclusive", None, SHORT_BASELINE
    is_few = evidence.num_growing < evidence.fewest
    if not is_few and abs(worse.value - limit) <= evidence.spread:
        return "inconclusive", None, _SAID["sessions differ"]
    needed = _needed(evidence)
    if is_few:
        return "inconclusive", needed, "There are too few repeats for a conclusion."
    if worse.low > limit:
        why = "The interval is beyond the tolerance, but the rank test does not agree."
    else:
        why = "The interval contains both losses beyond the tolerance and smaller changes."
    return "inconclusive", needed, why


def _needed(evidence: _Evidence) -> int | None:
    """Further repeats until the interval, which narrows with their root, excludes the tolerance.

    As long as the rank test has too few repeats to decide, this is a number and not None.
    """
    now, worse = evidence.num_growing, evidence.worse
    lacking = max(evidence.fewest - now, 0)
    if math.isinf(worse.low):
        return lacking or 1
    distance = abs(worse.value - evidence.limit)
    half = worse.high - worse.value if worse.value < evidence.limit else worse.value - worse.low
    if distance == 0 or half / distance > math.sqrt(_MOST_NEEDED):
        return lacking or None
    total = max(math.ceil(now * (half / distance) ** 2), now + max(lacking, 1))
    return total - now if total <= _MOST_NEEDED else (lacking or None)


def plain(value: float, scale: Scale) -> float:
    """Convert a logarithm back to a ratio; a float holds at most e^709."""
    return math.exp(min(max(value, -700.0), 700.0)) if scale == "ratio" else value
