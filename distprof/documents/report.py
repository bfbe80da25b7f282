"""The page of a report, made once for all formats."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

from msgspec.structs import replace

from distprof import demo
from distprof.artefacts.record import grouped
from distprof.documents.page import MAX_TASKS, Limits, Page, Priced, Task, ToDo, step_bar
from distprof.escape import fitting
from distprof.formats import FINDINGS, RenderOptions
from distprof.rules.base import Finding
from distprof.sections.capture.show import missing_sentence
from distprof.sections.job.show import job_facts
from distprof.sections.parts import mean_span_ns, window_word
from distprof.sections.perturbation.show import is_undecided
from distprof.sections.report import Report
from distprof.sections.shows import LONG_SENTENCES, judge, origin, sentences_of, tables_of
from distprof.sections.whatif.plan import MIN_GAIN_RATIO
from distprof.sections.whatif.show import plan_basis, plan_promise, plan_sentence
from distprof.units import few_names, format_duration, format_ratio

SAME_RATIO = 0.05
"""Relative difference below which a second number (a simulated gain next to a cost) is left out."""


def cost_text(finding: Finding, report: Report) -> str:
    """The cost of a finding, for example ``6.91 ms per step (31.0 %)``; empty if unknown.

    If the simulation recovers a different time, the text adds it.
    """
    cost = finding.cost_ns_per_step
    recovered = _recovered_text(finding, report)
    if cost is None:
        return recovered
    if any(place.startswith("training_log") for place in finding.evidence):
        return _cost_of(cost, report.training_log.unit, report.training_log.mean_ns)
    if not report.run.ranks and report.step_log.ranks:
        return _cost_of(cost, "step", report.step_log.median_ns)
    # Costs are means over ranks, so the reference is too; without traces it is the simulated step
    span = mean_span_ns(report) or report.whatif.replayed_ns
    if any(place.startswith("step_log") for place in finding.evidence):
        span = None  # a mean over all logged steps, which the finding relates to itself
    text = _cost_of(cost, window_word(report), span)
    return f"{text}, {recovered}" if recovered else text


def gain_text(finding: Finding, report: Report) -> str:
    """The gain of a fix, for example ``saves 5.01 ms per step (30.0 %)``; else the cost.

    The gain is what remains after the fixes above it, if they were simulated. Only steps of the
    plan save time; for anything else the text says why it is outside. Empty if neither gain nor
    cost is known.
    """
    gain = finding.recoverable_ns if finding.remaining_ns is None else finding.remaining_ns
    if gain is None:
        cost = cost_text(finding, report)
        return f"costs {cost}" if cost else ""
    whole = report.plan.step_ns or report.whatif.replayed_ns
    share = f" ({format_ratio(gain / whole)})" if whole else ""
    amount = f"{format_duration(gain)} per {window_word(report)}{share}"
    if not gain:
        return "nothing left after the fixes above"
    if finding.is_bound:
        is_less = finding.recoverable_ns and _remaining_text(finding, finding.recoverable_ns)
        return f"at most {amount}{' after the plan' if is_less else ''}"
    if report.plan.step_ns and finding.repair is None:
        is_little = gain < MIN_GAIN_RATIO * report.plan.step_ns
        return f"{amount}, {'too little for a plan' if is_little else 'outside the plan'}"
    return f"saves {amount}"


def _cost_of(cost: int, window: str, whole_ns: float | None) -> str:
    """A cost read from a log, relative to the log's own step time: it may cover other steps."""
    text = f"{format_duration(cost)} per {window}"
    return f"{text} ({format_ratio(cost / whole_ns)})" if whole_ns else text


def _recovered_text(finding: Finding, report: Report) -> str:
    """For example ``recovers 4.20 ms (simulated)``; empty if it adds nothing to the cost."""
    recovered, cost = finding.recoverable_ns, finding.cost_ns_per_step
    if recovered is None:
        return ""
    left = _remaining_text(finding, recovered)
    if cost is not None and cost == finding.remaining_ns:
        return ""
    if cost is not None and abs(recovered - cost) <= SAME_RATIO * cost:
        return left
    per = f" per {window_word(report)}" if cost is None else ""
    text = f"recovers {format_duration(recovered)}{per} (simulated)"
    return f"{text}, {left}" if left else text


def _remaining_text(finding: Finding, recovered: int) -> str:
    """The time that the fix still recovers after the fixes above; empty if equal."""
    remaining = finding.remaining_ns
    if remaining is None or abs(recovered - remaining) <= SAME_RATIO * recovered:
        return ""
    left = format_duration(remaining) if remaining else "nothing"
    return f"{left} after the fixes above"


def next_commands(report: Report, options: RenderOptions) -> Iterator[tuple[str, str]]:
    """Commands worth running after this report, each with its purpose."""
    source = report.run.source
    if report.job.outcome == "running" and source.isprintable():
        hang = f"distprof hang {shlex.quote(source)}"
        yield hang, "if it makes no progress: find the rank that others wait for"
    if is_undecided(report) and source.isprintable() and source != str(demo.FOLDER):
        timed = f"distprof analyze {shlex.quote(source)} --step-time TIME"
        yield timed, "your mean step without the profiler: it decides the verdict"
    if report.findings:
        code = report.findings[0].code
        yield f"distprof rule {shlex.quote(code)}", "what it means and how to fix it"
    again = _command_again(report, options)
    if again and not (options.full or options.show_all or options.sections):
        yield f"{again} --full", "every table"
    elif again and options.saved_as and not options.show_all:
        yield f"{again} --all", "every finding, rank and kernel"
    elif again and not options.saved_as:
        yield f"{again} --save-report report.json", "keep this report"


def _command_again(report: Report, options: RenderOptions) -> str:
    """The command that shows this report again; empty if the name of its source is unprintable."""
    if options.saved_as:
        return f"distprof report {shlex.quote(options.saved_as)}"
    source = report.run.source
    if source == str(demo.FOLDER):
        return "distprof demo"
    return f"distprof analyze {shlex.quote(source)}" if source.isprintable() else ""


_AMOUNT = re.compile(r"\d[\d.,]* (?:%|times\b|[mµn]?s\b)")
LEAST = 0.01
"""Gain, as a share of the step, below which the short report leaves out a finding."""
_SHORTER = (
    (Limits(3, 3), 9, 9, 1),
    (Limits(3, 2), 9, 9, 1),
    (Limits(3, 2), 1, 2, 1),
    (Limits(3, 2), 1, 2, 0),
    (Limits(3, 1), 1, 2, 0),
    (Limits(4, 0), 1, 2, 0),
    (Limits(4, 0), 0, 2, 0),
    (Limits(3, 0), 0, 2, 0),
    (Limits(2, 0), 0, 2, 0),
    (Limits(1, 0), 0, 2, 0),
    (Limits(1, 0), 0, 1, 0),
    (Limits(1, 0), 0, 0, 0),
)
"""Limits of shorter and shorter texts: tasks, sentences, cautions, commands before the last."""
_MAX_DETAIL = 156
"""Characters of the evidence in a short text, two lines: further sentences of it are left out."""
_FEW_CODES = 8
_MORE_ROOM = 20  # Columns for "and 99 more: " in front of a command


def page_of(report: Report, options: RenderOptions) -> Page:
    """The whole report, or the chosen sections of it."""
    views = tables_of(report, show_all=options.show_all, sections=options.sections)
    page = head_of(report, options)
    has_findings = not options.sections or FINDINGS in options.sections
    page = replace(page, to_do=page.to_do if has_findings else None)
    return replace(
        _once(page, report),
        tables=views,
        no_tables=_nothing_found(report, options.sections) if not views else "",
    )


def _once(page: Page, report: Report) -> Page:
    """The page without sentences whose amounts are all in what it says above them."""
    to_do = page.to_do or ToDo()
    found = [one.finding for task in to_do.shown for one in task.found]
    said = [page.verdict, page.detail, *(one.headline for one in found)]
    said += [share.text for share in page.step.shares] if page.step else []
    said += [] if to_do.limits else [one.message for one in found]
    known = {*_AMOUNT.findall(" ".join(said))}
    of_ranks = missing_sentence(report) if any(one.code == "CAP101" for one in found) else ""
    pairs = ((text, {*_AMOUNT.findall(text)}) for text in page.sentences if text != of_ranks)
    new = tuple(text for text, amounts in pairs if not amounts or not amounts <= known)
    return replace(page, sentences=new)


def head_of(report: Report, options: RenderOptions) -> Page:
    """The report without its tables."""
    verdict = judge(report)
    plan = plan_sentence(report)
    return Page(
        verdict=verdict.headline,
        detail=verdict.detail,
        to_do=to_do(report),
        origin=origin(report),
        cautions=tuple(job_facts(report)),
        step=step_bar(report),
        sentences=tuple(
            text for text in verdict.why if text != plan and text not in verdict.detail
        ),
        has_folded_tables=True,
        unknown=tuple(_unknown(report)),
        about=(
            f"Source: {report.run.source}",
            f"Written by distprof {report.distprof_version}. The file is self-contained: it loads "
            "nothing from the network. Times are means over ranks and "
            f"{window_word(report)}s unless a title says otherwise.",
        ),
        commands=tuple(next_commands(report, options)),
    )


def to_do(report: Report) -> ToDo:
    """The repairs of the plan and the findings outside it, in the order of the findings."""
    found = priced(report)
    left = list(range(1, len(report.plan.repairs) + 1))
    known, tasks = set(left), []
    for one in found:
        number = one.finding.repair
        if number not in known:
            tasks.append(Task(found=(one,), effect=one.gain))
        elif number in left:
            left.remove(number)
            tasks.append(_repair(report, found, number))
    tasks += [_repair(report, found, number) for number in left]
    return ToDo(
        tasks=tuple(tasks), found=found, promise=plan_promise(report), basis=plan_basis(report)
    )


def _repair(report: Report, found: tuple[Priced, ...], number: int) -> Task:
    """A repair, with the step before and after it."""
    repairs, whole = report.plan.repairs, report.plan.step_ns or 1
    repair = repairs[number - 1]
    before_ns = whole if number == 1 else repairs[number - 2].step_ns
    return Task(
        found=tuple(one for one in found if one.finding.repair == number),
        change=repair.done,
        effect=(
            f"{format_duration(before_ns)} → {format_duration(repair.step_ns)}, saves "
            f"{format_ratio(repair.gain_ns / whole)}"
        ),
    )


def terminal_pages(report: Report, options: RenderOptions) -> Iterator[Page]:
    """The report for a terminal: in full, or the short one in versions of decreasing length."""
    if options.sections:  # below the verdict, nothing that was not asked for
        page = page_of(report, options)
        yield replace(page, origin="", cautions=(), step=None, sentences=())
    elif options.full or options.show_all:
        yield page_of(report, options)
    else:
        yield from _short_pages(report, options)


def _short_pages(report: Report, options: RenderOptions) -> Iterator[Page]:
    page = head_of(report, options)
    left_out = sentences_of(report, LONG_SENTENCES)
    whole = page.to_do or ToDo()
    worth = tuple(task for task in whole.tasks if _is_worth_a_line(task, report))
    left = replace(whole, tasks=worth, num_left_out=len(whole.tasks) - len(worth))
    kept = tuple(sentence for sentence in page.sentences if sentence not in left_out)
    page = replace(page, detail=_first_sentences(page.detail))
    # the repairs that the plan promises begin in view, whatever precedes them
    needed = next((n for n, task in enumerate(worth[:MAX_TASKS], 1) if task.change), 0)
    for limits, sentences, cautions, num_commands in _SHORTER:
        few = replace(limits, tasks=max(limits.tasks, needed))
        last = replace(
            page,
            sentences=kept,
            cautions=page.cautions[:cautions],
            commands=(*page.commands[:-1][:num_commands], *page.commands[-1:]),
            to_do=replace(left, basis="", limits=few),
        )
        last = replace(last, sentences=_once(last, report).sentences[:sentences])
        last = last if num_commands else _without_commands(last, options.width)
        yield last
    yield replace(last, step=None)


def _without_commands(page: Page, width: int) -> Page:
    """The page with the command that shows all of it next to the number of tasks left out."""
    to_do, (command, _) = page.to_do or ToDo(), (*page.commands, ("", ""))[0]
    if not to_do.num_unseen or len(command) + _MORE_ROOM > width:
        return page
    return replace(page, commands=(), to_do=replace(to_do, all_by=command))


def _first_sentences(text: str) -> str:
    first, *others = text.split(". ")
    for sentence in others:
        if len(first) + len(sentence) + 2 > _MAX_DETAIL:
            return f"{first}."
        first = f"{first}. {sentence}"
    return first


def _is_worth_a_line(task: Task, report: Report) -> bool:
    """Whether a task is of the plan or first, or its gain is unknown or at least :data:`LEAST`."""
    if task.change:
        return True
    finding = task.found[0].finding
    gain = finding.recoverable_ns if finding.remaining_ns is None else finding.remaining_ns
    whole = report.plan.step_ns
    return finding is report.findings[0] or not whole or gain is None or gain >= LEAST * whole


def priced(report: Report) -> tuple[Priced, ...]:
    """The findings of a report with their costs and gains."""
    headline = judge(report).headline
    return tuple(
        Priced(
            one,
            cost_text(one, report),
            gain_text(one, report),
            is_verdict=fitting(one.headline) == headline,
        )
        for one in report.findings
    )


def _nothing_found(report: Report, sections: tuple[str, ...]) -> str:
    """Why the chosen sections have no table, with the reasons that their results give."""
    if not sections or sections == (FINDINGS,):
        return ""
    results = (getattr(report, name, None) for name in sections)
    reasons = [reason for result in results for reason in getattr(result, "unavailable", ())]
    return f"Nothing to show: {'; '.join(reasons) or 'this recording has no data for it.'}"


def _unknown(report: Report) -> Iterator[str]:
    """Gaps in the recording, reasons for missing values, then rules that could not be checked."""
    said = "missing-ranks" if report.capture.ranks_missing else ""
    yield from dict.fromkeys(gap.message for gap in report.capture.gaps if gap.what != said)
    yield from dict.fromkeys(report.breakdown.unavailable)
    by_reason = grouped([(one.why, one) for one in report.not_checked])
    for why, rules in sorted(by_reason.items(), key=lambda item: -len(item[1])):
        yield f"{few_names([one.code for one in rules], _FEW_CODES)} not checked: {why}"
