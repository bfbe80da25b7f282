"""# unrecorded-straggler

## What it detects
Recorded ranks arrive late at collectives because they themselves waited in a collective with a rank
that was not recorded. That rank, or the network to it, is slow.

## Why it costs time
Lateness spreads: members of a process group wait for the slow one, and then all groups of these
members wait for them.

## Evidence needed
Collectives of which all members are recorded, matched across ranks, after collectives that lack a
member. If every collective lacks one, waiting cannot be separated from transfer.

## How the cost is computed
Exposed waiting of the other members at complete collectives whose last member may have waited for
an unrecorded rank, a mean over ranks and steps. The time in the incomplete collectives themselves
is not included, so the repair may save more.

## How to fix
Record the missing ranks. Until then, look at their nodes: clocks and temperatures, input, links.

## When it is wrong
An incomplete collective may be long because its transfer is slow, and not because a rank is late.

## Sources
Formula sheet, "Measured from traces" (straggler).
"""

from __future__ import annotations

from collections.abc import Iterator

from distprof.rules.base import Draft, Limit, Limits, rule
from distprof.sections.capture.result import CaptureResult
from distprof.sections.shares import mean_step_if_timed, unrecorded
from distprof.sections.stragglers.result import StragglersResult
from distprof.sections.time.result import StepTimeResult, WaterfallResult
from distprof.terms import Confidence, Severity


@rule(
    code="STR114",
    severity=Severity.WARNING,
    since="0.1.0",
    limits={"min_step_ratio": Limit(0.02, "smallest share of the step that is worth reporting")},
)
def check(
    stragglers: StragglersResult,
    waterfall: WaterfallResult,
    step_time: StepTimeResult,
    capture: CaptureResult,
    limits: Limits,
) -> Iterator[Draft]:
    """Yield one finding for the run."""
    cost = stragglers.unrecorded_ns_per_step
    step = mean_step_if_timed(waterfall, step_time)
    if step is None or step.ratio(cost) < limits["min_step_ratio"]:
        return
    yield Draft(
        message=(
            f"The recorded ranks wait {step.share(cost)} for {unrecorded(capture)}: "
            "late ranks had waited in a collective that lacks a member."
        ),
        fix=(
            "Record all ranks to see which is late and why. Until then, look at the nodes of the "
            "missing ranks: clocks and temperatures, input, links."
        ),
        cost_ns_per_step=cost,
        confidence=Confidence.INFERRED,
        ranks=capture.ranks_missing,
        evidence=("stragglers.unrecorded_ns_per_step",),
        explains=("COM103",),
        comes_first=True,
    )
