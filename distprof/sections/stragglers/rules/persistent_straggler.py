"""# persistent-straggler

## What it detects
The same rank (or few ranks) is last to arrive at the collectives of most steps, and the others
wait for it.

## Why it costs time
A synchronous job runs at the speed of its slowest rank. One GPU that is 10 % slower
makes a thousand others 10 % slower.

## Evidence needed
Collectives matched across at least two ranks, on clocks that can be compared. No rank is blamed for
lateness below the clock residual. A rank is named only if its share of the waiting is far above
what chance would give to one of many equal ranks.

## How the cost is computed
For each collective at which the rank arrived last, the median exposed wait of the other members, as
a mean over all other ranks of the run. The cost is the sum over the collectives of a step, as a
mean over steps. Propagated lateness counts for the rank that caused it: a rank that waited in one
group of a mesh, and therefore arrives late at its next, is not blamed. The time is part of what
`exposed-communication` reports. With several stragglers, fixing one recovers only the time down to
the next. A CPU that launches slowly may cost nothing as long as its GPU waits for a slower rank
anyway. If its rank would be the next straggler, the rule names it too, with the time that the
others would then wait for it.

## How to fix
By cause. Slow GPU (its kernels take longer than the same kernels elsewhere): check clocks,
temperature, power cap and the card, and take the node out. More work: balance data, experts and
layers. Late input: check its storage and `num_workers`. Late launches: pin cores, and look for
other processes on its machine and for Python's garbage collector.

## When it is wrong
Unequal work on purpose (the last pipeline stage, a rank that also logs or evaluates) is a
property of the program. Where ranks are missing from the capture, one of them may be later still.
Lateness that propagates through a group missing from the trace is blamed on the rank that shows it.

## Sources
Formula sheet, "Measured from traces" (straggler).
"""

from __future__ import annotations

from collections.abc import Iterator

from distprof.rules.base import Draft, Limit, Limits, rule
from distprof.sections.collectives.result import CollectivesResult
from distprof.sections.moe.result import MoeResult
from distprof.sections.stragglers.result import StragglerSet, StragglersResult
from distprof.sections.stragglers.rules._shared import (
    because,
    fix_of,
    is_for_experts,
    of_pattern,
    sets_of_pattern,
    who,
)
from distprof.terms import Confidence, Severity, StragglerCause, StragglerPattern
from distprof.units import format_duration, format_ratio


@rule(
    code="STR101",
    severity=Severity.WARNING,
    since="0.1.0",
    limits={
        "min_step_ratio": Limit(0.015, "share of the step that waiting for the rank may take"),
        "error_step_ratio": Limit(0.1, "share of the step from which it is an error"),
    },
)
def check(
    stragglers: StragglersResult, collectives: CollectivesResult, moe: MoeResult, limits: Limits
) -> Iterator[Draft]:
    """Yield one finding per persistent straggler."""
    found = of_pattern(
        stragglers, collectives, StragglerPattern.PERSISTENT, limits["min_step_ratio"]
    )
    sets = [
        one
        for one in sets_of_pattern(
            stragglers, StragglerPattern.PERSISTENT, limits["min_step_ratio"]
        )
        if not is_for_experts(one, moe)
    ]
    article = "the" if len(found) + len(sets) == 1 else "a"
    yield from (_of_set(one, article, limits) for one in sets)
    for rank in found:
        share = rank.share_of_step_ratio
        sure = rank.cause is not StragglerCause.UNKNOWN and rank.confidence >= 0.75
        yield Draft(
            message=(
                f"Rank {rank.rank} is {article} straggler: the others wait "
                f"{format_duration(rank.lost_ns_per_step)} ({format_ratio(share)}) of every step "
                f"for it. {because(rank)}."
            ),
            fix=fix_of(rank),
            cost_ns_per_step=rank.lost_ns_per_step,
            confidence=Confidence.MEASURED if sure else Confidence.INFERRED,
            ranks=(rank.rank,),
            evidence=("stragglers.ranks",),
            without=f"rank {rank.rank}",
            severity=Severity.ERROR if share >= limits["error_step_ratio"] else None,
        )


def _of_set(found: StragglerSet, article: str, limits: Limits) -> Draft:
    share = found.share_of_step_ratio
    sure = found.cause is not StragglerCause.UNKNOWN and found.confidence >= 0.75
    wait = f"{format_duration(found.lost_ns_per_step)} ({format_ratio(share)}) of"
    each = "every step" if found.since_step is None else "the mean step"
    since = "" if found.since_step is None else f" from step {found.since_step} on"
    if found.is_hidden:
        text = f"{who(found)} would be next: the others would wait {wait} {each}{since} if no "
        text += "slower rank hid it."
    elif len(found.ranks) == 1:
        text = f"{who(found)} is {article} straggler{since}: the others wait {wait} {each} for it."
    else:
        text = f"{who(found)} are slow{since}: the others wait {wait} {each} for them."
    return Draft(
        message=f"{text} {because(found)}.",
        fix=fix_of(found),
        cost_ns_per_step=found.lost_ns_per_step,
        confidence=Confidence.MEASURED if sure else Confidence.INFERRED,
        ranks=found.ranks,
        evidence=("stragglers.sets", "stragglers.ranks"),
        without=found.scenario,
        severity=Severity.ERROR if share >= limits["error_step_ratio"] else None,
    )
