"""The metrics of the gate, and which direction is better."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable

import msgspec

from distprof.artefacts.summary_file import SummaryFile
from distprof.verbs.gate.decide import Better, Scale


class Metric(msgspec.Struct, frozen=True, kw_only=True):
    """One metric of a run."""

    name: str  # Name in configuration, baselines and JSON.
    label: str  # Name in reports.
    better: Better  # Which direction is an improvement.
    scale: Scale  # ``ratio`` for times and sizes; ``difference`` for shares, which may be near 0.
    tolerance: float  # Loss that is accepted by default.
    # Returns its value in a summary, or None if unknown.
    read: Callable[[SummaryFile], float | None]
    # Whether it is gated by default. The parts of a step explain its time, but each is noisier than
    # the whole, and gating all of them would raise more false alarms.
    decides: bool = False


def _step_time(summary: SummaryFile) -> float | None:
    return statistics.median(summary.step_ns) if summary.step_ns else None


METRICS = (
    Metric(
        name="step_time",
        label="step time",
        better="lower",
        scale="ratio",
        tolerance=0.02,
        read=_step_time,
        decides=True,
    ),
    Metric(
        name="efficiency",
        label="scaling efficiency",
        better="higher",
        scale="ratio",
        tolerance=0.02,
        read=lambda _: None,  # from a pair of sizes: efficiency_ratio
        decides=True,
    ),
    Metric(
        name="overlap",
        label="overlap of communication",
        better="higher",
        scale="difference",
        tolerance=0.05,
        read=lambda summary: summary.overlap_ratio,
    ),
    Metric(
        name="exposed_communication",
        label="exposed communication",
        better="lower",
        scale="difference",
        tolerance=0.02,
        read=lambda summary: summary.exposed_comm_ratio,
    ),
    Metric(
        name="bubble",
        label="pipeline bubble",
        better="lower",
        scale="difference",
        tolerance=0.02,
        read=lambda summary: summary.bubble_ratio,
    ),
    Metric(
        name="imbalance",
        label="cost of imbalance",
        better="lower",
        scale="difference",
        tolerance=0.02,
        read=lambda summary: summary.imbalance_ratio,
    ),
    Metric(
        name="memory",
        label="peak memory",
        better="lower",
        scale="ratio",
        tolerance=0.02,
        read=lambda summary: summary.peak_memory_bytes,
    ),
)
"""Every metric, in the order of display."""


def find_metric(name: str) -> Metric | None:
    """The metric with this name; None if there is none."""
    return next((metric for metric in METRICS if metric.name == name), None)


def values_of(summary: SummaryFile) -> dict[str, float]:
    """Values by metric, without unknown and impossible values."""
    found = ((metric, metric.read(summary)) for metric in METRICS)
    return {
        metric.name: float(value)
        for metric, value in found
        if value is not None
        and math.isfinite(value)
        and (value > 0 or (metric.scale == "difference" and value == 0))
    }


def efficiency_ratio(small: SummaryFile, large: SummaryFile) -> float | None:
    """Work per rank and time of the large run, divided by that of the small run.

    Work is measured in tokens, or else in samples. If neither is known, every rank is assumed to
    have the same work in both runs (weak scaling). None if a step time or a size is unknown or
    impossible.
    """
    before, after = (_rank_rate(run, _work_field(small, large)) for run in (small, large))
    ratio = after / before if before and after else 0.0
    return ratio if 0 < ratio < math.inf else None


def _work_field(small: SummaryFile, large: SummaryFile) -> str:
    for field in ("tokens_per_step", "samples_per_step"):
        if getattr(small, field) and getattr(large, field):
            return field
    return ""


def _rank_rate(summary: SummaryFile, field: str) -> float | None:
    """Work per rank and ns; the work of a rank is 1 if it is unknown."""
    step, ranks = _step_time(summary), summary.fingerprint.world_size
    if not step or step <= 0 or not ranks:
        return None
    work = float(getattr(summary, field)) / ranks if field else 1.0
    return work / step
