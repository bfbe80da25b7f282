"""# input-not-ready

## What it detects
By measured readiness of data loading, some rank has to wait for its input most of the time.

## Why it costs time
A synchronous job goes at the pace of its slowest rank: one loader that lags holds up all ranks,
though each of the others has its batches in time, and though it may be another one every hour.

## Evidence needed
Readiness of input by rank over time (`distprof analyze data_readiness.json`, or `--with`): the
share of the time in which a rank's loader was not waited for.

## How the cost is computed
It is not: readiness says that a rank waited, not for how long in a step. A step log with the phase
`input`, or a trace, tells (`input-bound`, `uneven-input`).

## How to fix
Where it is the same rank all the time: look at its machine, its storage and its shard. Where the
rank changes: the loaders have no reserve; more workers, deeper prefetching, or samples packed so
that batches take alike.

## When it is wrong
Readiness is counted over an interval; a short wait in each counts as much as a long one.

## Sources
facebookresearch/spdl, "data readiness"; formula sheet, "Measured from traces" (input wait).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from distprof.rules.base import Draft, Limit, Limits, rule
from distprof.sections.summaries.result import InputReadinessResult
from distprof.terms import Severity
from distprof.units import format_ratio

MAX_NAMED = 6


@rule(
    code="INP108",
    severity=Severity.WARNING,
    since="0.1.0",
    needs=(InputReadinessResult,),
    limits={"job_ratio": Limit(0.9, "mean readiness that the least ready rank has to reach")},
    costs_time=False,
)
def check(readiness: InputReadinessResult, limits: Limits) -> Iterator[Draft]:
    """Yield one finding for the ranks that are not ready."""
    if readiness.job_ratio is None or readiness.job_ratio >= limits["job_ratio"]:
        return
    who = [period.rank for period in readiness.periods]
    order = [*who[:1], *(after for before, after in pairwise(who) if after != before)]
    yield Draft(
        message=(
            f"The least ready rank has its input in time for {format_ratio(readiness.job_ratio)} "
            f"of the time{_named(order)}."
        ),
        fix=_fix(order),
        ranks=tuple(sorted(set(order))),
        evidence=("input_readiness.ranks", "input_readiness.periods"),
    )


def _named(order: list[int]) -> str:
    if not order:
        return "; it is another one all the time"
    names = ", then ".join(f"rank {rank}" for rank in order[:MAX_NAMED])
    return f"; it is mostly {names}"


def _fix(order: list[int]) -> str:
    if len(set(order)) == 1:
        return f"Look at rank {order[0]}: its machine, its storage, its shard of the data."
    return (
        "The loaders have no reserve: use more workers, prefetch deeper, or pack samples so that "
        "batches take alike; a shared file system may be the bottleneck."
    )
