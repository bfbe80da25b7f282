"""A report as a flat list of numbers, for training loggers and exporters.

Names are stable: they end in their unit (``_seconds``, ``_bytes``, ``_joules``, ``_ratio``,
``_per_second``, ``_count``), and a published name is never reused for anything else.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import TYPE_CHECKING

import msgspec

from distprof.bounds import table_beside
from distprof.sections.parts import is_whole_capture, mean_span_ns, parts_of
from distprof.terms import Severity

if TYPE_CHECKING:
    from distprof.sections.report import Report


class Metric(msgspec.Struct, frozen=True):
    """One number of a report."""

    name: str  # Its name, which ends in its unit.
    meaning: str  # One sentence.
    # Function from a report to the value in base units, None if unknown.
    read: Callable[[Report], float | None]


def metrics_of(report: Report) -> dict[str, float]:
    """Values of all known metrics by name, in the order of :data:`METRICS`.

    Unknown metrics are left out and never 0.
    """
    found = ((metric.name, metric.read(report)) for metric in METRICS)
    return {
        name: float(value) for name, value in found if value is not None and math.isfinite(value)
    }


# Reading a report ---------------------------------------------------------------------------------


def overlap_ratio(report: Report) -> float | None:
    """Share of communication that overlaps with computation, over all ranks."""
    rows = report.overlap.ranks
    communication = sum(row.communication_ns for row in rows)
    return sum(row.overlapped_ns for row in rows) / communication if communication else None


def exposed_communication_ratio(report: Report) -> float | None:
    """Share of the analysed time that is exposed communication, over all ranks."""
    rows = report.breakdown.ranks
    span = sum(row.span_ns for row in rows)
    return sum(row.exposed_comm_ns for row in rows) / span if span else None


def bubble_ratio(report: Report) -> float | None:
    """Bubble fraction of the worst pipeline."""
    return highest(group.bubble_fraction for group in report.pipeline.groups)


def expert_imbalance_ratio(report: Report) -> float | None:
    """Load of the hottest expert over the mean, in the worst layer."""
    return highest(layer.max_over_mean for layer in report.moe.layers)


def peak_memory_bytes(report: Report) -> int | None:
    """Most memory that any rank allocated: of its GPU, else of its process."""
    rows = report.memory.ranks
    device = [row.peak_allocated_bytes for row in rows if row.peak_allocated_bytes is not None]
    host = [row.peak_rss_bytes for row in rows if row.peak_rss_bytes is not None]
    return max(device or host, default=None)


def highest(values: Iterable[float | None]) -> float | None:
    """The largest known value; None without any."""
    return max((value for value in values if value is not None), default=None)


def seconds(ns: float | None) -> float | None:
    """A time in seconds; None if it is unknown."""
    return None if ns is None else ns / 1e9


def _per_step(read: Callable[[Report], float | None]) -> Callable[[Report], float | None]:
    """A time of a step, ns, in seconds; None without step marks."""
    return lambda report: None if is_whole_capture(report) else seconds(read(report))


def _logged_or_traced(field: str) -> Callable[[Report], float | None]:
    """A figure of the untraced steps in the step log, else of the analysed steps."""

    def read(report: Report) -> float | None:
        chosen = report.step_log if report.step_log.median_ns else report.step_time
        value: float | None = getattr(chosen, field)
        return seconds(value) if field.endswith("_ns") else value

    return read


def _median(report: Report) -> float | None:
    """Median step; from the program's own log if neither probes nor traces show steps."""
    logged_ns = report.step_log.step_ns
    measured = seconds(report.step_time.median_ns if logged_ns is None else logged_ns)
    printed = report.training_log.steady_ns
    return seconds(statistics.median(printed)) if measured is None and printed else measured


def _first(*values: float | None) -> float | None:
    return next((value for value in values if value is not None), None)


def _sum(field: str, is_meant: Callable[[str], bool]) -> Callable[[Report], float | None]:
    """Sum of a field over the parts of a step whose keys are meant."""

    def read(report: Report) -> float | None:
        parts = parts_of(report)
        return sum(getattr(part, field) for part in parts if is_meant(part.key)) if parts else None

    return read


def _planned_step_ns(report: Report) -> int | None:
    plan = report.plan
    return plan.repairs[-1].step_ns if plan.repairs else plan.step_ns


def _planned_gain(report: Report) -> float | None:
    plan = report.plan
    return sum(r.gain_ns for r in plan.repairs) / plan.step_ns if plan.step_ns else None


def _findings(severity: Severity) -> Callable[[Report], float | None]:
    return lambda report: sum(one.severity is severity for one in report.findings)


_OWN: dict[str, Callable[[Report], float | None]] = {
    "step_median_seconds": _median,
    "step_p95_seconds": _logged_or_traced("p95_ns"),
    "step_variation_ratio": _logged_or_traced("cv"),
    "tokens_per_second": lambda r: _first(r.step_log.tokens_per_s, r.training_log.tokens_per_s),
    "analysed_step_seconds": _per_step(mean_span_ns),
    "exposed_communication_ratio": exposed_communication_ratio,
    "overlap_ratio": overlap_ratio,
    "straggler_lost_seconds": _per_step(
        lambda r: highest(row.lost_ns_per_step for row in r.stragglers.ranks)
    ),
    "planned_step_seconds": _per_step(_planned_step_ns),
    "planned_gain_ratio": _planned_gain,
    "pipeline_bubble_ratio": bubble_ratio,
    "expert_imbalance_ratio": expert_imbalance_ratio,
    "peak_memory_bytes": peak_memory_bytes,
    "clock_residual_seconds": lambda r: seconds(
        highest(clock.residual_ns for clock in r.capture.clocks)
    ),
    "recorded_ranks_count": lambda r: len(r.run.ranks),
    "unchecked_rules_count": lambda r: len(r.not_checked),
}
"""The metrics that the table does not say how to read."""


def _reader(row: dict[str, str]) -> Callable[[Report], float | None]:
    """How a row of the table reads its metric."""
    if "field" in row:
        return attrgetter(row["field"])
    if "part" in row:
        return _per_step(_sum("ns", row["part"].__eq__))
    if "share" in row:
        return _sum("ratio", lambda key: key.startswith(row["share"]))
    return _findings(Severity(row["findings"])) if "findings" in row else _OWN[row["name"]]


METRICS = tuple(
    Metric(row["name"], row["meaning"], _reader(row))
    for row in table_beside(__package__, "metrics.toml")["metric"]
)
"""Every metric, in the order of display."""
