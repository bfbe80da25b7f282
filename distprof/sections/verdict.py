"""The first line of every report: what dominates, how much of the step it takes, and what to do.

Pure: from a report to sentences. The measure is the lost-time waterfall; a finding's own cost is
shown with the finding. Each subject declares its own sentence. This module chooses one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from distprof.sections.job.show import end_line
from distprof.sections.shows import declared
from distprof.sections.time.show import dominant_line, dominant_part

if TYPE_CHECKING:
    from distprof.sections.report import Report

__all__ = ["Verdict", "judge"]


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What a reader sees first.

    Args:
        line: One sentence.
        why: The numbers behind it, a few sentences.
        part: Key of the part that dominates, empty when nothing was measured.
    """

    line: str
    why: tuple[str, ...]
    part: str


def judge(report: Report) -> Verdict:
    """Return the verdict on ``report``: first how the job ended, unless it ended normally."""
    measured = _judge_measured(report)
    ended = end_line(report)
    if not ended:
        return measured
    return Verdict(line=ended, why=(measured.line, *measured.why), part=measured.part)


def _judge_measured(report: Report) -> Verdict:
    """Judge by the waterfall, or without one by the first subject that has a verdict."""
    dominant = dominant_part(report)
    if dominant is not None:
        why = (sentence(report) for sentence in declared(report, "why"))
        line = dominant_line(report, dominant)
        return Verdict(line=line, why=tuple(text for text in why if text), part=dominant.key)
    verdicts = (verdict(report) for verdict in declared(report, "verdict"))
    line, reasons = next(filter(None, verdicts), (_nothing_measured(report), ()))
    return Verdict(line=line, why=reasons, part="")


def _nothing_measured(report: Report) -> str:
    reasons = (*report.waterfall.unavailable, *report.breakdown.unavailable)
    gaps = tuple(gap.message for gap in report.capture.gaps)
    reason = next(iter((*reasons, *gaps)), "the recording holds no GPU or operator activity")
    return f"Nothing could be measured: {reason.rstrip('.')}."
