"""The page of a report, made once for all formats."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from distprof.documents.advice import cost_text, gain_text, next_commands
from distprof.documents.page import Findings, Limits, Page, Plan, Priced, step_bar
from distprof.formats import FINDINGS, RenderOptions
from distprof.rules.base import Finding, NotChecked
from distprof.sections.job.show import job_facts
from distprof.sections.parts import window_word
from distprof.sections.report import Report
from distprof.sections.shows import LONG_SENTENCES, sentences_of, tables_of
from distprof.sections.verdict import headline, judge
from distprof.sections.whatif.show import plan_sentence

LEAST = 0.01
"""Gain, as a share of the step, below which the short report leaves out a finding."""

_SHORTER = (Limits(3, 3), Limits(3, 2), Limits(2, 2), Limits(2, 1), Limits(1, 1))

_FEW_CODES = 8


def page_of(report: Report, options: RenderOptions) -> Page:
    """The whole report, or the chosen sections of it."""
    views = tables_of(report, show_all=options.show_all, sections=options.sections)
    page = head_of(report, options)
    has_findings = not options.sections or FINDINGS in options.sections
    return replace(
        page,
        findings=page.findings if has_findings else None,
        tables=views,
        no_tables=_nothing_found(report, options.sections) if not views else "",
    )


def head_of(report: Report, options: RenderOptions) -> Page:
    """The report without its tables."""
    verdict = judge(report)
    return Page(
        verdict=verdict.line,
        headline=headline(report),
        cautions=job_facts(report),
        step=step_bar(report),
        plan=_plan(report),
        sentences=verdict.why,
        findings=Findings(listed=priced(report), is_ranked=True),
        has_folded_tables=True,
        unknown=tuple(_unknown(report)),
        about=(
            f"Source: {report.run.source}",
            f"Written by distprof {report.distprof_version}. The file is self-contained: it loads "
            "nothing from the network. Times are means over ranks and "
            f"{window_word(report)}s unless a title says otherwise.",
        ),
        commands=next_commands(report, options),
    )


def terminal_pages(report: Report, options: RenderOptions) -> Iterator[Page]:
    """The report for a terminal: in full, or the short one in versions of decreasing length."""
    if options.sections:  # below the verdict, nothing that was not asked for
        page = page_of(report, options)
        yield replace(page, headline="", cautions=(), step=None, sentences=())
    elif options.full or options.show_all:
        yield page_of(report, options)
    else:
        yield from _short_pages(report, options)


def _short_pages(report: Report, options: RenderOptions) -> Iterator[Page]:
    page = head_of(report, options)
    left_out = sentences_of(report, LONG_SENTENCES)
    found = priced(report)
    worth = tuple(one for one in found if _is_worth_a_line(one.finding, report))
    findings = Findings(listed=worth, is_ranked=True, num_left_out=len(found) - len(worth))
    kept = tuple(sentence for sentence in page.sentences if sentence not in left_out)
    for limits in _SHORTER:
        yield replace(page, sentences=kept, findings=replace(findings, limits=limits))


def _is_worth_a_line(finding: Finding, report: Report) -> bool:
    """Whether a finding is the first, or its gain is unknown or at least :data:`LEAST`."""
    gain = finding.recoverable_ns if finding.remaining_ns is None else finding.remaining_ns
    whole = report.plan.step_ns
    return finding is report.findings[0] or not whole or gain is None or gain >= LEAST * whole


def priced(report: Report) -> tuple[Priced, ...]:
    """The findings of a report with their costs and gains."""
    return tuple(
        Priced(one, cost_text(one, report), gain_text(one, report)) for one in report.findings
    )


def _plan(report: Report) -> Plan | None:
    if not report.plan.repairs:
        return None
    sentence = plan_sentence(report)
    return Plan(sentence=sentence, repairs=report.plan, word=window_word(report))


def _nothing_found(report: Report, sections: tuple[str, ...]) -> str:
    """Why the chosen sections have no table, with the reasons that their results give."""
    if not sections or sections == (FINDINGS,):
        return ""
    results = (getattr(report, name, None) for name in sections)
    reasons = [reason for result in results for reason in getattr(result, "unavailable", ())]
    return f"Nothing to show: {'; '.join(reasons) or 'this recording has no data for it.'}"


def _unknown(report: Report) -> Iterator[str]:
    """Gaps in the recording, reasons for missing values, then rules that could not be checked."""
    yield from dict.fromkeys(gap.message for gap in report.capture.gaps)
    yield from dict.fromkeys(report.breakdown.unavailable)
    by_reason: dict[str, list[NotChecked]] = {}
    for one in report.not_checked:
        by_reason.setdefault(one.why, []).append(one)
    for why, rules in sorted(by_reason.items(), key=lambda item: -len(item[1])):
        codes, left = ", ".join(one.code for one in rules[:_FEW_CODES]), len(rules) - _FEW_CODES
        yield f"{codes}{f' and {left} more' if left > 0 else ''} not checked: {why}"
