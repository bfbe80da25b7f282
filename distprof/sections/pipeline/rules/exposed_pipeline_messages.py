"""# exposed-pipeline-messages

## What it detects
Stages of a pipeline wait for messages that have already been sent.

## Why it costs time
A stage that has nothing else to do while an activation or gradient is on its way idles for the
whole transfer. On the way of every micro-batch through all stages, and back, transfers add up.

## Evidence needed
Slots of all stages of a pipeline, and ranks whose clocks can be compared. Where the trace shows
when receiving ended (receive kernels, or the probes' `distprof:pp_wait`), what comes after it is
the host's; elsewhere all of the time until the stage begins counts as its message's.

## How the cost is computed
The observed order of actions is replayed twice, without messages and with the time that each action
waited for its input after its neighbour had made it. The difference of the two spans is what
messages cost; those that other work hides cost nothing.

## How to fix
Keep neighbouring stages on one node, or on nodes that are near each other. Send in bf16. Split
messages and overlap them with computation (`defer` receives, interleaved schedules send more
often: fewer stages per rank send less).

## When it is wrong
Clocks that are off by as much as a message takes: look at the clock residual. On CPUs the receiving
thread may be late itself.

## Sources
Formula sheet, "Pipeline bubble" (exposed messages) and "Volume per training step" (PP).
"""

from __future__ import annotations

from collections.abc import Iterator

from distprof.rules.base import Draft, Limit, Limits, rule
from distprof.sections.pipeline.result import PipelineResult
from distprof.sections.pipeline.rules._shared import judged_groups
from distprof.terms import MeshAxis, Severity
from distprof.units import format_duration, format_ratio


@rule(
    code="PIP104",
    severity=Severity.WARNING,
    since="0.1.0",
    needs=(PipelineResult,),
    limits={
        "exposed_ratio": Limit(0.03, "share of the pipeline's time that messages may cost"),
    },
)
def check(pipeline: PipelineResult, limits: Limits) -> Iterator[Draft]:
    """Yield one finding per shape of pipeline."""
    for judged in judged_groups(pipeline):
        cost = judged.exposed_p2p_ns
        if judged.ratio(cost) <= limits["exposed_ratio"]:
            continue
        yield Draft(
            message=(
                f"{judged.name} waits for messages already sent for "
                f"{format_ratio(judged.ratio(cost))} of its time ({format_duration(cost)} of "
                f"{format_duration(judged.span_ns)})."
            ),
            fix=(
                "Put neighbouring stages on one node, check the links between them, and send "
                "activations in bf16."
            ),
            cost_ns_per_step=cost,
            confidence=judged.group.confidence,
            evidence=("pipeline.groups",),
            without=f"axis {MeshAxis.PP}",
        )
