"""The first lines of a report on tables of other tools: collectives by rank, readiness of input."""

from __future__ import annotations

from itertools import pairwise

from distprof.analyzers.collective_summary import CollectiveSummaryResult
from distprof.analyzers.input_readiness import InputReadinessResult
from distprof.report.model import Report
from distprof.report.parts import is_of_summaries_alone
from distprof.units import format_bytes, format_duration, format_ratio

__all__ = ["summaries_verdict"]

READY_RATIO = 0.9


def summaries_verdict(report: Report) -> tuple[str, tuple[str, ...]] | None:
    """The verdict and the numbers behind it; None for a report on anything else."""
    if not is_of_summaries_alone(report):
        return None
    lines = [*_collectives(report.collective_summary), *_input(report.input_readiness)]
    return lines[0], tuple(lines[1:])


def _collectives(result: CollectiveSummaryResult) -> list[str]:
    if not result.classes:
        return []
    if result.wait_ratio is None:
        return ["The table of collectives has none whose ranks can be compared."]
    text = f"{format_ratio(result.wait_ratio)} of the time in collectives is waiting"
    if result.late_rank is not None:
        text += (
            f", {format_ratio(result.blamed_ratio)} of it for rank {result.late_rank}, which comes "
            "last: look at what this rank does before its collectives"
        )
    worst = result.classes[0]
    size = f" of {format_bytes(worst.num_bytes)}" if worst.num_bytes is not None else ""
    detail = (
        f"A mean {worst.kind}{size} takes {format_duration(worst.mean_ns)}, on rank "
        f"{worst.last_rank} {format_duration(worst.shortest_ns)}: "
        f"{format_duration(worst.wait_ns)} is waiting; rank {worst.first_rank} waits longest."
    )
    return [f"{text}.", detail]


def _input(result: InputReadinessResult) -> list[str]:
    if result.job_ratio is None:
        return []
    if result.job_ratio >= READY_RATIO:
        return [
            f"Input is ready: the least ready rank never waits for "
            f"{format_ratio(result.job_ratio)} of the time."
        ]
    text = (
        f"Input holds the job up: the least ready rank has its batches in time for only "
        f"{format_ratio(result.job_ratio)} of the time"
    )
    who = [period.rank for period in result.periods]
    if len(set(who)) > 1:
        order = [who[0], *(b for a, b in pairwise(who) if a != b)]
        names = ", then ".join(f"rank {rank}" for rank in order[:6])
        return [f"{text}.", f"The rank that is least ready changes: {names}."]
    if who:
        return [f"{text}; it is rank {who[0]}."]
    return [f"{text}; it is another one all the time."]
