"""# slow-iterations

## What it detects
The training program's log shows iterations that take far longer than their neighbours.

## Why it costs time
If every twentieth iteration takes half as long again, training takes 2.5 % longer. A trace of a few
steps hardly ever contains one, and a median hides all of them.

## Evidence needed
A log of the training program (`distprof analyze train.log`, or `--with train.log`) with a time for
every single iteration, or for every n-th. Logs that average many iterations hide slow ones.

## How the cost is computed
Iterations count as slow from 1.2 times the median of their neighbours (about a hundred iterations).
The cost is their time above that median, divided by the number of all iterations.

## How to fix
If they are periodic, find what the program does at that period (checkpoints, evaluation, logging,
garbage collection) and move it off the training thread. If not, look at input, the file system and
the network at the named iterations, and record sensors and logs of the machines.

## When it is wrong
Iterations with more work on purpose (longer sequences, more micro-batches) count as slow too if
their neighbours are shorter.

## Sources
Formula sheet, "Measured from traces" (straggler).
"""

from __future__ import annotations

from collections.abc import Iterator

from distprof.rules.base import Draft, Limit, Limits, rule
from distprof.sections.training_log.result import MIN_RECURRING, TrainingLogResult
from distprof.terms import Severity
from distprof.units import format_duration, format_ratio

MAX_NAMED = 5


@rule(
    code="STR108",
    severity=Severity.WARNING,
    since="0.1.0",
    limits={"excess_ratio": Limit(0.02, "share of the training time that slow iterations may add")},
)
def check(log: TrainingLogResult, limits: Limits) -> Iterator[Draft]:
    """Yield one finding for all slow iterations."""
    if not log.num_slow or not log.slow_excess_ns or not log.mean_ns:
        return
    share = log.slow_excess_ns / log.mean_ns
    if log.num_slow < MIN_RECURRING or share <= limits["excess_ratio"]:
        return
    often = f", every {log.slow_period:,} iterations" if log.slow_period else ""
    named = tuple(one.iteration for one in log.slowest[:MAX_NAMED] if one.iteration is not None)
    yield Draft(
        message=(
            f"{log.num_slow:,} of {log.num_steady:,} iterations take more than 1.2 times as long "
            f"as their neighbours{often}, the longest {format_duration(log.max_ns)} instead of "
            f"{format_duration(log.median_ns)}: together they add {format_ratio(share)} to the "
            "training time."
        ),
        fix=_fix(log, named),
        cost_ns_per_step=log.slow_excess_ns,
        steps=named,
        evidence=("training_log.slowest",),
    )


def _fix(log: TrainingLogResult, named: tuple[int, ...]) -> str:
    if log.slow_period:
        return (
            f"Look at what the program does every {log.slow_period:,} iterations (checkpoints, "
            "evaluation, garbage collection), and move it off the training thread."
        )
    where = ", ".join(f"{number:,}" for number in named)
    at = f" at iterations such as {where}" if where else ""
    return f"Look at input, the file system and the network{at}. Record sensors of the machines."
