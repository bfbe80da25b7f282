"""# cpu-contention

## What it detects
Training threads are ready to run, but wait for a free CPU: other processes, or too many threads of
the job itself, share the host's CPUs.

## Why it costs time
A thread without a CPU launches nothing and, on CPU ranks, computes nothing. Ranks wait at different
moments, so at the next collective all of them wait for the rank that had no CPU. It looks like a
slow rank, and it is another one in the next run.

## Evidence needed
A run directory whose step log has the time in the run queue of each rank's training thread, which
Linux counts (`/proc/thread-self/schedstat`).

## How the cost is computed
Time in the run queue on the rank that waits longest, mean per step, without the first step and
those that take more than twice the median. Ranks that are late because of it are not called
stragglers. What the job gains on a quiet host is simulated as if all ranks kept up with each other.

A rank is named alone if it waits far longer than the others do, in proportion to the time that each
runs on a CPU. If all ranks wait, the machine is busy, and which rank is to blame is uncertain: for
seconds at a time, one of two ranks waits twice as long as the other by chance alone.

## How to fix
Give the job CPUs of its own: stop other work on the host, ask the scheduler for exclusive cores,
pin each rank (`numactl`, `taskset`, `--cpu-bind`), and set `OMP_NUM_THREADS` to the CPUs of a rank.

## When it is wrong
Only the training thread is watched. Threads that compute for it may wait too, which adds to the
cost, and on a GPU the wait may be hidden where work is queued.

## Sources
Linux kernel documentation, "Scheduler Statistics" (schedstat).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median

from distprof.rules.base import Draft, Limit, Limits, rule
from distprof.sections.idle.result import PausesResult, RankPauses
from distprof.sections.step_log.result import StepLogResult
from distprof.terms import Confidence, Severity
from distprof.units import format_duration, format_ratio, name_ranks


@rule(
    code="HST110",
    severity=Severity.WARNING,
    since="0.1.0",
    needs=(PausesResult, StepLogResult),
    limits={
        "min_step_ratio": Limit(0.03, "share of the step that waiting for a CPU may take"),
        "over_others": Limit(
            2.0, "wait over that of the other ranks, in proportion to CPU time, that names a rank"
        ),
        "busy_step_ratio": Limit(
            0.1, "share of the step that the other ranks wait, too, on a busy machine"
        ),
        "over_others_if_busy": Limit(
            2.5, "wait over that of the other rank that waits longest, on a busy machine"
        ),
        "of_longest": Limit(0.5, "wait over the longest from which a rank is named with it"),
    },
)
def check(pauses: PausesResult, step_log: StepLogResult, limits: Limits) -> Iterator[Draft]:
    """Yield one finding for the run."""
    step = step_log.median_ns or step_log.traced_median_ns
    if not step:
        return  # bare traces, which do not record it
    least = limits["min_step_ratio"] * step
    waits = {rank.rank: rank.run_queue_ns_per_step or 0 for rank in pauses.ranks}
    found = tuple(rank for rank, ns in waits.items() if ns > least)
    if not found:
        return
    alone = _starved(pauses, step, limits)
    named = alone or found
    worst = max(waits[rank] for rank in named)
    yield Draft(
        message=_of_few(alone, waits, step) if alone else _of_all(found, waits, step),
        fix=(
            "Give the job CPUs of its own: stop other work on the host, pin ranks to cores, and "
            "set OMP_NUM_THREADS to the CPUs of a rank."
        ),
        cost_ns_per_step=worst,
        confidence=Confidence.INFERRED,
        ranks=named,
        evidence=("pauses.ranks", "step_log.median_ns"),
        without="late ranks",
        explains=("COM102", "COM103", "STR110"),
    )


def _starved(pauses: PausesResult, step_ns: int, limits: Limits) -> tuple[int, ...]:
    """Fewer than half of the ranks, which wait far longer than the others; empty without any.

    On a busy machine they must wait far longer than whichever other rank waits longest, since among
    several ranks one waits twice as long as the median by chance.
    """
    waits = {rank.rank: rank.run_queue_ns_per_step for rank in pauses.ranks}
    if len(waits) < 2 or None in waits.values():
        return ()
    found = [rank for rank in pauses.ranks if _waits_long(rank, pauses.ranks, step_ns, limits)]
    most = max((_waited(rank) for rank in found), default=0)
    found = [rank for rank in found if _waited(rank) > most * limits["of_longest"]]
    rest = [rank for rank in pauses.ranks if rank not in found]
    if not found or not rest or len(found) > len(rest):
        return ()
    if median(map(_waited, rest)) > limits["busy_step_ratio"] * step_ns:
        times = limits["over_others_if_busy"]
        found = [
            rank
            for rank in found
            if _waited(rank) > times * max(_share_of(rank, other) for other in rest)
        ]
    return tuple(rank.rank for rank in found)


def _waits_long(
    rank: RankPauses, ranks: Sequence[RankPauses], step_ns: int, limits: Limits
) -> bool:
    """Whether a rank waits longer than its share.

    A rank that runs longer also waits longer on a busy machine: that is its share. One that runs
    less has no smaller one, since its CPU time is noisy, too.
    """
    others = [other for other in ranks if other is not rank]
    usual = median(map(_waited, others))
    share = max(usual, median(_share_of(rank, other) for other in others))
    waited = _waited(rank)
    is_long = waited - share > limits["min_step_ratio"] * step_ns
    return is_long and waited > limits["over_others"] * share


def _waited(rank: RankPauses) -> int:
    return rank.run_queue_ns_per_step or 0


def _share_of(rank: RankPauses, other: RankPauses) -> float:
    """What the rank would wait if it waited like another, ns per step."""
    ran = 1.0
    if rank.cpu_ns_per_step and other.cpu_ns_per_step:
        ran = rank.cpu_ns_per_step / other.cpu_ns_per_step
    return ran * _waited(other)


def _of_few(alone: tuple[int, ...], waits: Mapping[int, int], step: int) -> str:
    worst = max(waits[rank] for rank in alone)
    rest = max(ns for rank, ns in waits.items() if rank not in alone)
    up_to = "waits" if len(alone) == 1 else "wait up to"
    return (
        f"Other processes take the CPU of {name_ranks(alone)}, which {up_to} "
        f"{format_duration(worst)} of each step ({format_ratio(worst / step)}) for a free one. "
        f"The other ranks wait {format_duration(rest)} at most."
    )


def _of_all(found: tuple[int, ...], waits: Mapping[int, int], step: int) -> str:
    worst = max(waits[rank] for rank in found)
    wait = "waits" if len(found) == 1 else "wait up to"
    unsure = ", so any of these ranks may be late by chance" if len(found) > 1 else ""
    return (
        f"The machine is busy: {name_ranks(found)} {wait} {format_duration(worst)} of each step "
        f"({format_ratio(worst / step)}) for a free CPU. Other processes, or too many threads of "
        f"the job, take them{unsure}."
    )
