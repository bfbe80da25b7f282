"""# exposed-pipeline-messages

## What it detects
Pipeline stages wait for messages that have already been sent.

## Why it costs time
A stage that has no other work while an activation or gradient is in transfer idles for the whole
transfer. These transfers add up as each micro-batch passes forward and backward through all stages.

## Evidence needed
Slots of all stages of a pipeline, and ranks whose clocks can be compared. If the trace shows when
receiving ended (receive kernels, or the probes' `distprof:pp_wait`), later time counts as CPU time.
Otherwise all time until the stage begins counts as message time.

## How the cost is computed
distprof replays the observed order of actions twice: without messages, and with the time that each
action waited for its input after the neighbour had produced it. The difference between the two
spans is the cost of messages. Messages that overlap with other work cost nothing.

## How to fix
Keep neighbouring stages on the same node or on nearby nodes. Send in bf16. Split messages and
overlap them with computation (`defer` receives). Interleaved schedules send more often, so fewer
stages per rank send less.

## When it is wrong
Clock errors as long as a message distort the result: check the clock residual. On CPU ranks the
receiving thread itself may be late.

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
    limits={
        "exposed_ratio": Limit(
            0.03, "largest acceptable share of the pipeline's time spent on exposed messages"
        ),
    },
)
def check(pipeline: PipelineResult, limits: Limits) -> Iterator[Draft]:
    """Yield one finding per pipeline shape."""
    for judged in judged_groups(pipeline):
        cost = judged.exposed_p2p_ns
        if judged.ratio(cost) <= limits["exposed_ratio"]:
            continue
        yield Draft(
            message=(
                f"{judged.name} spends {format_ratio(judged.ratio(cost))} of its time waiting for "
                f"messages already sent ({format_duration(cost)} of "
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
