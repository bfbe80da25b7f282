"""Rules about pauses of the CPU."""

from __future__ import annotations

from collections.abc import Iterator

from distprof.escape import few_ranks
from distprof.rules.base import Draft, InsufficientEvidenceError, Limit, Limits, advice, rule
from distprof.sections.capture import CaptureResult
from distprof.sections.idle import COLLECTION, MEMORY, IdleResult, PausesResult
from distprof.sections.shares import StepTimes
from distprof.terms import Confidence, Severity
from distprof.units import capitalized, format_duration, format_ratio, name_ranks


def check_calls(idle: IdleResult, kind: str) -> None:
    """Raise an error if no calls of this kind tell the cause of idle time."""
    if not idle.ranks:
        raise InsufficientEvidenceError(
            f"no {kind} calls to judge by: the cause of idle time is unknown"
        )


OFTEN = 1.0
"""Calls per step below which the program already does what the fix says."""


@rule(
    "HST102",
    Severity.WARNING,
    idle_sync_ratio=Limit(
        0.02, "share of the step that the GPU may idle after synchronising calls"
    ),
)
def synchronising_calls(idle: IdleResult, times: StepTimes, limits: Limits) -> Iterator[Draft]:
    """The CPU waits for the GPU inside the step, and the GPU then waits for the CPU."""
    step = times.mean_step()
    check_calls(idle, "runtime")
    cost = step.mean(step.total.idle_sync_ns)
    if step.ratio(cost) < limits["idle_sync_ratio"] or not idle.sync_calls:
        return
    worst = max(idle.sync_calls, key=lambda call: call.idle_ns_per_step)
    if worst.count_per_step < OFTEN:
        return
    called = f"{worst.caller} ({worst.name})" if worst.caller else worst.name
    yield Draft(
        headline=f"The GPU idles {step.part(cost)} after the CPU has waited for it",
        message=(
            f"{step.amount(cost)}, mostly because of {called}: {worst.count_per_step:.1f} calls "
            f"per {step.word} on {name_ranks(worst.ranks)}, "
            f"{format_duration(worst.idle_ns_per_step)} idle."
        ),
        cost_ns_per_step=cost,
        ranks=worst.ranks,
        evidence=("idle.pauses", "waterfall.all.idle_sync_ns"),
        without="sync-calls",
    )


@rule(
    "HST103",
    Severity.WARNING,
    min_step_ratio=Limit(0.01, "share of the step that collections may take"),
)
def garbage_collection_pauses(
    pauses: PausesResult, idle: IdleResult, limits: Limits
) -> Iterator[Draft]:
    """Python's garbage collector stops the training thread for a noticeable share of the time."""
    least = limits["min_step_ratio"]
    paused = [rank for rank in pauses.ranks if 0 < least * rank.step_ns < rank.gc_ns_per_step]
    if not paused:
        return
    ranks = tuple(rank.rank for rank in paused)
    worst = max(paused, key=lambda rank: rank.gc_ns_per_step)
    taken = format_ratio(worst.gc_ns_per_step / worst.step_ns)
    alone = len(ranks) == 1
    who = capitalized(f"{few_ranks(ranks)} {'spends' if alone else 'spend up to'}")
    which = f"the longest of {worst.num_gc} collections"
    if worst.num_gc == 1:
        which = "its only collection"
    without = f"rank {ranks[0]}" if alone else ""
    if any(pause.kind == "collection" and pause.idle_ns_per_step for pause in idle.pauses):
        without = f"pause {COLLECTION}"
    yield Draft(
        headline=f"{who} {taken} of each step in garbage collection",
        message=(
            f"Python's collector takes {format_duration(worst.gc_ns_per_step)} of "
            f"{format_duration(worst.step_ns)} (mean of all steps); {which} takes "
            f"{format_duration(worst.longest_gc_ns)}."
        ),
        cost_ns_per_step=worst.gc_ns_per_step,
        ranks=ranks,
        evidence=("pauses.ranks", "step_log.ranks"),
        without=without,
    )


DOMINATES = 0.5
"""From this share of the step on, finding the cause comes before any other fix."""


@rule(
    "HST109",
    Severity.WARNING,
    idle_ratio=Limit(0.2, "share of the step that may be idle for unknown causes"),
)
def unexplained_idle(
    idle: IdleResult, capture: CaptureResult, times: StepTimes, limits: Limits
) -> Iterator[Draft]:
    """The GPU idles for a fifth of the step or more, and the recording does not show why."""
    if capture.filtered_ranks:
        raise InsufficientEvidenceError(
            "rows were removed from traces, so the GPU may have been busy when it seems idle"
        )
    step = times.mean_step()
    cost = step.mean(step.total.idle_unknown_ns)
    if idle.is_cpu or step.ratio(cost) < limits["idle_ratio"]:
        return
    why, fix = _reason(idle)
    yield Draft(
        headline=f"The GPU idles {step.part(cost)}, and the recording does not show why",
        message=f"{step.amount(cost)}{why}.",
        fix=fix,
        cost_ns_per_step=cost,
        confidence=Confidence.INFERRED,
        evidence=("idle.ranks", "waterfall.all.idle_unknown_ns"),
        comes_first=step.ratio(cost) >= DOMINATES,
    )


def _reason(idle: IdleResult) -> tuple[str, str]:
    """Why the cause is unknown, and how to find it."""
    if not idle.ranks:
        return ": it has no CPU activities, or they were not read", (
            "Also profile with ProfilerActivity.CPU, and read these activities (no --device-only)."
        )
    unknown = sum(rank.unknown_ns for rank in idle.ranks)
    inside = sum(rank.within_launch_ns for rank in idle.ranks)
    if inside > unknown / 2:
        return (
            f": {format_ratio(inside / unknown)} of this time is inside CUDA graphs, whose kernels "
            "the trace may lack"
        ), advice("unexplained-idle", "graphs")
    return ", although kernels were launched in time", advice("unexplained-idle", "others")


@rule(
    "HST111",
    Severity.WARNING,
    idle_ratio=Limit(0.02, "share of the step that the GPU may idle due to such calls"),
)
def memory_calls(idle: IdleResult, times: StepTimes, limits: Limits) -> Iterator[Draft]:
    """The CPU allocates or frees memory of the GPU inside steps, and the GPU runs out of work
    meanwhile.
    """
    step = times.mean_step()
    check_calls(idle, "runtime")
    calls = [pause for pause in idle.pauses if pause.kind == "memory"]
    cost = sum(pause.idle_ns_per_step for pause in calls)
    if not calls or step.ratio(cost) < limits["idle_ratio"]:
        return
    count = sum(pause.count_per_step for pause in calls)
    worst = calls[0]
    yield Draft(
        headline=f"The GPU idles {step.part(cost)} while the CPU allocates and frees its memory",
        message=(
            f"{step.amount(cost)}: {count:.1f} calls per {step.word}, most of the time in "
            f"{worst.name}{f' ({worst.caller})' if worst.caller else ''}."
        ),
        cost_ns_per_step=cost,
        ranks=worst.ranks,
        evidence=("idle.pauses", "waterfall.all.idle_pause_ns"),
        without=f"pause {MEMORY}",
    )
