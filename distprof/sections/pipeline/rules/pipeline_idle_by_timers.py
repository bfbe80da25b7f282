"""# pipeline-idle-by-timers

## What it detects
According to the training program's timers, a pipeline stage computes for too little of an
iteration.

## Why it costs time
A stage without a micro-batch waits: for the pipeline to fill and drain, for slower stages, or for
messages.

## Evidence needed
A log of the training program (`distprof analyze train.log`, or `--with train.log`) with the timers
`forward-compute` and `backward-compute` and the layout, as Megatron-LM prints them, and no marks of
the pipeline's slots. If slots are known, other pipeline rules give more detail.

## How the cost is computed
The mean iteration minus the stage's computation and the acceptable idle share. The ideal idle share
is (P − 1)/(V·M + P − 1) with P stages, M micro-batches and V chunks per rank. Idle time above it is
due to unequal stages, messages and all other time without computation.

## How to fix
If the ideal share is the larger part, use more micro-batches (a larger batch, or smaller
micro-batches), several chunks per rank (interleaved 1F1B), or fewer stages. If it is the smaller
part, balance the stages and check the messages between them.

## When it is wrong
The timers cover one stage. Another stage may compute longer if stages are unequal. The optimizer
step and data-parallel reductions count as idle here. The timer of the embedding's all-reduce mostly
shows waiting for the first and the last stage, not transfer that could be faster.

## Sources
Formula sheet, "Pipeline bubble" (fraction, rule of thumb); Narayanan et al. 2021.
"""

from __future__ import annotations

from collections.abc import Iterator

from distprof.rules.base import Draft, InsufficientEvidenceError, Limit, Limits, rule
from distprof.sections.pipeline.result import PipelineResult
from distprof.sections.training_log.result import TrainingLogResult
from distprof.terms import Severity
from distprof.units import format_duration, format_ratio

MICRO_BATCHES_PER_STAGE = 4


@rule(
    code="PIP105",
    severity=Severity.WARNING,
    since="0.1.0",
    limits={
        "idle_ratio": Limit(0.1, "largest acceptable share of an iteration without computation")
    },
)
def check(log: TrainingLogResult, pipeline: PipelineResult, limits: Limits) -> Iterator[Draft]:
    """Yield one finding for the pipeline in the log."""
    if not log.origin or log.mesh.get("pp", 1) < 2:
        return
    if log.idle_ratio is None or log.ideal_bubble_ratio is None or log.mean_ns is None:
        raise InsufficientEvidenceError("the log has no computation timers, or no layout")
    if pipeline.groups or log.idle_ratio <= limits["idle_ratio"]:
        return
    ideal = min(log.ideal_bubble_ratio, log.idle_ratio)
    yield Draft(
        message=_message(log, log.idle_ratio - ideal),
        fix=_fix(log, ideal),
        cost_ns_per_step=round((log.idle_ratio - limits["idle_ratio"]) * log.mean_ns),
        evidence=("training_log.timers",),
    )


def _message(log: TrainingLogResult, other_ratio: float) -> str:
    who = f"The {log.timer_stage} stage" if log.timer_stage else "The slowest rank"
    stages, batches = log.mesh["pp"], log.num_micro_batches or 0
    text = (
        f"{who} computes {format_ratio(log.compute_ratio)} of each iteration of "
        f"{format_duration(log.mean_ns)}: {batches:,} micro-batch{'' if batches == 1 else 'es'} on "
        f"{stages} stages leave {format_ratio(log.ideal_bubble_ratio)} idle at best"
    )
    if not other_ratio:
        return f"{text}."
    return f"{text}, and {format_ratio(other_ratio)} has other causes."


def _fix(log: TrainingLogResult, ideal: float) -> str:
    """A fix for the larger part of the idle time."""
    if ideal >= (log.idle_ratio or 0.0) / 2:
        wanted = MICRO_BATCHES_PER_STAGE * log.mesh["pp"]
        most = (log.num_micro_batches or 0) * (log.micro_batch_size or wanted)
        more = f"Use more micro-batches ({min(wanted, most):,} or more for {log.mesh['pp']} stages)"
        if log.micro_batch_size == 1:
            more = "Each micro-batch is one sample: use a larger batch"
        return f"{more}, several chunks per rank, or fewer stages."
    return "Balance the stages (the first and the last hold the embedding), and overlap messages."
