"""# periodic-stalls

## What it detects
At regular intervals one step takes much longer on all ranks at once, for example because of a
checkpoint or an evaluation.

## Why it costs time
No rank trains while the state is written or the model is evaluated. The mean step gets longer, but
a trace of a few steps hardly ever shows it.

## Evidence needed
A step log of all ranks with at least 4 such steps. Traced steps and their neighbours do not count.
Long steps must recur at regular intervals, 4 of 5 due steps must be long, and the probability that
the same number of long steps at random positions does this must be below 1 %.

## How the cost is computed
Time of these steps above the median step, on the fastest rank in each step, divided by the number
of all compared steps. This is an upper bound, because part of the work may be necessary.

On GPU ranks, a CPU that runs ahead of its GPU has short steps until the launch queue is full, and a
long one where it waits, for example to read the loss. There the cost is what all steps from one
long one to the next take above the pace with a full queue. If the log does not show that pace, a
long step may stop training or contain the GPU's work of the steps before it. Then the cost is
unknown, unless the traced steps show that the CPU waits for its GPU in each step, or the long step
lasts as long as 32 others: a launch queue does not hold that many.

## How to fix
Save asynchronously (`torch.distributed.checkpoint.async_save`): copy to pinned memory, continue
training, and write in the background. Let every rank write its own shards, to a local disk first.
Save and evaluate no more often than failures and decisions require; log scalars without
synchronising.

## When it is wrong
The rule ignores delays of a single rank, and logs shorter than four periods. Necessary work (an
evaluation) is not waste, but its cost is reported.

## Sources
PyTorch documentation, "Distributed Checkpoint" (`async_save`) and "CUDA semantics" (asynchronous
execution). The chance is the tail of the
hypergeometric distribution.
"""

from __future__ import annotations

from collections.abc import Iterator

from distprof.rules.base import Draft, InsufficientEvidenceError, Limit, Limits, rule
from distprof.sections.idle.result import IdleResult
from distprof.sections.step_log.result import PeriodicStall, StepLogResult
from distprof.terms import Severity
from distprof.units import format_duration, format_ratio

_FEWEST_STEPS = 12


@rule(
    code="HST105",
    severity=Severity.WARNING,
    since="0.1.0",
    limits={
        "stalled_ratio": Limit(0.01, "smallest share of the mean step that is worth reporting")
    },
)
def check(step_log: StepLogResult, idle: IdleResult, limits: Limits) -> Iterator[Draft]:
    """Yield one finding per period."""
    if not step_log.ranks:
        return  # bare traces: a few steps show nothing periodic
    if step_log.median_ns is None:
        why = "; ".join(step_log.unavailable) or "no step was logged without a profiler"
        raise InsufficientEvidenceError(why)
    if step_log.num_steps < _FEWEST_STEPS:
        raise InsufficientEvidenceError(
            f"the step log has {step_log.num_steps} steps: too few to find periodic stalls"
        )
    for stall in step_log.stalls:
        usual_ns = step_log.step_ns or step_log.median_ns
        if stall.may_wait_for_gpu:  # such a stall is part of the means that step_ns is made of
            usual_ns = step_log.median_ns
        if stall.cost_ns_per_step < limits["stalled_ratio"] * (usual_ns + stall.cost_ns_per_step):
            continue
        if stall.may_wait_for_gpu and not _waits_in_each_step(idle):
            yield _wait_or_stall(stall, usual_ns)
        else:
            yield _draft(stall, usual_ns)


def _waits_in_each_step(idle: IdleResult) -> bool:
    """Whether the CPU cannot run ahead, by the calls that emptied the GPU's queue."""
    return sum(call.count_per_step for call in idle.sync_calls) >= 1.0


def _what(stall: PeriodicStall, median_ns: int) -> str:
    return (
        f"Every {stall.period} steps, one takes {format_duration(stall.longer_ns)} longer than"
        f" the median of {format_duration(median_ns)}, on all ranks ({stall.num_stalls} of"
        f" {stall.num_due} due, the first is step {stall.first_step})"
    )


def _wait_or_stall(stall: PeriodicStall, median_ns: int) -> Draft:
    return Draft(
        message=(
            f"{_what(stall, median_ns)}. Either it stops training, or the CPU only waits in it for"
            " work that it queued on the GPU in the steps before."
        ),
        fix=(
            f"Trace such a step and those before it (--start-step {stall.first_step + 1} --steps"
            f" {stall.period}): is the GPU idle in it?"
        ),
        severity=Severity.INFO,
        evidence=("step_log.stalls",),
    )


def _draft(stall: PeriodicStall, median_ns: int) -> Draft:
    cost, mean = stall.cost_ns_per_step, median_ns + stall.cost_ns_per_step
    return Draft(
        message=(
            f"{_what(stall, median_ns)}: {format_ratio(cost / mean)} of each step"
            f" ({format_duration(cost)} of {format_duration(mean)})."
        ),
        fix=(
            "Save checkpoints asynchronously and in shards. Evaluate and log less often, or "
            "without stopping training."
        ),
        cost_ns_per_step=cost,
        evidence=("step_log.stalls",),
    )
