"""# messages-held-up

## What it detects
In each step one rank leaves its device idle longer than its peers, and others wait for messages.

## Why it costs time
In a pipeline or a ring what the rank sends leaves later by as much, and whoever needs it waits.

## Evidence needed
Sends and receives with their waiting, host activities, and at least three steps. Ranks that
collectives show to be late, and why, are named by the other straggler rules instead; waiting for
input is `uneven-input`'s.

## How the cost is computed
Idle time that is blamed on the rank's host, beyond the median of its peers, mean per step, but no
more than what the rank that waits longest waits in sends and receives. A rank that would have had
to wait for a message anyway loses less: it is an upper bound. The time is part of what
`exposed-communication` reports.

## How to fix
Look at the host of this rank: other processes on its cores, logging, checkpoints, garbage
collection, work between steps that only this rank does.

## When it is wrong
Work on purpose that only one rank does between steps, for example logging on the last stage.

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
        "min_step_ratio": Limit(0.03, "share of the step that a rank may idle beyond its peers"),
        "chance": Limit(0.01, "chance that ranks which are all alike differ so much"),
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
                f"Rank {rank.rank} idles for its host for {format_duration(late)} of each step "
                f"({format_ratio(late / step)}) beyond its peers, and keeps others waiting for "
                "its messages."
            ),
            fix=(
                "Look at this rank's host: other processes on its cores, garbage collection, "
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
