"""Rules about step log."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from distprof.escape import few_ranks
from distprof.rules.base import Draft, InsufficientEvidenceError, Limit, Limits, advice, rule, worth
from distprof.sections.idle import IdleResult, PausesResult
from distprof.sections.step_log import LateInLog, LateOnGpu, PeriodicStall, StepLogResult
from distprof.sections.stragglers import StragglersResult
from distprof.terms import Confidence, Severity
from distprof.units import capitalized, format_duration, format_ratio, name_ranks

_FEWEST_STEPS = 12


@rule(
    "HST105",
    Severity.WARNING,
    stalled_ratio=Limit(0.01, "smallest share of the mean step that is worth reporting"),
)
def periodic_stalls(step_log: StepLogResult, idle: IdleResult, limits: Limits) -> Iterator[Draft]:
    """At regular intervals one step takes much longer on all ranks at once, for example because of
    a checkpoint or an evaluation.
    """
    if not step_log.ranks:
        return  # bare traces: a few steps show nothing periodic
    if step_log.median_ns is None:
        why = "; ".join(step_log.unavailable) or "no step was logged without a profiler"
        raise InsufficientEvidenceError(why)
    if step_log.num_steps < _FEWEST_STEPS:
        raise InsufficientEvidenceError(
            f"the step log has {step_log.num_steps} steps: too few to find periodic stalls"
        )
    for stall in step_log.stalls:
        usual_ns = step_log.step_ns or step_log.median_ns
        if stall.may_wait_for_gpu:  # such a stall is part of the means that step_ns is made of
            usual_ns = step_log.median_ns
        elif step_log.smoothed_steps >= stall.period:
            usual_ns -= stall.cost_ns_per_step
        if stall.cost_ns_per_step < limits["stalled_ratio"] * (usual_ns + stall.cost_ns_per_step):
            continue
        # whether the CPU cannot run ahead, by the calls that emptied the GPU's queue
        if stall.may_wait_for_gpu and sum(call.count_per_step for call in idle.sync_calls) < 1.0:
            yield Draft(
                headline=f"One of every {stall.period} steps takes much longer, on all ranks",
                message=(
                    f"{_what(stall, usual_ns)}. Either it stops training, or the CPU only waits "
                    "in it for work that it queued on the GPU in the steps before."
                ),
                fix=advice(
                    "periodic-stalls", "unclear", first=stall.first_step + 1, period=stall.period
                ),
                severity=Severity.INFO,
                evidence=("step_log.stalls",),
            )
        else:
            yield _draft(stall, usual_ns)


def _what(stall: PeriodicStall, median_ns: int) -> str:
    return (
        f"Every {stall.period} steps, one takes {format_duration(stall.longer_ns)} longer than"
        f" the median of {format_duration(median_ns)} ({stall.num_stalls} of"
        f" {stall.num_due} due, the first is step {stall.first_step})"
    )


def _draft(stall: PeriodicStall, median_ns: int) -> Draft:
    cost, mean = stall.cost_ns_per_step, median_ns + stall.cost_ns_per_step
    return Draft(
        headline=f"Training stalls at regular intervals: {format_ratio(cost / mean)} of its time",
        message=(
            f"{_what(stall, median_ns)}; per step that is {format_duration(cost)} of "
            f"{format_duration(mean)}."
        ),
        fix=advice("periodic-stalls", "certain", period=stall.period),
        cost_ns_per_step=cost,
        evidence=("step_log.stalls",),
    )


_MOST_NAMED = 0.5
"""Largest share of ranks that may be late: above it, the job has no few stragglers to name."""

_OF_INPUT = 0.5
"""Share of a rank's excess from which its input is the cause, which another rule reports."""


@rule(
    "STR112",
    Severity.WARNING,
    excess_ratio=Limit(0.1, "smallest excess over the peers' CPU time in 65 % of the steps"),
    excess_ratio_if_busy=Limit(0.5, "the same if ranks wait for a free CPU"),
    busy_step_ratio=Limit(
        0.1, "share of the step in the run queue from which a machine counts as busy"
    ),
    gpu_excess_ratio=Limit(
        0.075, "the same on GPUs, as a lower bound, over the peers' time up to a collective"
    ),
    min_step_ratio=worth(0.02),
)
def late_rank_without_trace(
    step_log: StepLogResult, pauses: PausesResult, stragglers: StragglersResult, limits: Limits
) -> Iterator[Draft]:
    """No trace compares the ranks, but the probes show one or a few late ranks in nearly every
    step. On CPUs their training threads compute longer than those of their peers. On GPUs they
    arrive late at collectives.
    """
    step = step_log.step_ns
    if not step or len(stragglers.ranks) > 1:
        return
    yield from _on_gpus(step_log, step, limits)
    is_busy = (
        median([rank.run_queue_ns_per_step or 0 for rank in pauses.ranks] or [0])
        > limits["busy_step_ratio"] * step
    )
    min_ratio = limits["excess_ratio_if_busy" if is_busy else "excess_ratio"]
    late = [
        one
        for one in step_log.late
        if one.often_ratio >= min_ratio and not _is_input(step_log, one)
    ]
    rest = [one for one in step_log.late if one not in late]
    if not late or len(late) > _MOST_NAMED * len(step_log.ranks):
        return
    cost = _cost_ns(late, rest)
    if cost < limits["min_step_ratio"] * step:
        return
    first = late[0]
    who = capitalized(few_ranks([one.rank for one in late]))
    longer = f"{format_ratio(first.late_ratio)} longer in each step than"
    how = "computes" if len(late) == 1 else "compute up to"
    yield Draft(
        headline=f"{who} {how} {longer} {'its' if len(late) == 1 else 'their'} peers",
        message=(
            f"{format_duration(first.late_ns)} longer (median of {first.num_steps:,} steps "
            f"without a profiler). At the pace of the others a step "
            f"would take {format_duration(cost)} less ({format_ratio(cost / step)})."
        ),
        fix=advice(
            "late-rank-without-trace",
            "cpus",
            ranks=name_ranks(one.rank for one in late),
            do="does" if len(late) == 1 else "do",
        ),
        cost_ns_per_step=cost,
        confidence=Confidence.INFERRED,
        ranks=tuple(sorted(one.rank for one in late)),
        evidence=("step_log.late",),
    )


def _on_gpus(step_log: StepLogResult, step: int, limits: Limits) -> Iterator[Draft]:
    least = limits["gpu_excess_ratio"]
    late = [one for one in step_log.late_on_gpus if one.often_ratio >= least]
    if not late or len(late) > _MOST_NAMED * len(step_log.ranks):
        return
    first = late[0]
    if first.late_ns < limits["min_step_ratio"] * step:
        return
    who = capitalized(few_ranks([one.rank for one in late]))
    work = "works" if len(late) == 1 else "work up to"
    yield Draft(
        headline=(
            f"{who} {work} {format_ratio(first.late_ratio)} longer up to a collective than peers"
        ),
        message=_message_of_gpus(late),
        fix=advice("late-rank-without-trace", "gpus", rank=first.rank),
        cost_ns_per_step=first.late_ns,
        confidence=Confidence.INFERRED,
        ranks=tuple(sorted(one.rank for one in late)),
        evidence=("step_log.late_on_gpus",),
    )


def _message_of_gpus(late: list[LateOnGpu]) -> str:
    first = late[0]
    who = capitalized(name_ranks(one.rank for one in late))
    arrive = "arrives" if len(late) == 1 else "arrive up to"
    by, most = format_duration(first.late_ns), format_duration(first.late_most_ns)
    if most != by:
        by += f" or more, at most {most},"
    return (
        f"{who} {arrive} {by} late at a collective in each step (median of {first.num_steps:,} "
        "steps, by the durations of collectives on the GPUs)."
    )


def _cost_ns(late: list[LateInLog], rest: list[LateInLog]) -> int:
    """Excess of the latest rank over the slowest rank that is not named."""
    if not rest:
        return max(one.gained_ns for one in late)
    return max(0, max(one.late_ns for one in late) - max(one.late_ns for one in rest))


def _is_input(step_log: StepLogResult, late: LateInLog) -> bool:
    """Whether the phase ``input`` may account for at least half of the rank's excess."""
    spent = {row.rank: row.phases.get("input", 0) for row in step_log.ranks}
    others = [ns for rank, ns in spent.items() if rank != late.rank]
    return spent[late.rank] - median(others) >= _OF_INPUT * late.late_ns
