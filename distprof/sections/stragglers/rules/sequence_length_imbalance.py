"""# sequence-length-imbalance

## What it detects
In each step another rank computes longer than the mean, as its sequences are longer.

## Why it costs time
Attention grows with the square of a sequence's length. A batch with one document of 8,000 tokens
takes far longer than one with eight of 1,000, though both hold the same number of tokens, and all
ranks wait for the one that drew it.

## Evidence needed
At least three steps of at least two ranks that do the same work. What ranks compute beyond the mean
must follow the tokens of the step log, or the time in attention kernels, which must differ between
ranks more than all other computation does. It must not be the same rank in all steps: a device that
is slow, or a shard that always has more work, is `persistent-straggler`.

## How the cost is computed
The busiest rank's computation less the mean of all, mean over steps: what even batches would give
back. The time is part of what `exposed-communication` reports.

## How to fix
Build batches of equal cost instead of equal numbers of samples or tokens: add up the squares of the
lengths, sort the documents of a global batch by it, and give the longest to the rank that has least
so far. Bucketing by length does much of the same. Where documents are packed, cut the longest.

## Example
```text
sequence-length-imbalance: in each step one rank computes 1.42 times the mean, by sequences that are
longer than the others' (told by attention: it varies by 61 % between ranks, the rest by 1 %);
4.05 ms of each step (18.9 %) would not be lost with even batches.
```

## When it is wrong
Attention that differs for another reason, such as caches of unlike sizes. Tokens that follow
something else that takes time.

## Sources
Formula sheet, "Measured from traces" (straggler; more work). Lin et al., "Understanding Stragglers
in Large Model Training Using What-if Analysis", OSDI 2025.
"""

from __future__ import annotations

from collections.abc import Iterator

from distprof.rules.base import Draft, Limit, Limits, rule
from distprof.sections.collectives.result import CollectivesResult
from distprof.sections.shares import WIDER_WAIT
from distprof.sections.stragglers.result import SequenceImbalance, StragglersResult
from distprof.terms import Confidence, Severity
from distprof.units import format_duration, format_ratio


@rule(
    code="STR106",
    severity=Severity.WARNING,
    since="0.1.0",
    needs=(StragglersResult, CollectivesResult),
    limits={"min_step_ratio": Limit(0.03, "share of the step that may be lost to it")},
)
def check(
    stragglers: StragglersResult, collectives: CollectivesResult, limits: Limits
) -> Iterator[Draft]:
    """Yield one finding for the run."""
    found = stragglers.sequences
    if found is None or not collectives.classes:
        return
    if found.share_of_step_ratio < limits["min_step_ratio"]:
        return
    yield Draft(
        message=(
            f"In each step one rank computes {found.max_over_mean:.2f} times the mean, by "
            f"sequences that are longer than the others' ({_told(found)}); "
            f"{format_duration(found.lost_ns_per_step)} of each step "
            f"({format_ratio(found.share_of_step_ratio)}) would not be lost with even batches."
        ),
        fix=(
            "Build batches of equal cost, not of equal numbers of tokens: give the documents of a "
            "global batch, by the sum of their squared lengths, to the rank that has least so far."
        ),
        cost_ns_per_step=found.lost_ns_per_step,
        confidence=Confidence.MEASURED if found.evidence == "tokens" else Confidence.INFERRED,
        evidence=("stragglers.sequences",),
        without="even-work",
        explains=WIDER_WAIT,
    )


def _told(found: SequenceImbalance) -> str:
    if found.attention_spread is None or found.rest_spread is None:
        return "it follows the tokens of the step log"
    return (
        f"told by {found.evidence}: attention varies by {format_ratio(found.attention_spread)} "
        f"between ranks, the rest by {format_ratio(found.rest_spread)}"
    )
