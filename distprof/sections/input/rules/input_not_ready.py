"""# input-not-ready

## What it detects
According to the measured readiness of data loading, at least one rank often waits for its input.

## Why it costs time
A synchronous job runs at the pace of its slowest rank. One slow loader delays all ranks, even if
all other loaders are on time, and even if the slow rank changes every hour.

## Evidence needed
Input readiness of each rank over time (`distprof analyze data_readiness.json`, or `--with`): the
share of time in which the rank did not wait for its loader.

## How the cost is computed
No cost: readiness shows that a rank waited, but not how long per step. A step log with the phase
`input` or a trace shows that (`input-bound`, `uneven-input`).

## How to fix
If it is always the same rank, look at its machine, its storage and its shard. If the rank changes,
the loaders have no reserve: use more workers, prefetch deeper, or pack samples so that all batches
cost the same.

## When it is wrong
Readiness is measured over intervals. A short wait in an interval counts as much as a long one.

## Sources
facebookresearch/spdl, "data readiness"; formula sheet, "Measured from traces" (input wait).
"""

from __future__ import annotations

from collections.abc import Iterator

from distprof.rules.base import Draft, Limit, Limits, rule
from distprof.sections.summaries.result import InputReadinessResult
from distprof.terms import Severity
from distprof.units import format_ratio

MAX_NAMED = 6


@rule(
    code="INP108",
    severity=Severity.WARNING,
    since="0.1.0",
    limits={"job_ratio": Limit(0.9, "mean readiness that the least ready rank must reach")},
    costs_time=False,
)
def check(readiness: InputReadinessResult, limits: Limits) -> Iterator[Draft]:
    """Yield one finding for the ranks whose input is not ready."""
    if readiness.job_ratio is None or readiness.job_ratio >= limits["job_ratio"]:
        return
    shares = _shares(readiness)
    order = list(shares)
    yield Draft(
        message=(
            f"The least ready rank has its input ready for {format_ratio(readiness.job_ratio)} of "
            f"the time{_named(shares)}."
        ),
        fix=_fix(order),
        ranks=tuple(sorted(set(order))),
        evidence=("input_readiness.ranks", "input_readiness.periods"),
    )


def _shares(readiness: InputReadinessResult) -> dict[int, float]:
    """Share of time for which each rank is the least ready one, largest first."""
    samples: dict[int, int] = {}
    for period in readiness.periods:
        samples[period.rank] = samples.get(period.rank, 0) + period.num_samples
    ordered = sorted(samples, key=lambda rank: (-samples[rank], rank))
    return {rank: samples[rank] / max(readiness.num_samples, 1) for rank in ordered}


def _named(shares: dict[int, float]) -> str:
    if not shares:
        return "; which rank it is keeps changing"
    named = list(shares)[:MAX_NAMED]
    names = ", ".join(f"rank {rank} ({format_ratio(shares[rank])})" for rank in named)
    left_out = len(shares) - len(named)
    return f"; most often it is {names}{f' and {left_out} more' if left_out else ''}"


def _fix(order: list[int]) -> str:
    if len(set(order)) == 1:
        return f"Look at rank {order[0]}: its machine, its storage and its shard of the data."
    return (
        "The loaders have no reserve: use more workers, prefetch deeper, or pack samples so that "
        "all batches cost the same. A shared file system may be the bottleneck."
    )
