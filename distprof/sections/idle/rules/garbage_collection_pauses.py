"""# garbage-collection-pauses

## What it detects
Python's garbage collector stops the training thread for a noticeable share of the time.

## Why it costs time
While it collects, the CPU launches nothing. Ranks collect at different moments, so at the next
collective all of them wait for the rank that collected.

## Evidence needed
A run directory with pauses (`pauses.jsonl`) and a step log, both of the whole run and not only of
the traced steps.

## How the cost is computed
Time in collections on the rank that collects most, mean per step, without the first step. The real
cost is higher if ranks collect at different moments, and lower if the GPU has work queued. A
straggler finding may include the time that other ranks wait for this one.

## How to fix
After set-up call `gc.collect()` and `gc.freeze()`, so that the collector skips long-lived objects.
Then call `gc.disable()`, and `gc.collect()` on all ranks in the same step, every few hundred steps.

## When it is wrong
In a short run, one long collection weighs more than in a day of training.

## Sources
Python documentation of the module `gc`.
"""

from __future__ import annotations

from collections.abc import Iterator

from distprof.rules.base import Draft, Limit, Limits, rule
from distprof.sections.idle.result import COLLECTION, IdleResult, PausesResult, RankPauses
from distprof.sections.step_log.result import StepLogResult
from distprof.terms import Severity
from distprof.units import capitalized, format_duration, format_ratio, name_ranks


@rule(
    code="HST103",
    severity=Severity.WARNING,
    since="0.1.0",
    limits={"min_step_ratio": Limit(0.01, "share of the step that collections may take")},
)
def check(
    pauses: PausesResult, step_log: StepLogResult, idle: IdleResult, limits: Limits
) -> Iterator[Draft]:
    """Yield one finding for the run."""
    step = step_log.step_ns or step_log.traced_median_ns
    if not step:
        return  # bare traces, which do not record garbage collection
    allowed_ns = limits["min_step_ratio"] * step
    paused = [rank for rank in pauses.ranks if rank.gc_ns_per_step > allowed_ns]
    if not paused:
        return
    ranks = tuple(rank.rank for rank in paused)
    worst = max(paused, key=lambda rank: rank.gc_ns_per_step)
    yield Draft(
        message=(
            f"{_who(ranks)} {format_duration(worst.gc_ns_per_step)} of each step "
            f"({format_ratio(worst.gc_ns_per_step / step)}) in Python's garbage collector; "
            f"{_longest(worst)}."
        ),
        fix=(
            "Call gc.collect() and gc.freeze() after set-up, then gc.disable(), and gc.collect() "
            "on all ranks in the same step, every few hundred steps."
        ),
        cost_ns_per_step=worst.gc_ns_per_step,
        ranks=ranks,
        evidence=("pauses.ranks", "step_log.median_ns"),
        without=_without(ranks, idle),
    )


def _without(ranks: tuple[int, ...], idle: IdleResult) -> str:
    """The scenario without collections, if the traces show what they cost."""
    if any(pause.kind == "collection" and pause.idle_ns_per_step for pause in idle.pauses):
        return f"pause {COLLECTION}"
    return f"rank {ranks[0]}" if len(ranks) == 1 else ""


def _who(ranks: tuple[int, ...]) -> str:
    if len(ranks) == 1:
        return f"Rank {ranks[0]} spends"
    names = name_ranks(ranks)
    return f"{capitalized(names)} spend up to"


def _longest(rank: RankPauses) -> str:
    longest = format_duration(rank.longest_gc_ns)
    if rank.num_gc == 1:
        return f"its only collection takes {longest}"
    return f"the longest of {rank.num_gc} collections takes {longest}"
