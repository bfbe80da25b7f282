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

from collections.abc import Iterator

from distprof.rules.base import Draft, Limit, Limits, rule
from distprof.sections.idle.result import PausesResult
from distprof.sections.step_log.result import StepLogResult
from distprof.terms import Confidence, Severity
from distprof.units import format_duration, format_ratio, name_ranks


@rule(
    code="HST110",
    severity=Severity.WARNING,
    since="0.1.0",
    needs=(PausesResult, StepLogResult),
    limits={"min_step_ratio": Limit(0.03, "share of the step that waiting for a CPU may take")},
)
def check(pauses: PausesResult, step_log: StepLogResult, limits: Limits) -> Iterator[Draft]:
    """Yield one finding for the run."""
    step = step_log.median_ns or step_log.traced_median_ns
    if not step:
        return  # bare traces, which do not record it
    waits = {rank.rank: rank.run_queue_ns_per_step or 0 for rank in pauses.ranks}
    found = tuple(rank for rank, ns in waits.items() if ns > limits["min_step_ratio"] * step)
    if not found:
        return
    worst = max(found, key=lambda rank: waits[rank])
    names = name_ranks(found)
    wait = "waits" if len(found) == 1 else "wait up to"
    yield Draft(
        message=(
            f"The CPUs are shared: {names} {wait} {format_duration(waits[worst])} of each step "
            f"({format_ratio(waits[worst] / step)}) for a free one. Other processes, or too many "
            "threads of the job, take them."
        ),
        fix=(
            "Give the job CPUs of its own: stop other work on the host, pin ranks to cores, and "
            "set OMP_NUM_THREADS to the CPUs of a rank."
        ),
        cost_ns_per_step=waits[worst],
        confidence=Confidence.INFERRED,
        ranks=found,
        evidence=("pauses.ranks", "step_log.median_ns"),
        without="late ranks",
        explains=("COM102", "COM103", "STR110"),
    )
