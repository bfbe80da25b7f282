"""# messages-held-up

## What it detects
In each step one rank leaves its GPU idle longer than its peers, and others wait for its messages.

## Why it costs time
In a pipeline or a ring the rank sends its messages later by this time, and their receivers wait.

## Evidence needed
Sends and receives with their waiting, CPU activities, and at least three steps. The other straggler
rules name ranks that collectives show to be late for a known cause. `uneven-input` reports waiting
for input.

## How the cost is computed
Idle time blamed on the rank's CPU, above the median of its peers, mean per step, but at most the
longest wait of any rank in sends and receives. A rank that would have waited for a message anyway
loses less, so the cost is an upper bound. The time is part of what
`exposed-communication` reports.

## How to fix
Look at the CPU of this rank: other processes on its cores, logging, checkpoints, garbage
collection, work between steps that only this rank does.

## When it is wrong
Work that only one rank does between steps on purpose, for example logging on the last stage.

## Sources
Formula sheet, "Measured from traces" (straggler).
"""

from __future__ import annotations

from collections.abc import Iterator

from distprof.rules.base import Draft, Limit, Limits, rule
from distprof.sections.stragglers.result import MessagesResult, StragglersResult
from distprof.terms import Confidence, Severity, StragglerCause, StragglerPattern
from distprof.units import format_duration, format_ratio


@rule(
    code="STR104",
    severity=Severity.WARNING,
    since="0.1.0",
    needs=(MessagesResult, StragglersResult),
    limits={
        "min_step_ratio": Limit(
            0.03, "share of the step that a rank may idle longer than its peers"
        ),
        "chance": Limit(0.01, "chance that identical ranks differ this much"),
    },
)
def check(
    messages: MessagesResult, stragglers: StragglersResult, limits: Limits
) -> Iterator[Draft]:
    """Yield one finding per rank."""
    step = messages.step_ns
    if not step:
        return  # no messages
    named = _explained(stragglers)
    for rank in messages.ranks:
        waits = [other.wait_ns_per_step for other in messages.ranks if other is not rank]
        late = rank.late_ns_per_step
        cost = min(late, max(waits, default=0))
        if rank.rank in named or rank.chance > limits["chance"]:
            continue
        if cost < limits["min_step_ratio"] * step:
            continue
        yield Draft(
            message=(
                f"Rank {rank.rank} waits for its CPU {format_duration(late)} of each step "
                f"({format_ratio(late / step)}) longer than its peers, and keeps others waiting "
                "for its messages."
            ),
            fix=(
                "Look at this rank's CPU: other processes on its cores, garbage collection, "
                "logging and checkpoints, work between steps that only it does."
            ),
            cost_ns_per_step=cost,
            confidence=Confidence.INFERRED,
            ranks=(rank.rank,),
            evidence=("messages.ranks",),
            without=f"rank {rank.rank}",
        )


def _explained(stragglers: StragglersResult) -> set[int]:
    """Ranks that other straggler rules name with a cause."""
    return {
        rank.rank
        for rank in stragglers.ranks
        if rank.pattern is not StragglerPattern.NONE and rank.cause is not StragglerCause.UNKNOWN
    }
