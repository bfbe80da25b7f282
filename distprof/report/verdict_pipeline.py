"""The first line of a report in which nothing but a pipeline's slots was measured."""

from __future__ import annotations

from distprof.report.escape import short_ranks
from distprof.report.model import Report
from distprof.units import format_duration, format_ratio

__all__ = ["pipeline_verdict"]


def pipeline_verdict(report: Report) -> tuple[str, tuple[str, ...]] | None:
    """The verdict; None without a pipeline whose bubble is known."""
    groups = [group for group in report.pipeline.groups if group.bubble_fraction is not None]
    if not groups:
        return None
    group = max(groups, key=lambda each: each.bubble_fraction or 0.0)
    ideal = group.ideal_bubble_fraction
    beside = "" if ideal is None else f"; its schedule's ideal is {format_ratio(ideal)}"
    idle = f"{format_ratio(group.bubble_fraction)} of {format_duration(group.span_ns)}"
    ranks = short_ranks(group.ranks)
    return f"The pipeline of ranks {ranks} idles for {idle} per step{beside}.", ()
