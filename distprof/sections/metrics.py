"""A report as a flat list of numbers, for training loggers and exporters.

Names are stable: they end in their unit (``_seconds``, ``_bytes``, ``_joules``, ``_ratio``,
``_per_second``, ``_count``), and a published name is never reused for anything else.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import msgspec

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


def _part(*keys: str) -> Callable[[Report], float | None]:
    """Mean time of some parts of a step; None without step marks."""

    def read(report: Report) -> float | None:
        parts = parts_of(report)
        return sum(part.ns for part in parts if part.key in keys) if parts else None

    return _per_step(read)


def _share(prefix: str) -> Callable[[Report], float | None]:
    """Share of the analysed time of the parts whose keys have a prefix."""

    def read(report: Report) -> float | None:
        parts = parts_of(report)
        return sum(part.ratio for part in parts if part.key.startswith(prefix)) if parts else None

    return read


def _planned_step_ns(report: Report) -> int | None:
    plan = report.plan
    return plan.repairs[-1].step_ns if plan.repairs else plan.step_ns


def _planned_gain(report: Report) -> float | None:
    plan = report.plan
    return sum(r.gain_ns for r in plan.repairs) / plan.step_ns if plan.step_ns else None


def _findings(severity: Severity) -> Callable[[Report], float | None]:
    return lambda report: sum(one.severity is severity for one in report.findings)


METRICS: tuple[Metric, ...] = (
    Metric(
        "step_median_seconds",
        "Median step: from untraced steps in the step log, else from the analysed steps, else from"
        " the log of the training program.",
        _median,
    ),
    Metric(
        "step_p95_seconds",
        "95th percentile of steps, not from a training program's log.",
        _logged_or_traced("p95_ns"),
    ),
    Metric(
        "step_variation_ratio",
        "Standard deviation over mean of steps, not from a training program's log.",
        _logged_or_traced("cv"),
    ),
    Metric(
        "tokens_per_second",
        "Tokens of all ranks together, from the step log, else from the training program's log.",
        lambda r: _first(r.step_log.tokens_per_s, r.training_log.tokens_per_s),
    ),
    Metric(
        "samples_per_second", "Samples of all ranks together.", lambda r: r.step_log.samples_per_s
    ),
    Metric(
        "analysed_step_seconds",
        "Mean analysed step over ranks; the parts below add up to it.",
        _per_step(mean_span_ns),
    ),
    Metric("computation_seconds", "Per step: computation.", _part("computation")),
    Metric(
        "exposed_transfer_seconds",
        "Per step: exposed communication while data moves.",
        _part("exposed_transfer"),
    ),
    Metric(
        "exposed_wait_seconds",
        "Per step: exposed waiting for the last rank of a collective.",
        _part("exposed_wait"),
    ),
    Metric(
        "exposed_message_wait_seconds",
        "Per step: exposed waiting in send and recv.",
        _part("exposed_p2p_wait"),
    ),
    Metric(
        "exposed_unsplit_seconds",
        "Per step: exposed communication in which waiting and transfer cannot be separated.",
        _part("exposed_comm_unsplit"),
    ),
    Metric("exposed_copy_seconds", "Per step: exposed memory copies.", _part("exposed_copy")),
    Metric("idle_late_launch_seconds", "Per step: idle, late launches.", _part("idle_host")),
    Metric("idle_synchronising_seconds", "Per step: idle, synchronising.", _part("idle_sync")),
    Metric("idle_input_seconds", "Per step: idle, waiting for input.", _part("idle_input")),
    Metric(
        "idle_after_communication_seconds",
        "Per step: idle after communication on another stream.",
        _part("idle_comm_wait"),
    ),
    Metric("idle_unknown_seconds", "Per step: idle without a known cause.", _part("idle_unknown")),
    Metric("computation_ratio", "Share of computation in the analysed time.", _share("comput")),
    Metric(
        "exposed_communication_ratio",
        "Share of exposed communication in the analysed time.",
        exposed_communication_ratio,
    ),
    Metric("idle_ratio", "Share of idle time in the analysed time.", _share("idle_")),
    Metric(
        "overlap_ratio", "Share of communication that overlaps with computation.", overlap_ratio
    ),
    Metric(
        "straggler_lost_seconds",
        "Per step: how long a typical other rank waits for the most expensive straggler.",
        _per_step(lambda r: highest(row.lost_ns_per_step for row in r.stragglers.ranks)),
    ),
    Metric(
        "slowdown_ratio",
        "Simulated step over the step with equally fast ranks and operations; 1 is ideal.",
        lambda r: r.whatif.slowdown,
    ),
    Metric(
        "planned_step_seconds",
        "Simulated step after all changes of the plan.",
        _per_step(_planned_step_ns),
    ),
    Metric(
        "planned_gain_ratio", "Share of the simulated step that the plan recovers.", _planned_gain
    ),
    Metric("pipeline_bubble_ratio", "Bubble fraction of the worst pipeline.", bubble_ratio),
    Metric(
        "expert_imbalance_ratio",
        "Load of the hottest expert over the mean, in the worst layer; 1 is even.",
        expert_imbalance_ratio,
    ),
    Metric(
        "peak_memory_bytes", "Most memory that a rank allocated: GPU, else CPU.", peak_memory_bytes
    ),
    Metric("mfu_ratio", "Model FLOP utilisation.", lambda r: r.efficiency.mfu_ratio),
    Metric(
        "energy_per_step_joules",
        "Energy of all GPUs per step.",
        lambda r: r.telemetry.energy_per_step_j,
    ),
    Metric(
        "clock_residual_seconds",
        "Largest clock residual; no rank is blamed for less.",
        lambda r: seconds(highest(clock.residual_ns for clock in r.capture.clocks)),
    ),
    Metric(
        "matched_collectives_ratio",
        "Share of collective records matched across ranks.",
        lambda r: r.capture.matched_ratio,
    ),
    Metric("ranks_count", "Ranks of the job.", lambda r: r.run.world_size),
    Metric("recorded_ranks_count", "Ranks with a readable trace.", lambda r: len(r.run.ranks)),
    Metric("analysed_steps_count", "Steps that were analysed.", lambda r: r.step_time.num_steps),
    Metric("error_findings_count", "Findings: errors.", _findings(Severity.ERROR)),
    Metric("warning_findings_count", "Findings: warnings.", _findings(Severity.WARNING)),
    Metric("info_findings_count", "Findings: information.", _findings(Severity.INFO)),
    Metric(
        "unchecked_rules_count",
        "Rules that lacked evidence, so it is unknown whether they would fire.",
        lambda r: len(r.not_checked),
    ),
    Metric("idle_pause_seconds", "Per step: idle, pauses of the CPU.", _part("idle_pause")),
)
"""Every metric, in the order of display."""
