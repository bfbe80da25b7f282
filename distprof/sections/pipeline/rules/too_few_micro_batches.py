"""# too-few-micro-batches

## What it detects
A pipeline spends more than a tenth of its time filling and draining because it has too few
micro-batches per step for its number of stages.

## Why it costs time
The last stage cannot begin before the first micro-batch has passed all others, and the first one
idles while the last ones drain. With P ranks, M micro-batches and V stages per rank, this takes (P
− 1)/(V·M + P − 1) of the time on any hardware.

## Evidence needed
Slots of all stages of a pipeline: marks (`distprof:pp …`, recorded by the probe `pipeline_marks`),
torch's own annotations, or a pipeline timeline. If a stage is missing, the causes of idle time
cannot be separated and the rule is not checked. If only messages show the stages, the order of
actions is unknown: the rule then compares the idle time with (P − 1)/(V·M + P − 1), and is
*inferred*.

## How the cost is computed
distprof replays the observed order of actions with equal stages and free messages. The cost is the
idle time of the mean rank in that replay. Only another order or more micro-batches changes it, and
not all of it can be recovered. Predictions replay other orders with the measured durations for the
same batch: twice as many micro-batches are half as large and take half as long. The time that the
finding recovers also comes from a replay. In the plan, this replay uses the stages as the repairs
above it leave them.

## How to fix
Use more micro-batches if the batch can be divided further: M of at least 4 P keeps the bubble below
20 %. Otherwise use several stages per rank (interleaved 1F1B), or a schedule that fills the bubble
with weight gradients (zero bubble, ZB-V).

## When it is wrong
Smaller micro-batches use the GPU less efficiently and so take more than their share of the time,
and more activations may have to be kept. Predictions account for neither.

## Sources
Formula sheet, "Pipeline bubble" (fraction, rule of thumb); Narayanan et al. 2021.
"""

from __future__ import annotations

from collections.abc import Iterator

from distprof.rules.base import Draft, Limit, Limits, rule
from distprof.sections.pipeline.result import PipelineGroup, PipelineResult, refill_key
from distprof.sections.pipeline.rules._shared import Judged, judged_groups
from distprof.terms import Confidence, Severity
from distprof.units import format_duration, format_ratio, name_ranks

BY_COUNT = 0.8
"""A pipeline of unknown order is reported if it idles for this share of the ideal bubble."""


@rule(
    code="PIP102",
    severity=Severity.WARNING,
    since="0.1.0",
    limits={
        "bubble_ratio": Limit(0.1, "largest acceptable share of time spent filling and draining"),
    },
)
def check(pipeline: PipelineResult, limits: Limits) -> Iterator[Draft]:
    """Yield one finding per pipeline shape."""
    if not any(group.warm_up_drain_ns is not None for group in pipeline.groups):
        by_count = list(_by_count(pipeline, limits["bubble_ratio"]))
        yield from by_count
        if by_count:
            return
    for judged in judged_groups(pipeline):
        share = judged.ratio(judged.warm_up_drain_ns)
        if share <= limits["bubble_ratio"]:
            continue
        group = judged.group
        yield Draft(
            message=(
                f"{judged.name} spends {format_ratio(share)} of its time filling and draining "
                f"({format_duration(judged.warm_up_drain_ns)} of {format_duration(judged.span_ns)})"
                f": {group.num_micro_batches} micro-batches on {len(group.ranks)} ranks with "
                f"schedule {group.schedule}."
            ),
            fix=_fix(judged),
            cost_ns_per_step=judged.warm_up_drain_ns,
            confidence=group.confidence,
            evidence=("pipeline.groups",),
            without=_scenario(judged),
        )


def _by_count(pipeline: PipelineResult, max_ratio: float) -> Iterator[Draft]:
    """One finding per pipeline of unknown order that idles as its micro-batches predict."""
    for group in pipeline.groups:
        ranks, batches = len(group.ranks), group.num_micro_batches
        span, idle = group.span_ns, group.bubble_fraction
        if not batches or not span or idle is None:
            continue
        ideal = (ranks - 1) / ((group.virtual_stages or 1) * batches + ranks - 1)
        if ideal <= max_ratio or idle < BY_COUNT * ideal:
            continue
        yield Draft(
            message=(
                f"The pipeline of {name_ranks(group.ranks)} idles {format_ratio(idle)} of its time "
                f"({format_duration(round(idle * span))} of {format_duration(span)}): "
                f"{batches} micro-batches on {ranks} stages leave {format_ratio(ideal)} idle at "
                "best, if stages alternate between forward and backward."
            ),
            fix=(
                f"{_more(group, ranks)}several stages per rank, or fewer stages. Mark the stages "
                "(pipeline_marks) to see the order."
            ),
            cost_ns_per_step=round(min(ideal, idle) * span),
            confidence=Confidence.INFERRED,
            evidence=("pipeline.groups",),
            explains=("COM101", "COM102", "COM103", "STR110"),
            comes_first=True,
        )


def _more(group: PipelineGroup, ranks: int) -> str:
    """Advice to use more micro-batches, as far as the batch has enough samples."""
    samples = group.samples_per_step
    if samples is not None and samples <= group.num_micro_batches:
        return "Each micro-batch is one sample: use a larger batch, "
    wanted = 4 * ranks if samples is None else min(4 * ranks, samples)
    return f"Use more micro-batches ({wanted} or more for {ranks} stages), "


def _fix(judged: Judged) -> str:
    """The best predictions with more micro-batches and with another schedule."""
    best = judged.group.better
    if not best:
        more = _more(judged.group, len(judged.group.ranks))
        return f"{more}several stages per rank, or a zero-bubble schedule."
    promises = "; ".join(judged.promise(row) for row in best)
    return f"For the same batch, {promises}."


def _scenario(judged: Judged) -> str:
    best = judged.group.better
    return refill_key(best[0]) if best else ""
