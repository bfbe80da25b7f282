"""The first line of every report: the first finding, or what dominates the step.

Pure: from a report to sentences. Each subject declares its own sentences. This module chooses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from distprof.sections.base import Verdict
from distprof.sections.job.show import end_line
from distprof.sections.shows import declared
from distprof.sections.time.show import dominant_line, dominant_part
from distprof.terms import Severity

if TYPE_CHECKING:
    from distprof.rules.base import Finding
    from distprof.sections.report import Report

__all__ = ["Verdict", "judge"]


def judge(report: Report) -> Verdict:
    """Return the verdict on ``report``: first how the job ended, unless it ended normally."""
    measured = _judge_measured(report)
    ended = end_line(report)
    if not ended:
        return measured
    return Verdict(line=ended, why=(measured.line, *measured.why), part=measured.part)


def _judge_measured(report: Report) -> Verdict:
    """Judge by the first finding, by the waterfall, or by the first subject that has a verdict."""
    dominant = dominant_part(report)
    if dominant is not None:
        why = (sentence(report) for sentence in declared(report, "why"))
        first = _leading(report)
        line = dominant_line(report, dominant) if first is None else first.message
        return Verdict(line=line, why=tuple(text for text in why if text), part=dominant.key)
    verdicts = (verdict(report) for verdict in declared(report, "verdict"))
    line, reasons = next(filter(None, verdicts), (_nothing_measured(report), ()))
    return Verdict(line=line, why=reasons, part="")


def _leading(report: Report) -> Finding | None:
    """The finding that is the verdict: the first, if it is an error or begins the plan."""
    first = next(iter(report.findings), None)
    if first is None or not first.message.strip():
        return None
    is_free_error = first.severity is Severity.ERROR and first.cost_ns_per_step is None
    return first if report.plan.repairs or is_free_error else None


def _nothing_measured(report: Report) -> str:
    reasons = (*report.waterfall.unavailable, *report.breakdown.unavailable)
    gaps = tuple(gap.message for gap in report.capture.gaps)
    reason = next(iter((*reasons, *gaps)), "the recording holds no GPU or operator activity")
    return f"Nothing could be measured: {reason.rstrip('.')}."
