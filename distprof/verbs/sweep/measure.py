"""Analyses efficiency over the number of ranks: uncertainty, losses by cause, and fitted laws.

Formula sheet, "Scaling": throughput X is the work of all ranks per time. The speed-up over the
baseline of b ranks is X_N / X_b, and the efficiency is the speed-up divided by N / b. With step
times t, this is t_b·b/(t_N·N) for the same total work, and t_b/t_N for the same work per rank.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distprof.artefacts.summary_file import Fingerprint, StepParts, SummaryFile, unlike
from distprof.costs.repeats import Interval, compare_pairs, compare_repeats, step_interval
from distprof.costs.scaling import (
    LAWS,
    NoScalingFitError,
    ScalingFit,
    fit_scaling,
    throughput_speedup,
)
from distprof.rules.engine import run_rules
from distprof.terms import DATA_AXES
from distprof.units import NS_PER_S, capitalized
from distprof.verbs.sweep import (
    CAUSES,
    Mode,
    ScalingLaw,
    ScalingLoss,
    ScalingParameter,
    ScalingPrediction,
    ScalingReport,
    ScalingResult,
    ScalingSize,
    says,
)
from distprof.verbs.sweep.runs import Sweep, SweepError, gather
from distprof.version import __version__


def mean_parts(runs: Sequence[SummaryFile]) -> StepParts | None:
    """Sum of the parts of all traced repeats; None if no repeat has valid parts."""
    traced = [run.parts for run in runs if run.parts is not None and _is_sound(run.parts)]
    if not traced:
        return None
    fields = StepParts.__struct_fields__
    return StepParts(**{field: sum(getattr(parts, field) for parts in traced) for field in fields})


def scaled(parts: StepParts, step_ns: int) -> StepParts:
    """The parts scaled to another step time, in whole ns that add up to it exactly."""
    factor = Fraction(step_ns, parts.span_ns)
    values = {field: int(getattr(parts, field) * factor) for field in CAUSES}
    values["other_ns"] += step_ns - sum(values.values())
    return StepParts(span_ns=step_ns, **values)


def split_loss(
    base: StepParts, parts: StepParts, ideal_step_ns: int, step_ns: int
) -> tuple[ScalingLoss, ...]:
    """Time beyond the ideal step, by cause; the sum is exact."""
    before, after = scaled(base, ideal_step_ns), scaled(parts, step_ns)
    lost = {field: getattr(after, field) - getattr(before, field) for field in CAUSES}
    return tuple(
        ScalingLoss(cause=cause, lost_ns=lost[field], ratio=lost[field] / step_ns)
        for field, cause in CAUSES.items()
    )


def transfer_ns(runs: Sequence[SummaryFile], parts: StepParts) -> int | None:
    """Transfer time of a step, overlapped or not; None if unknown, or if no transfer was exposed.

    Exposed communication is the share 1 − overlap of all communication, including waits.
    """
    overlaps = [run.overlap_ratio for run in runs if run.parts is not None]
    known = [overlap for overlap in overlaps if overlap is not None and 0 <= overlap < 1]
    exposed = parts.exposed_transfer_ns + parts.unsplit_comm_ns
    blocked = exposed + parts.exposed_wait_ns + parts.bubble_ns
    if not known or exposed <= 0:
        return None
    overlap = sum(known) / len(known)
    return round(exposed + blocked * overlap / (1 - overlap))


def _is_sound(parts: StepParts) -> bool:
    """Whether the parts add up to a step and none is negative."""
    values = [int(getattr(parts, field)) for field in CAUSES]
    return parts.span_ns > 0 and min(values) >= 0 and sum(values) == parts.span_ns


_EXTRAPOLATED = (2, 4, 8)
Floats = NDArray[np.float64]


def analyze_scaling(
    summaries: Iterable[SummaryFile], *, mode: Mode | None = None, baseline_ranks: int | None = None
) -> ScalingResult:
    """Compare runs of several sizes; if they are not a sweep, the result holds the reasons."""
    try:
        sweep = gather(summaries, mode)
    except SweepError as reason:
        return ScalingResult(unavailable=(str(reason),))
    base = min(sweep.runs) if baseline_ranks is None else baseline_ranks
    if base not in sweep.runs:
        found = ", ".join(map(str, sweep.runs))
        why = f"No run has {base} ranks, the requested baseline. The sizes are {found}."
        return ScalingResult(unavailable=(why,))
    sizes = tuple(_size(sweep, base, ranks) for ranks in sweep.runs)
    laws, refused = _laws(sweep, base)
    return ScalingResult(
        mode=sweep.mode,
        how=sweep.how,
        unit=sweep.unit,
        baseline_ranks=base,
        sizes=sizes,
        laws=laws,
        unavailable=(*sweep.left_out, *refused, *_lacking(sweep, sizes)),
    )


def _steps(runs: Sequence[SummaryFile]) -> Floats:
    """Median step of each repeat, in ns."""
    return np.array([float(np.median(run.step_ns)) for run in runs])


def _size(sweep: Sweep, base: int, ranks: int) -> ScalingSize:
    runs = sweep.runs[ranks]
    step, is_between = _step(runs)
    base_step = _step(sweep.runs[base])[0].value
    throughput = sweep.work[ranks] / step.value * NS_PER_S
    ideal = ranks / base
    speedup = throughput_speedup(sweep.work[base] / base_step * NS_PER_S, throughput)
    low, high = (None, None) if ranks == base else _efficiency_ends(sweep, base, ranks)
    step_ns = max(round(step.value), 1)
    ideal_ns = max(round(base_step * base * sweep.work[ranks] / (sweep.work[base] * ranks)), 1)
    parts, before = mean_parts(runs), mean_parts(sweep.runs[base])
    lost: dict[str, Any] = {}
    if ranks != base and before is not None and parts is not None:
        lost["losses"] = split_loss(before, parts, ideal_ns, step_ns)
    return ScalingSize(
        num_ranks=ranks,
        num_repeats=len(runs),
        num_steps=sum(len(run.step_ns) for run in runs),
        step_ns=step_ns,
        step_low_ns=None if math.isinf(step.low) else round(step.low),
        step_high_ns=None if math.isinf(step.high) else round(step.high),
        work_per_step=sweep.work[ranks] if sweep.has_work else None,
        throughput_per_s=throughput,
        speedup=speedup,
        ideal_speedup=ideal,
        efficiency=speedup / ideal,
        efficiency_low=low,
        efficiency_high=high,
        is_between_runs=is_between,
        is_traced=any(run.is_traced for run in runs),
        ideal_step_ns=ideal_ns,
        lost_ns=step_ns - ideal_ns,
        is_data_parallel=all(n <= 1 or axis in DATA_AXES for axis, n in mesh.items())
        if (mesh := runs[-1].fingerprint.mesh)
        else None,
        run_step_ns=tuple(round(step) for step in _steps(runs)),
        **lost,
        **_traced(runs, parts, step_ns),
    )


def _step(runs: Sequence[SummaryFile]) -> tuple[Interval, bool]:
    """Centre and interval over repeats, or over the steps of a single run."""
    if len(runs) == 1:
        return step_interval(runs[0].step_ns), False
    logs = np.log(_steps(runs))
    centre = compare_pairs(np.zeros(len(runs)), logs)
    return Interval(*(math.exp(end) for end in (centre.value, centre.low, centre.high))), True


def _efficiency_ends(sweep: Sweep, base: int, ranks: int) -> tuple[float | None, float | None]:
    """95 % interval of the efficiency: ratio of step times multiplied by ratio of work per rank."""
    before, after = sweep.runs[base], sweep.runs[ranks]
    share = sweep.work[ranks] * base / (sweep.work[base] * ranks)
    if min(len(before), len(after)) > 1:
        change = compare_repeats(np.log(_steps(after)), np.log(_steps(before)))
        return share * math.exp(change.low), share * math.exp(change.high)
    first, second = _step(before)[0], _step(after)[0]
    if math.isinf(first.low) or math.isinf(second.low):
        return None, None
    value = math.log(first.value / second.value)
    below = math.hypot(math.log(first.value / first.low), math.log(second.high / second.value))
    above = math.hypot(math.log(first.high / first.value), math.log(second.value / second.low))
    return share * math.exp(value - below), share * math.exp(value + above)


def _traced(runs: Sequence[SummaryFile], total: StepParts | None, step_ns: int) -> dict[str, Any]:
    """Results from traces, scaled to the step."""
    if total is None:
        return {}
    parts = scaled(total, step_ns)
    number = sum(run.parts is not None for run in runs)
    return {
        "traced_ratio": total.span_ns / number / step_ns,
        "computation_ns": parts.computation_ns,
        "transfer_ns": transfer_ns(runs, parts),
        "exposed_transfer_ns": parts.exposed_transfer_ns + parts.unsplit_comm_ns,
    }


def _laws(sweep: Sweep, base: int) -> tuple[tuple[ScalingLaw, ...], list[str]]:
    """Fitted laws, and the reasons why others were not fitted."""
    ranks: list[int] = []
    throughput: list[float] = []
    for number, runs in sweep.runs.items():
        ranks += [number] * len(runs)
        throughput += (sweep.work[number] / _steps(runs) * NS_PER_S).tolist()
    fitted: list[ScalingLaw] = []
    refused: list[str] = []
    for law in LAWS:
        if law == ("amdahl" if sweep.mode == "weak" else "gustafson"):
            continue  # it describes the other kind of scaling
        try:
            fit = fit_scaling(law, ranks, throughput)
        except NoScalingFitError as reason:
            refused.append(f"{capitalized(str(reason))}.")
            continue
        sizes = sorted(sweep.runs)
        peak = fit.peak
        beyond = [factor * sizes[-1] for factor in _EXTRAPOLATED]
        fitted.append(
            ScalingLaw(
                law=law,
                parameters=tuple(
                    ScalingParameter(name=name, value=p.value, low=p.low, high=_finite(p.high))
                    for name, p in zip(fit.names, fit.parameters, strict=True)
                ),
                residual_ratio=fit.residual_ratio,
                peak_ranks=peak.value if peak else None,
                peak_low=peak.low if peak else None,
                peak_high=_finite(peak.high) if peak else None,
                predictions=tuple(
                    _prediction(fit, ranks, base, sizes[-1]) for ranks in (*sizes, *beyond)
                ),
                notes=fit.notes,
            )
        )
    return tuple(fitted), refused


def _prediction(fit: ScalingFit, ranks: int, base: int, largest: int) -> ScalingPrediction:
    interval = fit.relative_efficiency(ranks, base)
    return ScalingPrediction(
        num_ranks=ranks,
        efficiency=interval.value,
        low=interval.low,
        high=interval.high,
        is_extrapolated=ranks > largest,
    )


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _ranks(sizes: Sequence[str]) -> str:
    """For example ``1 and 4 ranks``."""
    *others, last = sizes
    if others:
        return f"{', '.join(others)} and {last} ranks"
    return "1 rank" if last == "1" else f"{last} ranks"


def _lacking(sweep: Sweep, sizes: Sequence[ScalingSize]) -> Iterator[str]:
    single = [str(size.num_ranks) for size in sizes if not size.is_between_runs]
    if single:
        yield says("single run", ranks=_ranks(single))
    bare = [str(ranks) for ranks, runs in sweep.runs.items() if mean_parts(runs) is None]
    if bare:
        yield f"No traced steps on {_ranks(bare)}: the causes of that loss are unknown."


def report_scaling(
    summaries: Sequence[SummaryFile],
    *,
    source: str,
    mode: Mode | None = None,
    baseline_ranks: int | None = None,
    limits: Mapping[str, Mapping[str, float]] | None = None,
    site: str = "",
    num_cpus: int | None = None,
) -> ScalingReport:
    """Analyse a sweep and run the rules; ``num_cpus`` is of the one machine of all runs."""
    result = analyze_scaling(summaries, mode=mode, baseline_ranks=baseline_ranks)
    outcome = run_rules([result], limits, site=site)
    first = min(summaries, key=lambda summary: summary.fingerprint.world_size or 0, default=None)
    return ScalingReport(
        distprof_version=__version__,
        source=source,
        fingerprint=first.fingerprint if first else Fingerprint(),
        scaling=result,
        findings=outcome.findings,
        not_checked=outcome.not_checked,
        notes=(*_crowded(summaries, num_cpus), *_notes(summaries)),
    )


def _crowded(summaries: Sequence[SummaryFile], num_cpus: int | None) -> Iterator[str]:
    """A note on sizes with more CPU threads than CPUs."""
    if num_cpus is None or not all(one.fingerprint.device.startswith("cpu") for one in summaries):
        return
    needed = {
        one.fingerprint.world_size: one.fingerprint.world_size * _threads(one)
        for one in summaries
        if one.fingerprint.world_size is not None
    }
    crowded = [ranks for ranks in sorted(needed) if needed[ranks] > num_cpus]
    if crowded:
        where = "1 CPU" if num_cpus == 1 else f"{num_cpus} CPUs"
        yield says("crowded", ranks=crowded[0], where=where)


def _threads(summary: SummaryFile) -> int:
    threads = summary.fingerprint.config.get("training.threads", "1")
    is_asleep = summary.fingerprint.config.get("training.compute") == "sleep"
    return 0 if is_asleep else int(threads) if threads.isdecimal() else 1


def _notes(summaries: Sequence[SummaryFile]) -> tuple[str, ...]:
    """Differences between the runs other than their size."""
    if not summaries:
        return ()
    first = summaries[0].fingerprint
    found = {
        difference.sentence
        for other in summaries[1:]
        for difference in unlike(first, other.fingerprint, sizes_may_differ=True)
        if difference.field != "workload" or not _is_same_command(first, other.fingerprint)
    }
    return tuple(f"Not like for like: {sentence}." for sentence in sorted(found))


def _is_same_command(first: Fingerprint, other: Fingerprint) -> bool:
    """Whether two commands differ only in their numbers of ranks."""
    pieces = [re.split(r"(\d+)", one.workload) for one in (first, other)]
    ranks = (str(first.world_size), str(other.world_size))
    return len(pieces[0]) == len(pieces[1]) and all(
        pair[0] == pair[1] or pair == ranks for pair in zip(*pieces, strict=True)
    )
