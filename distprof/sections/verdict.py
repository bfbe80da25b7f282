"""The first lines of every report: the first finding, or what dominates the step; the recording.

Pure: from a report to sentences. Each subject declares its own sentences. This module chooses.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from msgspec.structs import replace

from distprof.rules.engine import is_on_recording
from distprof.sections.base import Verdict
from distprof.sections.capture.show import damage_fact, recording_line
from distprof.sections.job.show import end_line
from distprof.sections.shows import headlines_of, sentences_of, verdicts_of
from distprof.sections.time.show import dominant_line, dominant_part
from distprof.sections.whatif.show import plan_sentence
from distprof.terms import Severity

if TYPE_CHECKING:
    from distprof.rules.base import Finding
    from distprof.sections.report import Report

_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")


def headline(report: Report) -> str:
    """The recording on one line: ranks, steps, backend, device, clocks, damage."""
    known = next(headlines_of(report), "") or recording_line(report)
    return " · ".join(fact for fact in (known, damage_fact(report)) if fact)


def judge(report: Report) -> Verdict:
    """Return the verdict on ``report``: first how the job ended, unless it ended normally.

    What the job printed says more than how its launcher saw it end.
    """
    measured = _judge_measured(report)
    ended = end_line(report)
    if report.ending.state and report.job.outcome != "completed":
        told = (ended, *report.ending.why) if ended else report.ending.why
        return Verdict(line=report.ending.verdict, why=told, part=measured.part)
    if not ended:
        return measured
    return Verdict(line=ended, why=(measured.line, *measured.why), part=measured.part)


def _judge_measured(report: Report) -> Verdict:
    """The first finding, if it requires action; else what dominates, or the subject's sentence."""
    # The sentence that the finding replaces becomes the first reason, unless it adds nothing.
    own = _of_subject(report)
    first = leading(report)
    if first is None:
        return own
    message = " ".join(first.message.split())
    line = message if message.endswith(".") else f"{message}."
    if own.part and report.plan.repairs:
        return replace(own, line=line)  # the reasons already name the parts of the step
    why = own.why if own.part else _new(first, own.why)
    return replace(own, line=line, why=(*_new(first, (own.line,)), *why))


def _new(finding: Finding, sentences: Iterable[str]) -> tuple[str, ...]:
    given = set(_NUMBER.findall(finding.message))
    pairs = ((sentence, set(_NUMBER.findall(sentence))) for sentence in sentences)
    return tuple(sentence for sentence, numbers in pairs if not numbers or not numbers <= given)


def _of_subject(report: Report) -> Verdict:
    """Judge by the waterfall, or by the first subject that has a verdict."""
    dominant = dominant_part(report)
    if dominant is not None:
        line = dominant_line(report, dominant)
        return Verdict(line=line, why=sentences_of(report), part=dominant.key)
    line, reasons = next(verdicts_of(report), (_nothing_measured(report), ()))
    plan = plan_sentence(report)
    return Verdict(line=line, why=(plan, *reasons) if plan else reasons, part="")


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


def _nothing_measured(report: Report) -> str:
    reasons = (*report.waterfall.unavailable, *report.breakdown.unavailable)
    gaps = tuple(gap.message for gap in report.capture.gaps)
    reason = next(iter((*reasons, *gaps)), "no GPU or operator activity was recorded")
    return f"Nothing could be measured: {reason.rstrip('.')}."
