"""# messages-held-up

## What it detects
In each step one rank leaves its GPU idle longer than its peers, and others wait for its messages.

## Why it costs time
In a pipeline or a ring, the rank sends its messages that much later, and their receivers wait.

## Evidence needed
Sends and receives with their wait times, CPU activities, and at least three steps. The other
straggler rules name ranks that collectives show to be late for a known cause. `uneven-input`
reports waiting for input.

## How the cost is computed
Idle time blamed on the rank's CPU, above the median of its peers, mean per step, but at most the
longest wait of any other rank in sends and receives. A rank that would have waited for a message
anyway loses less, so the cost is an upper bound. The time is part of what `exposed-communication`
reports.

## How to fix
Look at the CPU of this rank: other processes on its cores, logging, checkpoints, garbage
collection, work between steps that only this rank does.

## When it is wrong
Work that only one rank does between steps on purpose, for example logging on the last stage. On a
busy machine, CPU ranks are late because they wait for a free CPU: the rule names no rank that waits
for a CPU at least as long as it is late.

## Sources
Formula sheet, "Measured from traces" (straggler).
"""

from __future__ import annotations

from collections.abc import Iterator

from distprof.rules.base import Draft, InsufficientEvidenceError, Limit, Limits, rule
from distprof.sections.idle.result import IdleResult, PausesResult
from distprof.sections.stragglers.result import MessageRank, MessagesResult, StragglersResult
from distprof.terms import Confidence, Severity, StragglerCause, StragglerPattern
from distprof.units import format_duration, format_ratio


@rule(
    code="STR104",
    severity=Severity.WARNING,
    since="0.1.0",
    limits={
        "min_step_ratio": Limit(
            0.03, "share of the step that a rank may idle longer than its peers"
        ),
        "chance": Limit(0.01, "chance that identical ranks differ this much"),
    },
)
def check(
    messages: MessagesResult,
    stragglers: StragglersResult,
    pauses: PausesResult,
    idle: IdleResult,
    limits: Limits,
) -> Iterator[Draft]:
    """Yield one finding per rank."""
    step = messages.step_ns
    if not step:
        return  # no messages
    named, queued = _explained(stragglers), pauses.queued_ns if idle.is_cpu else {}
    late = [
        rank
        for rank in messages.ranks
        if rank.rank not in named
        and rank.chance <= limits["chance"]
        and _cost_ns(rank, messages) >= limits["min_step_ratio"] * step
    ]
    sure = [rank for rank in late if queued.get(rank.rank, 0) < rank.late_ns_per_step]
    if late and not sure:
        worst = max(late, key=lambda rank: rank.late_ns_per_step)
        raise InsufficientEvidenceError(_without_cpu(worst, queued[worst.rank]))
    for rank in sure:
        late_ns = rank.late_ns_per_step
        yield Draft(
            message=(
                f"Rank {rank.rank} waits for its CPU {format_duration(late_ns)} longer than its "
                f"peers in each step ({format_ratio(late_ns / step)}), and keeps others waiting "
                "for its messages."
            ),
            fix=(
                "Look at this rank's CPU: other processes on its cores, garbage collection, "
                "logging and checkpoints, work between steps that only this rank does."
            ),
            cost_ns_per_step=_cost_ns(rank, messages),
            confidence=Confidence.INFERRED,
            ranks=(rank.rank,),
            evidence=("messages.ranks",),
            without=f"rank {rank.rank}",
        )


def _cost_ns(rank: MessageRank, messages: MessagesResult) -> int:
    """Lateness of the rank, but at most the longest wait of another rank."""
    waits = [other.wait_ns_per_step for other in messages.ranks if other is not rank]
    return min(rank.late_ns_per_step, max(waits, default=0))


def _without_cpu(rank: MessageRank, queued_ns: int) -> str:
    return (
        f"rank {rank.rank} holds up messages {format_duration(rank.late_ns_per_step)} longer than "
        f"its peers, but it waits {format_duration(queued_ns)} of each step for a free CPU"
    )


def _explained(stragglers: StragglersResult) -> set[int]:
    """Ranks that other straggler rules name with a cause."""
    return {
        rank.rank
        for rank in stragglers.ranks
        if rank.pattern is not StragglerPattern.NONE and rank.cause is not StragglerCause.UNKNOWN
    }
