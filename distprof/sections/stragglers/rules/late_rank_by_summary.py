"""# late-rank-by-summary

## What it detects
A table of collective durations shows that one rank is last to arrive at nearly every collective
in which the others wait.

## Why it costs time
A collective ends after its last member arrives. Until then all others wait, however fast the links
are, and the late rank sets the length of the step.

## Evidence needed
A table of collectives by rank (`distprof analyze nccl_summary.csv`, or `--with`), with a row for
every member of a group. If there are traces, the other rules of this family know more, and this one
stays silent.

## How the cost is computed
Not computed: the table has no steps. The message gives the mean wait per call: the mean duration on
the other ranks less that on the late rank.

## How to fix
Look at what the late rank does before its collectives: its clocks and temperature, work that only
it does (logging, checkpoints, evaluation), its share of the batch. A trace of all ranks shows the
cause.

## When it is wrong
A rank is not slow if its kernels start late for lack of streams, or work on a copy of the data that
the others still have to fetch. Means hide whether it is always late or sometimes very late.

## Sources
Formula sheet, "Measured from traces" (straggler). The rank with the shortest kernel arrives last.
"""

from __future__ import annotations

from collections.abc import Iterator

from distprof.rules.base import Draft, Limit, Limits, rule
from distprof.sections.stragglers.result import StragglersResult
from distprof.sections.summaries.result import CollectiveSummaryResult, SummarisedClass
from distprof.terms import Confidence, Severity
from distprof.units import format_bytes, format_duration, format_ratio


@rule(
    code="STR109",
    severity=Severity.WARNING,
    since="0.1.0",
    limits={
        "wait_ratio": Limit(0.2, "share of the time in collectives that may be waiting"),
        "blamed_ratio": Limit(0.8, "share of all waiting that must be for one rank"),
    },
    costs_time=False,
)
def check(
    summary: CollectiveSummaryResult, stragglers: StragglersResult, limits: Limits
) -> Iterator[Draft]:
    """Yield one finding if the others wait for one rank."""
    late, blamed, waiting = summary.late_rank, summary.blamed_ratio, summary.wait_ratio
    if late is None or blamed is None or waiting is None or stragglers.ranks:
        return
    if waiting <= limits["wait_ratio"] or blamed < limits["blamed_ratio"]:
        return
    worst = next((one for one in summary.classes if one.last_rank == late), None)
    yield Draft(
        message=(
            f"Rank {late} is the straggler: {format_ratio(waiting)} of the time in collectives is "
            f"waiting, {format_ratio(blamed)} of it for this rank.{_call(worst)}"
        ),
        fix=(
            f"Look at what rank {late} does before its collectives: clocks, work that only it "
            "does, its share of the batch. A trace of all ranks shows which."
        ),
        confidence=Confidence.INFERRED,
        ranks=(late,),
        evidence=("collective_summary.classes", "collective_summary.ranks"),
    )


def _call(one: SummarisedClass | None) -> str:
    if one is None or one.num_ranks < 2:
        return ""
    size = f" of {format_bytes(one.num_bytes)}" if one.num_bytes is not None else ""
    others = one.wait_ns * one.num_ranks / (one.num_ranks - 1)
    return f" In the average {one.kind}{size}, the others wait {format_duration(others)} for it."
