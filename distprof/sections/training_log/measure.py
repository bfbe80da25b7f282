"""Times of iterations, slow ones among them, and timers, from a training program's log."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from distprof.artefacts.record import shared_fields
from distprof.bounds import table_beside
from distprof.costs.pipeline import bubble_fraction
from distprof.ingest.training_logs.grammar import NOTES, near
from distprof.run.logs import TrainingLog
from distprof.run.run import Run
from distprof.schema import ABSENT, Floats, Int64Array
from distprof.sections.table import counted
from distprof.sections.training_log import (
    MIN_RECURRING,
    ONLY_FIRST,
    SlowIteration,
    SlowPeriod,
    TrainingLogResult,
    TrainingTimer,
)
from distprof.terms import INPUT_TIMER
from distprof.units import format_duration

SLOW_RATIO = 1.2  # Ratio to the median of its neighbours above which an iteration is slow
UNEVEN = 0.2  # Share of its excess from which one is slow, although the next is shorter
NEIGHBOURS = 101
MAX_SLOWEST = 20
MAX_KEPT = 512
_PERIODIC_RATIO = 0.8
FEWEST_BLOCKS = 3
BLOCK = 5
MOST_BLOCKS = 200  # Of at least five reports: single slow ones do not make a block slow
SLOWER_RATIO = 1.1  # Ratio to the usual duration from which a row of blocks is slow
APART = 0.9  # Share of pairs of a slow and a usual report in which the slow one is longer
FEWEST_FEW, FEWEST_GROWING, FEWEST_RISING = 3, 6, 4
"""Fewest reports on both sides of a step, of a growth, and of one in which each takes longer."""

FEWEST_LAST, FAR_LONGER = 2, 1.5  # Last reports that are a step, and their ratio to all others
MIN_KENDALL, GROWN_RATIO = 0.7, 1.3
"""Least correlation of ranks (of six equal reports, 3 % by chance) and growth to the last third."""

_CREPT = 1.05  # That growth of time per sample, in a log that holds nothing else.
_WHOLE = 0.97  # Share of an iteration from which a timer is all of it.
_MOST_OF_GROWTH = 0.7  # A rise from one report to the next above this share is a step.
_OTHER_RUN = 1.2  # Ratio of the iterations in an epoch of one run to those of another.
_FLAT = 10  # Ratio of a step to the spread on both of its sides from which few reports show it.
_FAR, _ROUNDER = 3, 5  # Ratio to the time of neighbours, and of round numbers to those of reports.

_TOKENS = ("tokens_per_s", "tokens_per_s_per_device")
_RATES = ("samples_per_s", "printed_samples_per_s", *_TOKENS, "tflops")
_MAX_PERIODS = 20
_MOST_OF_IT = 1.1  # Ratio of a timer to the iteration that contains it, as far as digits go.
_MOST_ACCUMULATED, _FOR_STEP = 16, 2.5  # Micro-batches, and ratio of the one with the optimizer.
_LONG_WAIT_NS, _LONG_WAIT, _MANY = 60_000_000_000, 0.5, 300  # A first wait, its ratio, iterations.
_MOST_INSIDE = 0.05  # Share of an iteration in a part of a pass that still counts as computation.
_COMPUTE = ("forward-compute", "backward-compute")
_MESSAGES = table_beside(__package__, "phases.toml")["messages"]


def analyze_training_log(run: Run) -> TrainingLogResult:
    """The iterations in the training program's log; empty, with a reason, if there is no log."""
    log = run.get(TrainingLog)
    if log is None:
        return TrainingLogResult(
            unavailable=("No log of a training program was read (--with train.log).",)
        )
    iteration = log.iteration[log.iteration != ABSENT]
    timed = (_timer(log, name, ns) for name, ns in log.timers.items())
    timers = tuple(sorted(filter(None, timed), key=lambda timer: (-timer.mean_ns, timer.name)))
    rates: dict[str, Any] = {name: _usual(log, getattr(log, name)) for name in _RATES}
    if rates["tokens_per_s"] is None and log.tokens_per_step and log.median_step_ns:
        rates["tokens_per_s"] = log.tokens_per_step / (log.median_step_ns / 1e9)
    losses: list[float | None] = log.loss[np.isfinite(log.loss)].tolist() or [None]
    return TrainingLogResult(
        origin=log.origin,
        num_files=len(log.files),
        whose=log.whose,
        num_reports=len(log.iteration),
        first_iteration=int(iteration[0]) if len(iteration) else None,
        last_iteration=int(iteration[-1]) if len(iteration) else None,
        **rates,
        first_loss=losses[0],
        last_loss=losses[-1],
        tokens_per_step=log.tokens_per_step,
        timers=timers,
        timer_stage=_stage(log),
        compute_ratio=_compute_ratio(timers),
        ideal_bubble_ratio=_ideal(log),
        num_unknown=log.num_unknown,
        num_restarts=log.num_restarts,
        unavailable=_limits(log, timers),
        **shared_fields(TrainingLogResult, log.facts),
        **_times(log),
    )


def _times(log: TrainingLog) -> dict[str, Any]:
    """Figures of the steady reports; without any, how throughput changed."""
    steady = log.is_steady
    ns = log.duration_ns[steady]
    if not len(ns):
        return {"slow_rate": _slow_rate(log)}
    weight = _weights(log.iteration[steady], ns, log.span[steady])
    mean = float(np.average(ns, weights=weight))
    spread = float(np.sqrt(np.average((ns - mean) ** 2, weights=weight)))
    usual = np.median(np.repeat(ns, np.clip(weight / weight.min(), 1, 10).astype(np.int64)))
    p95, p99 = np.percentile(ns, [95, 99])
    longest = _printed(log.iteration[steady], ns.argmax())
    slow = _slow(log.iteration[steady], ns, weight)
    slow = {"slow_excess_ns": log.unprinted_ns} if log.unprinted_ns else slow
    first = np.flatnonzero(log.duration_ns != ABSENT)[0]
    counts = steady.copy()
    counts[first] |= log.duration_ns[first] < SLOWER_RATIO * ns.min()  # that is no warm-up
    spans = np.pad(weight, (int(counts.sum()) - len(weight), 0))  # without the first, as the mean
    slower = _slow_span(log.iteration[counts], log.duration_ns[counts], spans, GROWN_RATIO)
    if slower and slower.is_gradual and _grows(log, counts):
        slower = None
    return {
        "num_steady": len(ns),
        "iterations_per_report": int(np.median(weight)),
        "mean_ns": round(mean),
        "median_ns": round(float(usual)),
        "p95_ns": round(float(p95)),
        "p99_ns": round(float(p99)),
        "max_ns": int(ns.max()),
        "longest_iteration": longest if log.span[steady][ns.argmax()] == 1 else None,
        "cv": spread / mean if mean > 0 else None,
        "steady_ns": tuple(ns[-MAX_KEPT:].tolist()),
        "first_ns": None if steady[first] else int(log.duration_ns[first]),
        "slow_span": slower and replace(slower, part=_part(log, counts, slower)),
        **slow,
    }


def _part(log: TrainingLog, counts: NDArray[np.bool_], slow: SlowPeriod) -> str | None:
    """The shortest timer that takes most of what slow iterations add."""
    ns, more = log.duration_ns[counts], slow.duration_ns - slow.usual_ns
    is_slow = ns > slow.usual_ns + more / 2
    parts: dict[str, float] = {}
    for name, column in log.timers.items():
        each = np.maximum(column[counts], 0)  # no time where it is absent
        is_most = 2 * (each[is_slow].mean() - each[~is_slow].mean()) > more
        parts |= {name: each.mean()} if is_most and each.mean() < _WHOLE * ns.mean() else {}
    return min(parts, key=parts.__getitem__, default=None)


def _grows(log: TrainingLog, counts: NDArray[np.bool_]) -> bool:
    """Whether throughput stays as it is: iterations that take longer hold more."""
    rates = (getattr(log, name)[counts] for name in ("samples_per_s", *_TOKENS))
    thirds = (np.array_split(one, 3) for one in rates)
    return any(np.median(last) > APART * np.median(first) for first, _, last in thirds)


def _weights(number: Int64Array, ns: Int64Array, span: Int64Array) -> Floats:
    """Weight of each report: the iterations that it is the mean of.

    Of single ones at regular numbers, far longer ones at rounder numbers, or at a distance of their
    own, stand for themselves, and the others for all between: an evaluation comes when a report
    does, and an epoch begins with one.
    """
    every = int(np.median(np.diff(number))) if len(number) > 1 else 1
    is_far = (ns > _FAR * near(ns)) & (span == 1) & (number != ABSENT)
    gaps = np.diff(number[is_far])
    is_round = (number[is_far] % (_ROUNDER * max(every, 1)) == 0).all()
    is_round |= len(gaps) > 1 and gaps.min() > every and not (gaps % gaps.min()).any()
    return np.where(is_far & is_round & (every > 1), 1 / max(every, 1), span)


# Slow iterations ----------------------------------------------------------------------------------


def _slow(number: Int64Array, ns: Int64Array, weight: Floats) -> dict[str, Any]:
    """Slow iterations; empty if reports have no numbers or are means, which hide slow ones."""
    is_mean = np.median(weight) > 1 or (number == ABSENT).all()
    if is_mean or len(ns) < 2 * MIN_RECURRING:
        return {}
    # Median of each iteration's block of neighbours, because batches may grow during training
    edges = np.linspace(0, len(ns), max(len(ns) // NEIGHBOURS, 1) + 1).astype(np.int64)
    usual = np.repeat([float(np.median(ns[a:b])) for a, b in pairwise(edges)], np.diff(edges))
    usual = np.maximum(usual, near(ns))  # of those that are slow in a row
    more = np.pad(ns - usual, 1)
    left = np.abs(more[1:] + more[:-1])  # of each two in a row
    is_even = np.minimum(left[:-1], left[1:]) < UNEVEN * more[1:-1]
    is_slow = (ns > SLOW_RATIO * np.maximum(usual, np.median(ns))) & ~is_even
    is_slow &= ns - usual > _digit(ns)
    is_slow[: int(np.argmin(is_slow))] = False  # before the training is warm
    excess = float(np.average(np.where(is_slow, ns - usual, 0), weights=weight))
    period = _period(number, is_slow) or _period(number, is_slow & (ns > _FAR * usual))
    is_power = period is not None and period & (period - 1) == 0  # as numbers of micro-batches
    if is_power and (period or 0) <= _MOST_ACCUMULATED and ns.max() < _FOR_STEP * np.median(ns):
        return {"slow_period": period}
    order = np.flatnonzero(is_slow)
    order = order[np.argsort(-ns[order], kind="stable")][:MAX_SLOWEST]
    return {
        "num_slow": int(is_slow.sum()),
        "slow_excess_ns": round(excess),
        "slow_period": period,
        "slowest": tuple(
            SlowIteration(iteration=_printed(number, i), duration_ns=int(ns[i])) for i in order
        ),
    }


def _period(number: Int64Array, is_slow: NDArray[np.bool_]) -> int | None:
    """Distance at which slow iterations recur; None if too few of them or of those due fit it."""
    slow = number[is_slow & (number != ABSENT)]
    if len(slow) < FEWEST_FEW:
        return None
    every = int(np.median(np.diff(number))) if len(number) > 1 else 1
    gaps, counts = np.unique(np.diff(slow), return_counts=True)
    wanted = gaps[np.argsort(-counts, kind="stable")][:_MAX_PERIODS]
    for period in (int(gap) for gap in wanted if gap >= 2 * max(every, 1)):
        phases, hits = np.unique(slow % period, return_counts=True)
        best = int(np.argmax(hits))
        possible = int(np.sum(number % period == phases[best]))
        ratio = _PERIODIC_RATIO if len(slow) >= MIN_RECURRING else 1.0  # of few, all must fit
        if hits[best] >= max(ratio * max(len(slow), possible), FEWEST_FEW):
            return period
    return None


# Slower from some iteration on --------------------------------------------------------------------


def _slow_span(number: Int64Array, ns: Int64Array, span: Floats, grown: float) -> SlowPeriod | None:
    """The reports in a row that lose most time by being slower than the others."""
    size = max(BLOCK, -(-len(ns) // MOST_BLOCKS))
    if len(ns) < 2 * FEWEST_BLOCKS * BLOCK:
        return _among_few(number, ns, span, grown)
    edges = np.arange(0, len(ns) + 1, size)
    edges[-1] = len(ns)
    blocks = np.array([float(np.median(ns[a:b])) for a, b in pairwise(edges.tolist())])
    usual = float(np.quantile(blocks, 0.25))
    is_slow = blocks > SLOWER_RATIO * usual
    bounds = np.flatnonzero(np.diff(np.concatenate(([False], is_slow, [False])).astype(np.int8)))
    rows = [(a, b) for a, b in bounds.reshape(-1, 2).tolist() if b - a >= FEWEST_BLOCKS]
    if not rows:
        return _among_few(number, ns, span, grown) if len(ns) < MOST_BLOCKS else None
    ups = np.flatnonzero(blocks[1:] > SLOWER_RATIO * blocks[:-1])
    if is_slow[-1] and (np.diff(ups) > 1).any() and (blocks[1:] > blocks[:-1] / SLOWER_RATIO).all():
        return None  # several steps up and none down: a schedule of batches or sequence lengths
    low, high = max(rows, key=lambda row: float((blocks[row[0] : row[1]] - usual).sum()))
    inside = _exactly(ns, int(edges[low]), int(edges[high]))
    slow, others = ns[inside], ns[~inside]
    below = np.searchsorted(np.sort(others), slow, side="left")
    if len(others) < BLOCK or below.mean() / len(others) < APART:
        return None
    # Whether a line fits better than two levels; medians of blocks, because iterations scatter.
    at = np.arange(len(blocks))
    line = np.polyval(np.polyfit(at, blocks, 1), at)
    is_in = (at >= low) & (at < high)
    levels = np.where(is_in, np.median(blocks[is_in]), np.median(blocks[~is_in]))
    is_line = np.sum((blocks - line) ** 2) < 0.7 * np.sum((blocks - levels) ** 2)
    return _slow_period(number, ns, span, inside, is_gradual=bool(inside[-1] and is_line))


def _slow_period(
    number: Int64Array, ns: Int64Array, span: Floats, inside: NDArray[np.bool_], *, is_gradual: bool
) -> SlowPeriod | None:
    """The slow reports, by their mask, next to what is usual; None if that takes no time."""
    slow, others, digit = ns[inside], ns[~inside], _digit(ns)
    if is_gradual:  # what it was at first and became; all after them cost, but for evaluations
        ns = np.where((ns > _FAR * near(ns)) & (len(ns) > FEWEST_BLOCKS * BLOCK), near(ns), ns)
        ends = max(len(ns) // 10, min(len(ns) // 3, FEWEST_FEW))
        others, slow = ns[:ends], ns[-ends:]
    at, usual = np.flatnonzero(inside), float(np.median(others))
    if usual < 1 or float(np.median(slow)) - usual <= digit:
        return None
    last = np.flatnonzero(np.diff(number) <= 0)
    each = [number[last[inside[last] == one]] for one in (False, True)]
    few, most = sorted(float(np.median(one)) if len(one) > 1 else 0.0 for one in each)
    if most > _OTHER_RUN * few > 0:
        return None  # runs whose epochs have other numbers of iterations
    if len(last):
        number = np.full_like(number, ABSENT)  # it starts again with each epoch
    begins = at[0] - int(at[0] > 0 and np.median(span) > 1)
    more = np.where(inside | is_gradual, ns - usual, 0)
    return SlowPeriod(
        first_iteration=_printed(number, begins),
        last_iteration=None if at[-1] == len(ns) - 1 else _printed(number, at[-1]),
        num_reports=len(at),
        duration_ns=round(float(np.median(slow))),
        usual_ns=round(usual),
        excess_ns=round(float(np.average(more, weights=span))),
        is_gradual=is_gradual,
    )


def _digit(ns: Int64Array) -> int:
    """One in the last digit of times, in ns: a difference of that is not one of times."""
    digit = int(np.gcd.reduce(ns))
    return digit if str(digit).strip("0") == "1" else 0


def _slow_rate(log: TrainingLog) -> SlowPeriod | None:
    """The reports in a row in which throughput is lower, of a log without times of iterations."""
    for rates in (getattr(log, name) for name in _RATES):
        known = np.flatnonzero(np.isfinite(rates) & (rates > 0))
        warms_up = rates[known[:1]] * SLOWER_RATIO < rates[known].max(initial=0.0)
        known = known[int(warms_up.any()) :]
        if len(known) > FEWEST_RISING:
            number = np.full(len(known), ABSENT)
            if len(rates) == len(log.iteration) and (np.diff(log.iteration[known]) > 0).all():
                number = log.iteration[known]
            ns = np.round(1e9 / rates[known]).astype(np.int64)
            grown = _CREPT if len(ns) >= 2 * FEWEST_GROWING else GROWN_RATIO
            return _slow_span(number, ns, np.ones(len(ns)), grown)
    return None


def _among_few(number: Int64Array, ns: Int64Array, span: Floats, grown: float) -> SlowPeriod | None:
    """The last or first of few reports, if a wide gap parts them from the others, or growth."""
    third, at, early = len(ns) // 3, _gap(ns), _gap(ns[::-1], FEWEST_FEW)
    is_early = len(ns) < 5 * early < 5 * len(ns) and not at  # a few fast ones are the exception
    is_early = is_early and np.diff(number)[-early] <= 2 * np.median(np.diff(number))
    is_early = is_early and ns[:-early].min() > FAR_LONGER * ns[-early:].max()
    still = ns[at:]  # after a step, it may grow
    if len(still) >= 2 * FEWEST_GROWING and _kendall(still) >= MIN_KENDALL:
        at *= bool(np.median(still[-third:]) < GROWN_RATIO * np.median(still[:third]))
    is_gradual = not at and not is_early
    inside = np.arange(len(ns)) >= (at or len(ns) - (early if is_early else third))
    inside ^= is_early
    slow, others = ns[inside], ns[:third] if is_gradual else ns[~inside]
    grows = len(ns) >= FEWEST_FEW and bool((ns[1:] > GROWN_RATIO * ns[:-1]).all())
    if is_gradual and (
        (min(len(ns), len(np.unique(ns)) + 1) < FEWEST_RISING and not grows)
        or _kendall(ns) < (MIN_KENDALL if len(ns) >= FEWEST_GROWING else 1.0)
        or np.median(slow) < grown * np.median(others)
    ):
        return None
    jump = int(np.diff(ns).argmax()) + 1
    is_step = ns[jump] - ns[jump - 1] > _MOST_OF_GROWTH * np.ptp(ns) and 1 < jump < len(ns) - 1
    if is_gradual and is_step:
        inside, is_gradual = np.arange(len(ns)) >= jump, False
    return _slow_period(number, ns, span, inside, is_gradual=is_gradual)


def _gap(ns: Int64Array, fewest: int = FEWEST_LAST) -> int:
    """Number of reports before the last ones, if a wide gap parts them; else 0."""
    at = far = 0
    for k in range(FEWEST_FEW - (len(ns) >= FEWEST_RISING), len(ns) - fewest + 1):
        before, after = ns[:k], ns[k:]
        gap = after.min() - before.max()
        spread, least = max(np.ptp(before), np.ptp(after)), (SLOW_RATIO - 1) * before.max()
        needed = FEWEST_FEW if gap < _FLAT * spread else FEWEST_LAST
        if min(k, len(after)) >= needed and gap > max(spread, least) and len(ns) >= BLOCK:
            at = k  # at most one: the gap is the widest
        if not far and after.min() > FAR_LONGER * before.max():
            far = k
    return at or far


def _kendall(ns: Int64Array) -> float:
    """Share of pairs in which the later report is longer, less those in which it is shorter."""
    signs = np.sign(ns[None, :] - ns[:, None])[np.triu_indices(len(ns), 1)]
    return float(signs.sum()) / max(int(np.count_nonzero(signs)), 1)


def _exactly(ns: Int64Array, low: int, high: int) -> NDArray[np.bool_]:
    """Mask of the slow reports, whose bounds are those of blocks until here."""
    at = np.arange(len(ns))
    inside = (at >= low) & (at < high)
    slow = ns > (float(np.median(ns[inside])) * float(np.median(ns[~inside]))) ** 0.5
    while low > 0 and slow[low - 1]:
        low -= 1
    while high < len(ns) and slow[high]:
        high += 1
    low += int(np.argmax(slow[low:high]))
    high -= int(np.argmax(slow[low:high][::-1]))
    return (at >= low) & (at < high)


def _printed(number: Int64Array, at: np.int64) -> int | None:
    return int(number[at]) if number[at] != ABSENT else None


# Timers -------------------------------------------------------------------------------------------


def _timer(log: TrainingLog, name: str, values: Int64Array) -> TrainingTimer | None:
    known = log.is_steady & (values != ABSENT)
    if not known.any():
        return None
    weight = log.span[known]
    mean = float(np.average(values[known], weights=weight))
    whole = float(np.average(log.duration_ns[known], weights=weight))
    is_share = mean <= _MOST_OF_IT * whole  # else it covers something else
    is_share &= whole > 0 and log.origin != "DeepSpeed"  # the span of whose timers is unknown
    return TrainingTimer(
        name=name,
        num_reports=int(known.sum()),
        mean_ns=round(mean),
        median_ns=round(float(np.median(values[known]))),
        ratio=mean / whole if is_share else None,
        waits=name in (*_MESSAGES["later"], *_MESSAGES["earlier"])
        or (name in _MESSAGES["embedding"] and log.facts.mesh.get("pp", 1) > 1),
    )


def _compute_ratio(timers: tuple[TrainingTimer, ...]) -> float | None:
    ratios = {one.name: one.ratio for one in timers if one.ratio is not None}
    known = [ratios[name] for name in _COMPUTE if name in ratios]
    inside = ratios.get("batch-generator", 0.0)  # which the forward pass calls
    inside *= inside > _MOST_INSIDE
    return max(sum(known) - inside, 0.0) if len(known) == len(_COMPUTE) else None


def _stage(log: TrainingLog) -> str:
    """Pipeline stage, inferred from messages with earlier and later stages; empty if unknown."""
    if log.is_of_slowest_ranks or log.facts.mesh.get("pp", 1) < 2:
        return ""
    later, earlier = (bool(log.timers.keys() & _MESSAGES[to]) for to in ("later", "earlier"))
    return ("", "first", "last", "middle")[later + 2 * earlier]


def _ideal(log: TrainingLog) -> float | None:
    facts, stages = log.facts, log.facts.mesh.get("pp", 1)
    if facts.num_micro_batches is None or stages < 2:
        return None
    return float(bubble_fraction(stages, facts.num_micro_batches, facts.virtual_stages or 1))


# The rest -----------------------------------------------------------------------------------------


def _usual(log: TrainingLog, rates: Floats) -> float | None:
    """Median of a rate, in steady reports if it is known there."""
    known = np.isfinite(rates)
    if len(rates) == len(log.iteration):  # else they are printed apart
        steady, known = known & log.is_steady, known & (log.is_steady | (log.duration_ns == ABSENT))
        known = steady if steady.any() else known
    return float(np.median(rates[known])) if known.any() else None


def _first_wait(log: TrainingLog) -> list[str]:
    """A note on a long wait for input, or on many long iterations, in a first report."""
    first, steady = int(np.argmax(log.duration_ns != ABSENT)), log.is_steady
    waits = (int(ns[first]) for name, ns in log.timers.items() if INPUT_TIMER.search(name))
    count = int(log.span[first]) if log.origin == "MMEngine" else 1  # others print a single one
    lost, whole = max(waits, default=0) * count, float((log.duration_ns * log.span)[steady].sum())
    if not steady[first] and lost > max(_LONG_WAIT_NS, _LONG_WAIT * whole):
        return [NOTES["first_wait"].format(counted(count, log.unit), format_duration(lost))]
    num, took, usual = int(log.span[first]), int(log.duration_ns[first]), log.median_step_ns or 0
    num *= "progress bar" in log.origin  # others may print the time of a single one
    is_long = _MANY <= num <= log.span[steady].sum() and took > FAR_LONGER * usual > 0
    is_long = is_long and whole + num * took > SLOWER_RATIO * (whole + num * usual)
    each = format_duration(took), took / max(usual, 1)
    return [NOTES["slow_first"].format(counted(num, log.unit), *each)] * bool(is_long)


def _limits(log: TrainingLog, timers: tuple[TrainingTimer, ...]) -> tuple[str, ...]:
    limits = [*log.notes, *_first_wait(log)]
    if not (log.duration_ns != ABSENT).any():
        limits.append("distprof finds no iteration times in the log.")
        rates = log.samples_per_s[log.samples_per_s > 0][1:]
        mean = len(rates) / (1 / rates).sum() if len(rates) else np.inf
        usual = _usual(log, log.samples_per_s) or 0.0
        limits += [NOTES["low_rates"].format(mean, usual)] * bool(usual > FAR_LONGER * mean)
    elif int(np.median(log.span)) > 1:
        limits.append(NOTES["means"].format(int(np.median(log.span))))
    early, *later = log.duration_ns[log.duration_ns != ABSENT][: FEWEST_FEW + 1].tolist() or [0]
    if 0 < len(later) < FEWEST_FEW and log.span[0] > 1 and min(later) > GROWN_RATIO * early > 0:
        each = format_duration(early), float(np.median(later)) / early
        limits.append(NOTES["became"].format(log.span[0], f"{log.unit}s", *each))
    known = {name: ns[ns != ABSENT] for name, ns in log.timers.items() if (ns != ABSENT).any()}
    first = int(np.argmax(log.duration_ns != ABSENT)) + 1
    if known and not timers and all((ns[first:] == ABSENT).all() for ns in log.timers.values()):
        longest = sorted(known, key=lambda name: -known[name][-1])[:3]
        named = ", ".join(f"{name} {format_duration(known[name][-1])}" for name in longest)
        limits.append(f"{ONLY_FIRST} has timers: {named}.")
    if log.facts.mesh.get("pp", 1) > 1 and _compute_ratio(timers) is None:
        limits.append(NOTES["no_timers_of_passes"])
    if log.num_unknown:
        limits.append(f"Lines that look like reports but are not: {log.num_unknown:,}.")
    return tuple(limits)
