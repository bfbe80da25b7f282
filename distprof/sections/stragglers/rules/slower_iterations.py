"""# slower-iterations

## What it detects
From some iteration on, the training program's log shows iterations that take longer than before,
for a while or to the end.

## Why it costs time
Nothing in the program announces that throughput has fallen. A mean over the whole training hides
it, and so does a trace of the wrong steps.

## Evidence needed
A log of the training program (`distprof analyze train.log`, or `--with train.log`) with at least
thirty reports.

## How the cost is computed
Reports are compared in blocks of at least five, by their medians. A row of three slow blocks or
more, each at least 1.1 times the lower quartile of all, is one slow span if its reports are longer
than the others in 90 % of all pairs. The cost is their time above the median of the others, divided
by the number of all iterations.

## How to fix
Look at what changed at that iteration: a restart on other nodes, a GPU that began to throttle, a
neighbour on the network or the file system, longer sequences, a cache that filled up. If
iterations get longer little by little, look for growing state: fragmented memory, lists that keep
tensors, logs, a data set read from ever slower storage.

## When it is wrong
Programs that raise the batch or the sequence length during training have longer iterations on
purpose. Iterations that get longer in several steps, and never shorter, are taken for that.

## Sources
Formula sheet, "Measured from traces" (straggler).
"""

from __future__ import annotations

from collections.abc import Iterator

from distprof.rules.base import Draft, Limit, Limits, rule
from distprof.sections.training_log.result import SlowPeriod, TrainingLogResult
from distprof.terms import Severity
from distprof.units import format_duration


@rule(
    code="STR113",
    severity=Severity.WARNING,
    since="0.1.0",
    limits={"excess_ratio": Limit(0.02, "share of the training time that it may add")},
)
def check(log: TrainingLogResult, limits: Limits) -> Iterator[Draft]:
    """Yield one finding for the slow span."""
    slow = log.slow_span
    if slow is None or not log.mean_ns or slow.excess_ns <= limits["excess_ratio"] * log.mean_ns:
        return
    yield Draft(
        message=_message(slow),
        fix=_fix(slow),
        cost_ns_per_step=slow.excess_ns,
        steps=() if slow.first_iteration is None else (slow.first_iteration,),
        evidence=("training_log.slow_span",),
    )


def _message(slow: SlowPeriod) -> str:
    now, usual = format_duration(slow.duration_ns), format_duration(slow.usual_ns)
    if slow.is_gradual:
        return f"Iterations get longer little by little, from {usual} at first to {now} later."
    first, last = slow.first_iteration, slow.last_iteration
    when = f"{slow.num_reports:,} reports in a row" if first is None else f"iteration {first:,}"
    to = " on" if last is None else f" to {last:,}"
    return (
        f"Iterations take {now} from {when}{to if first is not None else ''}, "
        f"{slow.duration_ns / slow.usual_ns:.2f} times as long as the others ({usual})."
    )


def _fix(slow: SlowPeriod) -> str:
    if slow.is_gradual:
        return (
            "Look for state that grows with each iteration: lists that keep tensors, fragmented "
            "memory, logs and metrics, slower storage."
        )
    at = "" if slow.first_iteration is None else f" at iteration {slow.first_iteration:,}"
    return (
        f"Look at what changed{at}: a restart on other nodes, a GPU that throttles, other jobs on "
        "the network or the file system, longer sequences."
    )
