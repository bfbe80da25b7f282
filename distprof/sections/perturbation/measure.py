"""Take the profiler's cost out of the recording, if something says how long steps take without it.

Source: event-based perturbation analysis (Malony, Reed and Wijshoff, IEEE TPDS 3(4), 1992); formula
sheet, "The profiler in the picture".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median

import msgspec
import numpy as np
from msgspec.structs import replace

from distprof.intervals import EMPTY, Intervals, union
from distprof.replay import CycleError
from distprof.run.records import RankRecords, untraced_steps
from distprof.run.run import Run, TableSource
from distprof.run.tables import RankTables, intervals_of
from distprof.schema import Int64Array, Table
from distprof.sections.context import LikelySteps, ProbeRecords, RankAnalyses, RankContext
from distprof.sections.idle import RankIdle
from distprof.sections.measure_run import Mapper
from distprof.sections.perturbation import PerturbationResult
from distprof.sections.perturbation.corrected import Correction, corrected_run
from distprof.sections.perturbation.events import Part, RankEvents, find_events
from distprof.sections.perturbation.model import Cost, Factors, Model, fit
from distprof.sections.time import StepTimeResult
from distprof.units import format_ratio

LARGEST_ERROR = 0.1
"""Error of the repeated recording above which nothing is corrected."""

MOST_EVENTS = 60_000_000
"""Events of all traces up to which the recording is corrected: each takes memory and time."""

LEAST_COST = 0.02
"""Share of a step that the profiler must have cost, so that the recording is corrected."""

LIKELY = Cost(operator_ns=3_000, call_ns=9_000)
MOST = Cost(operator_ns=7_000, call_ns=11_000)
"""What the profiler costs on fast and on slow CPUs, as measured on hosts of H100 and H200."""

MOST_CALL_NS = 20_000.0

LAUNCH_BOUND = 0.05
"""Share of a rank's steps that late launches must take for an estimate of the profiler's part."""

_NOTICED_INPUT_NS = 200_000

MANY = 12
"""With fewer steps, only the faster half counts: the first steps of a job are often slow."""

LONG_RATIO = 1.5
"""A step that takes this many times the median does something else as well."""

BEST = 0.1
"""Quantile of steps whose time others might reach, too: what is slower in them may be chance."""


class UntracedSteps(msgspec.Struct, frozen=True, kw_only=True):
    """One rank's steps with and without the profiler."""

    untraced_ns: Int64Array  # int64, durations of steps without it.
    later_ns: Int64Array  # int64, durations of steps after it, which it may still make slower.
    light_ns: Int64Array  # int64, durations of steps in which only the GPU was recorded.
    # Waiting for input or loading it, mean per untraced step; None if not recorded.
    input_ns: float | None
    collection_ns: float | None  # Garbage collection, mean per untraced step; None if not recorded.
    collections: Intervals  # Garbage collections, a set; own clock.
    # Time lost from the step before the first traced one to the one after the last, beyond as many
    # usual steps; None if that is unknown.
    window_cost_ns: float | None = None
    # Share of untraced steps at whose end the GPU was more than a step behind; None if it was not
    # observed.
    behind: float | None = None


def measure_untraced(records: RankRecords) -> UntracedSteps | None:
    """Steps of one rank without the profiler; None without a step log."""
    log = records.step_log
    if len(log) == 0:
        return None
    kept = untraced_steps(log)
    light = log["is_light"]
    behind = log["gpu_behind"][kept]
    behind = behind[behind >= 0]
    duration = log["end_ns"] - log["start_ns"]
    pauses, phases = records.pauses, records.phases
    traced = np.flatnonzero(log["is_traced"])
    later = int(traced[-1]) + 2 if len(traced) else len(log)
    # Waits for input and loads: pauses of a data loader, and phases of a loop of one's own.
    inputs = [
        pauses.take(pauses.coded("kind").equals("input")),
        phases.take(phases.coded("name").equals("input")),
    ]
    numbers = log["step"][kept & log["is_probed"]]  # paused probes record no pauses
    collected = pauses.take(pauses.coded("kind").equals("gc"))
    return UntracedSteps(
        untraced_ns=duration[kept],
        later_ns=duration[later:],
        light_ns=duration[light],
        input_ns=_mean_in(inputs, numbers),
        collection_ns=_mean_in([collected], numbers),
        collections=union(intervals_of(collected)),
        window_cost_ns=_window_cost(log, duration[kept]),
        behind=float(behind.mean()) if len(behind) >= MANY // 3 else None,
    )


def _window_cost(log: Table, untraced_ns: Int64Array) -> float | None:
    traced = np.flatnonzero(log["is_traced"])
    usual = typical_ns(untraced_ns)
    if len(traced) == 0 or usual is None:
        return None
    first, last = max(int(traced[0]) - 1, 0), min(int(traced[-1]) + 1, len(log) - 1)
    took = float(log["end_ns"][last] - log["start_ns"][first])
    return max(took - (last - first + 1) * usual[0], 0.0)


def _mean_in(recorded: Sequence[Table], steps: Int64Array) -> float | None:
    """Time in them per step; None without steps, or if no step at all recorded any."""
    if len(steps) == 0 or not any(map(len, recorded)):
        return None
    inside = [intervals_of(one.take(np.isin(one["step"], steps))) for one in recorded]
    busy = union(Intervals(*map(np.concatenate, zip(*inside, strict=True))))
    return float((busy.end - busy.start).sum()) / len(steps)


def best_ns(steps: UntracedSteps) -> float | None:
    """Time that a tenth of the steps reach, without the profiler or after it; None without steps.

    Steps after the profiler may be slower, never faster.
    """
    known = [part for part in (steps.untraced_ns, steps.later_ns) if len(part) >= MANY // 2]
    return min((float(np.quantile(part, BEST)) for part in known), default=None)


def typical_ns(durations: Int64Array) -> tuple[float, float, float] | None:
    """Mean of usual steps, and a 95 % confidence interval; None without steps.

    Steps that take much longer than the median are left out: other work is done in them. Of few
    steps, only the faster half counts.
    """
    if len(durations) == 0:
        return None
    usual = np.sort(durations[durations <= LONG_RATIO * np.median(durations)])
    if len(usual) < MANY:
        usual = usual[: (len(usual) + 1) // 2]
    mean = float(usual.mean())
    spread = float(usual.std(ddof=1)) if len(usual) > 1 else 0.1 * mean
    margin = 2 * spread / len(usual) ** 0.5
    return mean, mean - margin, mean + margin


def analyze_perturbation(
    correction: Correction, analyses: RankAnalyses, step_time: StepTimeResult
) -> PerturbationResult:
    """What was done to the recording, or what the profiler may have cost."""
    known = correction.result
    found = [one.likely_steps for one in analyses.values() if one.likely_steps is not None]
    if known.is_corrected or known.simulated_ns is not None or not found:  # nothing to guess
        return known
    likely, least, operators = (
        round(median(getattr(one, name) for one in found))
        for name in ("likely_ns", "least_ns", "num_operators")
    )
    return replace(
        known,
        likely_ns=likely,
        least_ns=least,
        num_operators=operators,
        traced_ns=known.traced_ns or step_time.median_ns,
    )


def correct(
    run: Run,
    records: ProbeRecords,
    windows: Mapping[int, Intervals],
    *,
    executor: Mapper | None = None,
    step_ns: int | None = None,
) -> Correction:
    """Take the profiler's cost out of the recording.

    Windows are the analysed steps by rank, own clock; the same number for each. ``step_ns`` is the
    mean step without the profiler, if the user knows it.
    """
    untraced = records.of(UntracedSteps)
    collections = {rank: one.collections for rank, one in untraced.items()}
    found = _correct(run, untraced, windows, executor, step_ns)
    return replace(found, collections={**collections, **found.collections})


def _correct(
    run: Run,
    untraced: Mapping[int, UntracedSteps],
    windows: Mapping[int, Intervals],
    executor: Mapper | None,
    step_ns: int | None,
) -> Correction:
    ranks = [rank for rank in run.ranks if rank.rank in windows and windows[rank.rank].size]
    known = _known_step(untraced, step_ns)
    if known.untraced_ns is None:
        return Correction(run=run, result=known)
    events: list[RankEvents] = []
    if not ranks or not run.window.steps:
        why = "No step was recorded as a whole: the profiler's cost per step is not known."
    elif sum(rank.quality.num_events for rank in ranks) > MOST_EVENTS:
        why = "The recording is too large to take the profiler's cost out of it."
    else:
        why = "The trace lacks the CPU's activity: the profiler's cost is not known."
        jobs = [
            _Job(
                rank=rank.rank,
                source=rank.tables,
                is_cpu=rank.device.name == "cpu",
                collections=untraced[rank.rank].collections if rank.rank in untraced else EMPTY,
            )
            for rank in ranks
        ]
        results = map(_read, jobs) if executor is None else executor.map(_read, jobs)
        events = [one for one in results if isinstance(one, RankEvents)]
    if not events or len(events) < len(ranks):
        return Correction(run=run, result=replace(known, unavailable=(why,)))
    bounds = {rank: np.stack(windows[rank], axis=1) for rank in windows}
    return _corrected(run, events, bounds, known, untraced, known.untraced_ns)


def _known_step(untraced: Mapping[int, UntracedSteps], step_ns: int | None) -> PerturbationResult:
    """What is known about steps without the profiler."""
    behind = [one.behind for one in untraced.values() if one.behind is not None]
    result = PerturbationResult(
        gpu_behind_ratio=median(behind) if behind else None,
        window_cost_ns=_median_of(one.window_cost_ns for one in untraced.values()),
    )
    light = [float(one.light_ns.mean()) for one in untraced.values() if len(one.light_ns)]
    if light:
        result = replace(result, light_ns=round(median(light)))
    found = [typical_ns(one.untraced_ns) for one in untraced.values()]
    logged = [one for one in found if one is not None]
    if step_ns is not None:
        return replace(result, origin="given", untraced_ns=step_ns)
    if logged:
        mean, low, high = (round(median(column)) for column in zip(*logged, strict=True))
        return replace(
            result,
            origin="step log",
            untraced_ns=mean,
            untraced_low_ns=low,
            untraced_high_ns=high,
            best_ns=_median_of(map(best_ns, untraced.values())),
            num_untraced=max(len(one.untraced_ns) for one in untraced.values()),
        )
    if light:
        return replace(result, origin="light steps", untraced_ns=result.light_ns)
    return result


def _median_of(values: Iterable[float | None]) -> int | None:
    known = [value for value in values if value is not None]
    return round(median(known)) if known else None


class _Job(msgspec.Struct, frozen=True, kw_only=True):
    """The input of a worker."""

    rank: int
    source: TableSource
    is_cpu: bool
    collections: Intervals


def _read(job: _Job) -> RankEvents | None:
    tables = job.source.load(every_host_row=True)
    return find_events(job.rank, tables, is_cpu=job.is_cpu, collections=job.collections)


def _corrected(
    run: Run,
    events: Sequence[RankEvents],
    windows: Mapping[int, Int64Array],
    known: PerturbationResult,
    untraced: Mapping[int, UntracedSteps],
    target_ns: int,
) -> Correction:
    try:
        model = Model(run, events, windows)
    except CycleError as error:
        why = f"The recording contradicts itself: {error}."
        return Correction(run=run, result=replace(known, unavailable=(why,)))
    lengths = np.stack([np.diff(windows[one.rank], axis=1)[:, 0] for one in events])
    # Windows without other work: those that a typical step without the profiler stands for.
    mean = lengths.mean(axis=0)
    usual = mean <= 2 * np.median(mean)
    traced = float(lengths[:, usual].mean())
    steps = len(usual)
    known = replace(
        known,
        traced_ns=round(float(lengths.mean())),
        num_operators=_per_step([one.half_ops for one in events], steps),
        num_launches=_per_step([one.half_calls for one in events], steps),
    )
    repeated = float(model.steps(model.simulate([Cost()]))[:, usual].mean())
    off = abs(repeated / traced - 1)
    if off > LARGEST_ERROR:
        why = (
            f"The recording could not be repeated from its dependencies (off by "
            f"{format_ratio(off)}): the profiler's cost is still in it."
        )
        return Correction(run=run, result=replace(known, unavailable=(why,)))
    factors = _factors(events, untraced, windows)
    if abs(traced / target_ns - 1) < LEAST_COST and not factors:
        return Correction(run=run, result=replace(known, simulated_ns=known.traced_ns))
    found = fit(model, target_ns, usual, factors, _call_ns(known))
    if factors and found.step_ns < (1 - LEAST_COST) * min(target_ns, repeated):
        factors = {}  # they would make steps shorter than they are without the profiler
        found = fit(model, target_ns, usual, factors, _call_ns(known))
    times = model.simulate([found.cost], factors)
    result = replace(
        known,
        is_corrected=True,
        simulated_ns=round(float(model.steps(times).mean())),
        operator_ns=round(found.cost.operator_ns),
        call_ns=round(found.cost.call_ns),
        is_paced_by_gpu=found.is_bound,
    )
    moved = {one.events.rank: one for one in model.of_ranks(times, 0)}
    collections = {
        rank: Intervals(*map(moved[rank].moved, one.collections))
        for rank, one in untraced.items()
        if rank in moved
    }
    return Correction(run=corrected_run(run, moved), result=result, collections=collections)


def _call_ns(known: PerturbationResult) -> float | None:
    """Cost of a launch according to steps in which launches were recorded, and no operators."""
    # A GPU that sets the pace hides part of it, so it is used only if it is at least as likely.
    if known.light_ns is None or not known.num_launches or not known.untraced_ns:
        return None
    cost = (known.light_ns - known.untraced_ns) / known.num_launches
    return min(cost, MOST_CALL_NS) if cost >= LIKELY.call_ns / 2 else None


def _per_step(halves: Sequence[Int64Array], steps: int) -> int:
    return round(sum(int(one.sum()) for one in halves) / 2 / max(len(halves) * steps, 1))


def _factors(
    events: Sequence[RankEvents],
    untraced: Mapping[int, UntracedSteps],
    windows: Mapping[int, Int64Array],
) -> Factors:
    """Loads and collections as long as in steps without the profiler."""
    found: dict[int, dict[int, float]] = {}
    for one in events:
        if (known := untraced.get(one.rank)) is None:
            continue
        bounds = windows[one.rank]
        inside = (one.check_ns > bounds[0, 0]) & (one.check_ns <= bounds[-1, 1])
        inputs, collections = (  # CPU time, mean per window
            float(one.work_ns[inside & (one.part == part)].sum()) / len(bounds)
            for part in (Part.INPUT, Part.COLLECTION)
        )
        of_rank = {}
        wanted = known.input_ns
        if wanted is not None and inputs > 0 and max(wanted, inputs) > _NOTICED_INPUT_NS:
            of_rank[Part.INPUT] = wanted / inputs
        if known.collection_ns and collections > 0:
            of_rank[Part.COLLECTION] = known.collection_ns / collections
        if of_rank:
            found[one.rank] = of_rank
    return found


def rank_likely_steps(
    tables: RankTables,
    context: RankContext,
    windows: Intervals,
    idle: RankIdle | None,
    load_host: Callable[[], Table] | None,
) -> LikelySteps | None:
    """How long steps may take without the profiler, if late launches matter and nothing says so."""
    span = int((windows.end - windows.start).sum())
    if context.is_corrected or context.is_capture or idle is None or load_host is None:
        return None
    if idle.host_ns < LAUNCH_BOUND * span or span == 0:
        return None
    whole = replace(tables, host=load_host())
    events = find_events(context.rank, whole, is_cpu=context.is_cpu)
    if events is None:
        return None
    try:
        model = Model(None, [events], {context.rank: np.stack(windows, axis=1)})
    except CycleError:
        return None  # times of a damaged recording
    costs = [Cost(), LIKELY, MOST]
    repeated, likely, least = model.steps(model.simulate(costs)).mean(axis=(0, 1)).tolist()
    traced = span / windows.size
    if abs(repeated / traced - 1) > LARGEST_ERROR:
        return None
    return LikelySteps(
        likely_ns=round(likely),
        least_ns=round(least),
        num_operators=_per_step([events.half_ops], windows.size),
    )
