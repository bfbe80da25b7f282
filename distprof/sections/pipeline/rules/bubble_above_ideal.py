"""# bubble-above-ideal

## What it detects
A pipeline idles longer than its schedule explains.

## Why it costs time
Warm-up and drain are the price of the schedule. Any further idle time has another cause: unequal
stages, messages, micro-batches of different lengths, or late launches by the CPU.

## Evidence needed
Slots of all stages of a pipeline (`distprof:pp …` marks, torch's annotations, or a pipeline
timeline), and ranks whose clocks can be compared, to separate messages from CPU delays.

## How the cost is computed
Idle time of the mean rank between the pipeline's first and last work, minus that of the same order
of actions replayed with equal stages and free messages. Further replays restore one effect each,
which splits the excess into unequal stages, uneven micro-batches, messages, and CPU and other.
`unequal-stages` and `exposed-pipeline-messages` report two of these parts: do not add them up.

## How to fix
Look at the largest part. Unequal stages: move layers. Uneven micro-batches: pack sequences to equal
lengths. Messages: keep neighbouring stages on the same node or on nearby nodes. CPU: use CUDA
graphs or larger micro-batches, run less Python between actions, and collect garbage between steps.
Exposed collectives of other axes inside slots (sharding, tensor parallelism) also count as CPU and
other.

## When it is wrong
If processes share CPU cores or a GPU, the scheduler delays them, and the delay counts as CPU time.
The CPU is also slower under a profiler.

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

_IMBALANCE, _VARIATION = "unequal stages", "uneven micro-batches"
_MESSAGES, _HOST = "messages", "late launches, stalls inside slots and other causes"

_FIXES = {
    _IMBALANCE: "Move layers from the busiest stage to the others.",
    _VARIATION: "Give micro-batches equal work: pack sequences to equal lengths.",
    _MESSAGES: "Put neighbouring stages on one node, and check the links between them.",
    _HOST: (
        "Launch earlier: use CUDA graphs or larger micro-batches, run less Python between actions, "
        "and collect garbage only between steps. Look for exposed collectives of other axes inside "
        "slots."
    ),
}


@rule(
    code="PIP103",
    severity=Severity.WARNING,
    since="0.1.0",
    limits={
        "excess_ratio": Limit(
            0.05, "largest acceptable share of idle time beyond what the order of actions explains"
        ),
    },
)
def check(pipeline: PipelineResult, limits: Limits) -> Iterator[Draft]:
    """Yield one finding per pipeline shape."""
    for judged in judged_groups(pipeline):
        excess = judged.idle_ns - judged.warm_up_drain_ns
        if judged.ratio(excess) <= limits["excess_ratio"]:
            continue
        ns, what = max(_parts(judged.group))
        yield Draft(
            message=(
                f"{judged.name} idles {format_ratio(judged.ratio(judged.idle_ns))} of its time, "
                f"of which its schedule explains "
                f"{format_ratio(judged.ratio(judged.warm_up_drain_ns))}. The largest part of the "
                f"other {format_ratio(judged.ratio(excess))} ({format_duration(excess)}) is lost "
                f"to {what} ({format_duration(ns)})."
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
"""Scenarios of the simulated step, by the most expensive cause."""


def _parts(group: PipelineGroup) -> list[tuple[int, str]]:
    return [
        (group.imbalance_ns or 0, _IMBALANCE),
        (group.variation_ns or 0, _VARIATION),
        (group.exposed_p2p_ns or 0, _MESSAGES),
        (group.host_ns or 0, _HOST),
    ]
