"""# sequence-length-imbalance

## What it detects
In each step a different rank computes longer than the mean, because its sequences are longer.

## Why it costs time
Attention grows with the square of a sequence's length. A batch with one document of 8,000 tokens
takes far longer than one with eight of 1,000, though both hold the same number of tokens, and all
ranks wait for the one that drew it.

## Evidence needed
At least three steps of at least two ranks that do the same work. What ranks compute above the mean
must follow the tokens of the step log, or the time in attention kernels, which must differ between
ranks more than all other computation does. It must not be the same rank in all steps: a slow GPU,
or a shard that always has more work, is `persistent-straggler`.

## How the cost is computed
The busiest rank's computation less the mean of all, mean over steps: what even batches would
recover. The time is part of what `exposed-communication` reports.

## How to fix
Build batches of equal cost instead of equal numbers of samples or tokens: sort the
documents of a global batch by squared length, and give each to the rank with the least work so far.
Bucketing by length has much the same effect. If documents are packed, cut the longest.

## When it is wrong
Attention that differs for another reason, such as caches of different sizes. Token counts that
correlate with another cost.

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
    limits={"min_step_ratio": Limit(0.03, "share of the step that the imbalance may cost")},
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
            f"The busiest rank of a step computes {found.max_over_mean:.2f} times as long as the "
            f"mean rank, because its sequences are longer ({_evidence(found)}). Even batches would "
            f"recover {format_duration(found.lost_ns_per_step)} of each step "
            f"({format_ratio(found.share_of_step_ratio)})."
        ),
        fix=(
            "Build batches of equal cost, not of equal numbers of tokens: sort the documents of a "
            "global batch by squared length, and give each to the rank with the least work so far."
        ),
        cost_ns_per_step=found.lost_ns_per_step,
        confidence=Confidence.MEASURED if found.evidence == "tokens" else Confidence.INFERRED,
        evidence=("stragglers.sequences",),
        without="even-work",
        explains=WIDER_WAIT,
    )


def _evidence(found: SequenceImbalance) -> str:
    if found.attention_spread is None or found.rest_spread is None:
        return "computation follows the tokens of the step log"
    return (
        f"known from {found.evidence}: attention varies by {format_ratio(found.attention_spread)} "
        f"between ranks, the rest by {format_ratio(found.rest_spread)}"
    )
