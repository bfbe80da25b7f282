"""# transient-straggler

## What it detects
One rank arrives far later than all others in a few steps, and is on time in the rest.

## Why it costs time
Every rank waits for it in those steps. A stall of half a second every hundred steps of 100 ms
costs 5 % of the run, and no average shows it.

## Evidence needed
Collectives matched across at least two ranks, on comparable clocks. A late arrival counts only if
it is far outside the usual spread of the other members.

## How the cost is computed
As for `persistent-straggler`, as a mean over *all* analysed steps: the cost of the stalls per step
of this recording. A short recording that caught a rare stall overstates it. The time is part of
what `exposed-communication` reports.

## How to fix
Look at what this rank does in the named steps: a checkpoint or evaluation on one rank, logging,
garbage collection, a slow batch, a storage hiccup, a correctable network or memory error on its
node.

## When it is wrong
One or two recorded steps cannot show whether lateness lasts; the evidence says so. The
first step of a recording may hold the start of the profiler.

## Sources
Formula sheet, "Measured from traces" (straggler).
"""

from __future__ import annotations

from collections.abc import Iterator

from distprof.rules.base import Draft, Limit, Limits, rule
from distprof.sections.collectives.result import CollectivesResult
from distprof.sections.stragglers.result import RankStraggler, StragglerSet, StragglersResult
from distprof.sections.stragglers.rules._shared import because, fix_of, of_pattern, sets_of_pattern
from distprof.sections.time.result import StepTimeResult
from distprof.terms import Confidence, Severity, StragglerPattern
from distprof.units import fold_ranks, format_duration, format_ratio, name_ranks


@rule(
    code="STR102",
    severity=Severity.WARNING,
    since="0.1.0",
    limits={"min_step_ratio": Limit(0.01, "share of the mean step that the stalls may take")},
)
def check(
    stragglers: StragglersResult,
    collectives: CollectivesResult,
    step_time: StepTimeResult,
    limits: Limits,
) -> Iterator[Draft]:
    """Yield one finding per transient straggler."""
    for one in sets_of_pattern(stragglers, StragglerPattern.TRANSIENT, limits["min_step_ratio"]):
        yield _of_set(one)
    for rank in of_pattern(
        stragglers, collectives, StragglerPattern.TRANSIENT, limits["min_step_ratio"]
    ):
        steps = _late_steps(stragglers, rank) if step_time.median_ns is not None else ()
        yield Draft(
            message=(
                f"The other ranks wait for rank {rank.rank}{_how_long(rank, steps)}. "
                f"{because(rank)}."
            ),
            fix=fix_of(rank),
            cost_ns_per_step=rank.lost_ns_per_step,
            confidence=Confidence.INFERRED,
            ranks=(rank.rank,),
            steps=steps,
            evidence=("stragglers.ranks", "stragglers.steps"),
            without=f"rank {rank.rank}",
        )


def _of_set(found: StragglerSet) -> Draft:
    """Finding on ranks that are slow in some steps by their own time."""
    return Draft(
        message=(
            f"The other ranks wait for {name_ranks(found.ranks)}{_how_long(found, found.steps)}. "
            f"{because(found)}."
        ),
        fix=fix_of(found),
        cost_ns_per_step=found.lost_ns_per_step,
        confidence=Confidence.INFERRED,
        ranks=found.ranks,
        steps=found.steps,
        evidence=("stragglers.sets", "stragglers.steps"),
        without=found.scenario,
    )


def _how_long(rank: RankStraggler | StragglerSet, steps: tuple[int, ...]) -> str:
    mean = f"{format_duration(rank.lost_ns_per_step)}"
    share = format_ratio(rank.share_of_step_ratio)
    if not steps:
        return f" for {mean} of the capture ({share})"
    plural = "s" if len(steps) > 1 else ""
    return f" in step{plural} {fold_ranks(steps)}: {mean} per step over all steps ({share})"


def _late_steps(stragglers: StragglersResult, rank: RankStraggler) -> tuple[int, ...]:
    """Steps in which the rank cost most, and more than its mean."""
    return tuple(
        step.step
        for step in stragglers.steps
        if step.rank == rank.rank and step.rank_lost_ns >= max(rank.lost_ns_per_step, 1)
    )
