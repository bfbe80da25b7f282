"""# bubble-above-ideal

## What it detects
A pipeline idles for more than its schedule explains.

## Why it costs time
Warm-up and drain are the price of the schedule. Whatever idle comes on top is lost to something
else: stages that are not alike, messages, micro-batches that differ, or a host that is late.

## Evidence needed
Slots of all stages of a pipeline (`distprof:pp …` marks, torch's annotations, or a pipeline
timeline), and ranks whose clocks can be compared, to tell messages from the host.

## How the cost is computed
Idle of the mean rank between the pipeline's first and last work, less that of the same order of
actions replayed with equal stages and free messages. Further replays, each with one thing less put
to rights, say what it is made of: unequal stages, unlike micro-batches, messages, and the host and
other. `unequal-stages` and `exposed-pipeline-messages` name two of these parts: never add up.

## How to fix
Look at the largest part. Unequal stages: move layers. Unlike micro-batches: pack sequences to equal
lengths. Messages: keep neighbouring stages on one node or its nearest. Host: CUDA graphs or larger
micro-batches, less Python between actions, garbage collection between steps. Collectives of other
axes inside of slots (sharding, tensor parallelism) count there too where nothing hides them.

## Example
```text
bubble-above-ideal: The pipeline of ranks 0-7 idles for 36.5 % of its time, its order explains
27.8 %. Of the other 8.74 % (292 ms) most is lost to unequal stages (154 ms).
```

## When it is wrong
Where processes share cores or a device, the scheduler delays them; that counts as the host's. Under
a profiler the host is slower than without.

## Sources
Formula sheet, "Pipeline bubble" (measured; split into stage imbalance and exposed messages).
"""

from __future__ import annotations

from collections.abc import Iterator

from distprof.rules.base import Draft, Limit, Limits, rule
from distprof.sections.pipeline.result import PipelineGroup, PipelineResult
from distprof.sections.pipeline.rules._shared import judged_groups
from distprof.terms import MeshAxis, Severity
from distprof.units import format_duration, format_ratio

_IMBALANCE, _VARIATION = "unequal stages", "micro-batches that take unlike times"
_MESSAGES, _HOST = "messages", "late launches, stalls inside of slots and other"

_FIXES = {
    _IMBALANCE: "Move layers from the busiest stage to the others.",
    _VARIATION: "Give micro-batches equal work: pack sequences to equal lengths.",
    _MESSAGES: "Put neighbouring stages on one node, and check the links between them.",
    _HOST: (
        "Let the host launch earlier: CUDA graphs or larger micro-batches, less Python between "
        "actions, garbage collection between steps only. Look for collectives of other axes "
        "that nothing hides inside of slots."
    ),
}


@rule(
    code="PIP103",
    severity=Severity.WARNING,
    since="0.1.0",
    needs=(PipelineResult,),
    limits={
        "excess_ratio": Limit(0.05, "share of the pipeline's time idle beyond its order's own"),
    },
)
def check(pipeline: PipelineResult, limits: Limits) -> Iterator[Draft]:
    """Yield one finding per shape of pipeline."""
    for judged in judged_groups(pipeline):
        excess = judged.idle_ns - judged.warm_up_drain_ns
        if judged.ratio(excess) <= limits["excess_ratio"]:
            continue
        ns, what = max(_parts(judged.group))
        yield Draft(
            message=(
                f"{judged.name} idles for {format_ratio(judged.ratio(judged.idle_ns))} of its time,"
                f" its order explains {format_ratio(judged.ratio(judged.warm_up_drain_ns))}. Of the"
                f" other {format_ratio(judged.ratio(excess))} ({format_duration(excess)}) most is "
                f"lost to {what} ({format_duration(ns)})."
            ),
            fix=_FIXES[what],
            cost_ns_per_step=excess,
            confidence=judged.group.confidence,
            evidence=("pipeline.groups",),
            without=_WITHOUT.get(what, ""),
        )


_WITHOUT = {
    _IMBALANCE: "stage-imbalance",
    _MESSAGES: f"axis {MeshAxis.PP}",
    _HOST: "launch-gaps",
}
"""Scenarios of the simulated step, by what costs most."""


def _parts(group: PipelineGroup) -> list[tuple[int, str]]:
    return [
        (group.imbalance_ns or 0, _IMBALANCE),
        (group.variation_ns or 0, _VARIATION),
        (group.exposed_p2p_ns or 0, _MESSAGES),
        (group.host_ns or 0, _HOST),
    ]
