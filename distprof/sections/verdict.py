"""The first lines of every report: the first finding, or what dominates the step; the recording.

Pure: from a report to sentences. Each subject declares its own sentences. This module chooses.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from msgspec.structs import replace

from distprof.escape import fitting, headed
from distprof.rules.engine import is_on_recording
from distprof.sections.base import Verdict
from distprof.sections.capture.show import damage_fact, recording_line
from distprof.sections.job.show import end_line
from distprof.sections.shows import origins_of, sentences_of, verdicts_of
from distprof.sections.time.show import dominant_part, dominant_words
from distprof.sections.whatif.show import plan_sentence
from distprof.terms import Severity
from distprof.units import capitalized

if TYPE_CHECKING:
    from distprof.rules.base import Finding
    from distprof.sections.report import Report

_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")


def origin(report: Report) -> str:
    """The recording on one line: ranks, steps, backend, device, clocks, damage."""
    known = next(origins_of(report), "") or recording_line(report)
    return " · ".join(fact for fact in (known, damage_fact(report)) if fact)


def judge(report: Report) -> Verdict:
    """Return the verdict on ``report``: first how the job ended, unless it ended normally.

    What the job printed says more than how its launcher saw it end.
    """
    measured = _judge_measured(report)
    if report.ending.state and report.job.outcome != "completed":
        return _said(report.ending.verdict, report.ending.why, measured.part)
    end = end_line(report)
    if not end:
        return measured
    reasons = (f"{measured.headline}.", measured.detail, *measured.why)
    return _said(end, reasons, measured.part)


def _said(line: str, reasons: Iterable[str], part: str = "") -> Verdict:
    """A statement as a verdict: its detail is the rest of the statement, else the first reason."""
    headline, rest = headed(line)
    detail, *why = (*filter(None, (rest, *reasons)), "")
    return Verdict(headline=headline, detail=detail, why=tuple(filter(None, why)), part=part)


def _judge_measured(report: Report) -> Verdict:
    """The first finding, if it requires action; else what dominates, or the subject's sentence."""
    # The sentence that the finding replaces becomes the first reason, unless it adds nothing.
    own = _of_subject(report)
    first = leading(report)
    if first is None:
        return own
    detail = " ".join(first.message.split())
    found = Verdict(headline=fitting(first.headline), detail=detail, why=own.why, part=own.part)
    if own.part and report.plan.repairs:
        return found  # the reasons already name the parts of the step
    why = own.why if own.part else _new(first, own.why)
    said = f"{own.headline}. {own.detail}".rstrip()
    return replace(found, why=(*_new(first, (said,)), *why))


def _new(finding: Finding, sentences: Iterable[str]) -> tuple[str, ...]:
    given = set(_NUMBER.findall(f"{finding.headline} {finding.message}"))
    pairs = ((sentence, set(_NUMBER.findall(sentence))) for sentence in sentences if sentence)
    return tuple(sentence for sentence, numbers in pairs if not numbers or not numbers <= given)


def _of_subject(report: Report) -> Verdict:
    """Judge by the waterfall, or by the first subject that has a verdict."""
    dominant = dominant_part(report)
    if dominant is not None:
        headline, detail = dominant_words(report, dominant)
        why = sentences_of(report)
        return Verdict(headline=headline, detail=detail, why=why, part=dominant.key)
    line, reasons = next(verdicts_of(report), _nothing_measured(report))
    return _said(line, (*reasons, plan_sentence(report)))


def leading(report: Report) -> Finding | None:
    """The finding that becomes the verdict: the first on the job, if it warns or there is a plan.

    Findings on the recording, such as missing ranks, say nothing about the job.
    """
    on_job = (one for one in report.findings if not is_on_recording(one.code))
    first = next(on_job, None)
    if first is None or not first.message.strip():
        return None
    is_undecided = first.code == "HST101" and report.perturbation.is_estimated
    is_worth = report.plan.repairs or is_undecided or first.severity is not Severity.INFO
    return first if is_worth else None


def _nothing_measured(report: Report) -> tuple[str, tuple[str, ...]]:
    """The verdict of a recording without any time."""
    reasons = (*report.waterfall.unavailable, *report.breakdown.unavailable)
    gaps = tuple(gap.message for gap in report.capture.gaps)
    reason = next(iter((*reasons, *gaps)), "no GPU or operator activity was recorded")
    return "Nothing could be measured", (f"{capitalized(reason.rstrip('.'))}.",)
