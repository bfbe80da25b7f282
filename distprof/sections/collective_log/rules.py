"""Rules about collective log."""

from __future__ import annotations

from collections.abc import Iterator

from distprof.escape import fitting
from distprof.rules.base import Draft, Limit, Limits, advice, rule
from distprof.sections.collective_log import BandwidthFall, CollectiveLogResult, LateSpell
from distprof.sections.collective_log.show import time_text
from distprof.sections.table import counted
from distprof.terms import Confidence, Severity
from distprof.units import format_bandwidth, format_bytes, format_ratio

_MAX_FINDINGS = 3


@rule(
    "COM125",
    Severity.WARNING,
    costs_time=False,
    fallen_ratio=Limit(0.75, "share of the usual bandwidth below which it is reported"),
    num_bytes=Limit(1_000_000, "size in bytes below which latency dominates"),
)
def fallen_bandwidth(log: CollectiveLogResult, limits: Limits) -> Iterator[Draft]:
    """For a time, collectives of one kind and size were much slower than usual, even on the rank
    that arrived last.
    """
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
    share = f"{format_ratio(one.bytes_per_s / one.usual_bytes_per_s)} of its usual bandwidth"
    return Draft(
        headline=fitting(f"The {one.kind} falls to {share}", f"A collective falls to {share}"),
        message=(
            f"With {format_bytes(one.num_bytes)} on {one.num_ranks:,} ranks it reaches "
            f"{format_bandwidth(one.bytes_per_s)} from {time_text(one.start_ns)} {until}, and "
            f"usually {format_bandwidth(one.usual_bytes_per_s)}."
        ),
        evidence=("collective_log.falls",),
    )


@rule(
    "STR111",
    Severity.WARNING,
    costs_time=False,
    wait_ratio=Limit(0.2, "share of the time in collectives that may be waiting"),
    blamed_ratio=Limit(0.8, "share of that waiting that must be for one rank"),
    whole_ratio=Limit(
        0.9, "share of the recorded time from which a rank counts as late all the time"
    ),
)
def late_rank_for_a_time(log: CollectiveLogResult, limits: Limits) -> Iterator[Draft]:
    """For part of the recorded time, one rank arrives last in nearly all collectives in which
    others wait.
    """
    if log.start_ns is None or log.end_ns is None:
        return
    by_rank: dict[int, list[LateSpell]] = {}
    for one in log.spells:
        if one.wait_ratio > limits["wait_ratio"] and one.blamed_ratio >= limits["blamed_ratio"]:
            by_rank.setdefault(one.rank, []).append(one)
    for rank, spells in sorted(by_rank.items()):
        late_ns = sum(one.end_ns - one.start_ns for one in spells)
        if late_ns <= limits["whole_ratio"] * max(log.end_ns - log.start_ns, 1):
            first = max(spells, key=lambda one: one.end_ns - one.start_ns)
            others = len(spells) - 1
            more = f", and in {counted(others, 'other period')}" if others else ""
            yield Draft(
                headline=(
                    f"Rank {rank} is late for a time: {format_ratio(first.blamed_ratio)} of the "
                    "waiting is for it"
                ),
                message=(
                    f"From {time_text(first.start_ns)} to {time_text(first.end_ns)}{more}, "
                    f"{format_ratio(first.wait_ratio)} of the time in collectives is spent waiting."
                ),
                fix=advice("late-rank-for-a-time", rank=rank),
                confidence=Confidence.INFERRED,
                ranks=(rank,),
                evidence=("collective_log.spells",),
            )
