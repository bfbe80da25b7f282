"""# fallen-bandwidth

## What it detects
For a time, collectives of one kind and size were much slower than usual, even on the rank that
arrived last.

## Why it costs time
A link that lost lanes, a card that fell back to a lower rate, or a switch under other jobs' load
slows down every collective that crosses it, and with it every step.

## Evidence needed
NCCL Inspector records of all ranks of a group, over enough time to compare.

## How the cost is computed
No cost: the records have no steps. The message gives the bandwidth in this period and the usual
bandwidth.

## How to fix
Look at error counters and rates of links for that time (`ibstat`, `nvidia-smi nvlink`, the
switch), at NCCL's own warnings, and at other jobs on the same switches.

## When it is wrong
Ranks may have moved, or settings may have changed, between restarts that wrote to the same folder.

## Sources
NVIDIA, NCCL Inspector; nccl-tests, `doc/PERFORMANCE.md` (bus bandwidth).
"""

from __future__ import annotations

from collections.abc import Iterator

from distprof.rules.base import Draft, Limit, Limits, rule
from distprof.sections.collective_log.result import BandwidthFall, CollectiveLogResult
from distprof.sections.collective_log.show import time_text
from distprof.terms import Confidence, Severity
from distprof.units import format_bandwidth, format_bytes

_MAX_FINDINGS = 3


@rule(
    code="COM125",
    severity=Severity.WARNING,
    since="0.1.0",
    limits={
        "fallen_ratio": Limit(0.75, "share of the usual bandwidth below which it is reported"),
        "num_bytes": Limit(1_000_000, "size in bytes below which latency dominates"),
    },
    costs_time=False,
)
def check(log: CollectiveLogResult, limits: Limits) -> Iterator[Draft]:
    """Yield the deepest falls, one for each kind and size."""
    deepest: dict[tuple[str, int, int], BandwidthFall] = {}
    for one in log.falls:
        key = (one.kind, one.num_bytes, one.num_ranks)
        is_deep = one.bytes_per_s < limits["fallen_ratio"] * one.usual_bytes_per_s
        if not is_deep or one.num_bytes < limits["num_bytes"]:
            continue
        if key not in deepest or one.bytes_per_s < deepest[key].bytes_per_s:
            deepest[key] = one
    found = sorted(deepest.values(), key=lambda one: one.bytes_per_s / one.usual_bytes_per_s)
    yield from map(_draft, found[:_MAX_FINDINGS])


def _draft(one: BandwidthFall) -> Draft:
    until = "until the end of the records" if one.is_last else f"to {time_text(one.end_ns)}"
    return Draft(
        message=(
            f"The {one.kind} of {format_bytes(one.num_bytes)} on {one.num_ranks:,} ranks falls to "
            f"{format_bandwidth(one.bytes_per_s)} from {time_text(one.start_ns)} {until}; its "
            f"usual bandwidth is {format_bandwidth(one.usual_bytes_per_s)}."
        ),
        fix=(
            "Look at link errors and rates, NCCL's warnings, and other jobs on the same switches "
            "at that time."
        ),
        confidence=Confidence.MEASURED,
        evidence=("collective_log.falls",),
    )
