"""# late-rank-for-a-time

## What it detects
For part of the recorded time, one rank arrives last in nearly all collectives in which others wait.

## Why it costs time
A collective ends after its last member arrives. Until then all others wait, however fast the links
are. If a rank is late only for a time, the cause begins and ends with it: heat, another job on its
host, a checkpoint, a neighbour on the network.

## Evidence needed
NCCL Inspector records of all ranks (`distprof analyze nccl-inspector-17`, or `--with`).
`late-rank-by-summary` reports ranks that are late all the time.

## How the cost is computed
No cost: the records have no steps. The message gives the share of the time in collectives that is
spent waiting.

## How to fix
Look at what happened on the rank's host during these periods: its kernel log, the clocks and
temperature of its GPU, other jobs, checkpoints.

## When it is wrong
Times are those at which records were written, up to one interval of the dump thread after the
collective. A rank whose kernels start late for lack of streams arrives last without being slow.

## Sources
NVIDIA, NCCL Inspector. The rank with the shortest kernel arrives last.
"""

from __future__ import annotations

from collections.abc import Iterator

from distprof.rules.base import Draft, Limit, Limits, rule
from distprof.sections.collective_log.result import CollectiveLogResult, LateSpell
from distprof.sections.collective_log.show import time_text
from distprof.sections.table import counted
from distprof.terms import Confidence, Severity
from distprof.units import format_ratio

_MAX_NAMED = 3


@rule(
    code="STR111",
    severity=Severity.WARNING,
    since="0.1.0",
    limits={
        "wait_ratio": Limit(0.2, "share of the time in collectives that may be waiting"),
        "blamed_ratio": Limit(0.8, "share of that waiting that must be for one rank"),
        "whole_ratio": Limit(
            0.9, "share of the recorded time from which a rank counts as late all the time"
        ),
    },
    costs_time=False,
)
def check(log: CollectiveLogResult, limits: Limits) -> Iterator[Draft]:
    """Yield one finding per rank that is late for a time."""
    if log.start_ns is None or log.end_ns is None:
        return
    by_rank: dict[int, list[LateSpell]] = {}
    for one in log.spells:
        if one.wait_ratio > limits["wait_ratio"] and one.blamed_ratio >= limits["blamed_ratio"]:
            by_rank.setdefault(one.rank, []).append(one)
    for rank, spells in sorted(by_rank.items()):
        late_ns = sum(one.end_ns - one.start_ns for one in spells)
        if late_ns <= limits["whole_ratio"] * max(log.end_ns - log.start_ns, 1):
            yield _draft(rank, spells)


def _draft(rank: int, spells: list[LateSpell]) -> Draft:
    first = max(spells, key=lambda one: one.end_ns - one.start_ns)
    others = len(spells) - 1
    more = f", and in {counted(others, 'other period')}" if others else ""
    return Draft(
        message=(
            f"Rank {rank} is late from {time_text(first.start_ns)} to "
            f"{time_text(first.end_ns)}{more}: {format_ratio(first.wait_ratio)} of the time in "
            f"collectives is spent waiting, {format_ratio(first.blamed_ratio)} of it for this rank."
        ),
        fix=(
            f"Look at what happened on the host of rank {rank} at that time: kernel log, GPU "
            "clocks and temperature, other jobs, checkpoints."
        ),
        confidence=Confidence.INFERRED,
        ranks=(rank,),
        evidence=("collective_log.spells",),
    )
