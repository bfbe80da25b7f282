"""What a report shows, in reading order, and the verdict that it begins with.

Each name is a function in the ``show.py`` of a subject, for example ``stragglers_table`` of
``stragglers``. A subject without results in a report is not imported.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from distprof.bounds import table_beside
from distprof.escape import fitting, headed
from distprof.rules.engine import is_on_recording
from distprof.sections.base import Result, Verdict, subject_of
from distprof.sections.capture.show import damage_fact, recording_line
from distprof.sections.job.show import end_line
from distprof.sections.table import TableView
from distprof.sections.time.show import dominant_part, dominant_words
from distprof.sections.whatif.show import plan_sentence
from distprof.terms import Severity
from distprof.units import capitalized

if TYPE_CHECKING:
    from distprof.rules.base import Finding
    from distprof.sections.report import Report

_SHOWN = table_beside(__package__, "shows.toml")
TABLES, VERDICTS, ORIGINS = _SHOWN["tables"], _SHOWN["verdicts"], _SHOWN["origins"]
SENTENCES, LONG_SENTENCES = _SHOWN["sentences"], _SHOWN["long_sentences"]


def tables_of(
    report: Report, *, show_all: bool, sections: tuple[str, ...] = ()
) -> tuple[TableView, ...]:
    """All tables worth showing, or only those of some subjects, in reading order."""
    made = (
        (subject, make(report, show_all=show_all))
        for subject, make in _functions(report, TABLES)
        if not sections or subject in sections
    )
    return tuple(replace(view, section=subject) for subject, view in made if view is not None)


def sentences_of(report: Report, names: Sequence[str] = SENTENCES) -> tuple[str, ...]:
    """The sentences that have something to say."""
    return tuple(_said_by(report, names))


def _said_by(report: Report, names: Sequence[str]) -> Iterator[Any]:
    """What the named functions of subjects say, where they say something."""
    return (said for _, make in _functions(report, names) if (said := make(report)))


def _functions(report: Report, names: Sequence[str]) -> Iterator[tuple[str, Callable[..., Any]]]:
    """The named functions of subjects with results, each with its subject."""

    def found_anything(result: Result) -> bool:
        figures = (name for name in result.__struct_fields__ if name != "unavailable")
        return any(getattr(result, name) for name in figures)

    subjects = {
        subject_of(type(result))
        for field in msgspec.structs.fields(report)
        if isinstance(result := getattr(report, field.name), Result)
        and (field.required or found_anything(result))
    }
    for name in names:
        subject, _, function = name.partition(".")
        if subject in subjects:
            yield subject, getattr(_show_of(subject), function)


def _show_of(subject: str) -> Any:
    return import_module(f"distprof.sections.{subject}.show")


def section_names() -> tuple[str, ...]:
    """Subjects that have tables, in alphabetical order; none of them is imported."""
    return tuple(sorted({name.partition(".")[0] for name in TABLES}))


def described_sections() -> dict[str, str]:
    """One line on each subject that has tables, by name; imports all subjects."""
    docs = {name: _show_of(name).__doc__ or "" for name in section_names()}
    return {name: doc.strip().split("\n")[0] for name, doc in docs.items()}


_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
_PAUSED = re.compile(r"[A-Z][a-z ]{4,30} takes? ([\d.]{1,6}) % of the training, which").match


def origin(report: Report) -> str:
    """The recording on one line: ranks, steps, backend, device, clocks, damage."""
    known = next(_said_by(report, ORIGINS), "") or recording_line(report)
    return " · ".join(fact for fact in (known, damage_fact(report)) if fact)


def judge(report: Report) -> Verdict:
    """Return the verdict on ``report``: first how the job ended, unless it ended normally.

    What the job printed says more than how its launcher saw it end.
    """
    measured = _judge_measured(report)
    is_told = bool(report.ending.state) and not report.ending.follows(report.job.failure)
    if is_told and report.job.outcome != "completed":
        known = (_show_of("nccl").known_network(report), *_show_of("ending").until(report))
        why = (*known, *report.ending.why)
        return _said(report.ending.verdict, why, measured.part)
    end = end_line(report)
    if not end:
        return measured
    told = (one.message for one in report.findings if one.code == "CAP104")
    is_found = leading(report) is not None
    known = () if is_found else (f"{measured.headline}.", measured.detail)
    return _said(end, (*told, *known, *measured.why), measured.part)


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
    said = ((s, set(_NUMBER.findall(s))) for s in sentences if s and s not in finding.fix)
    return tuple(sentence for sentence, numbers in said if not numbers or not numbers <= given)


def _of_subject(report: Report) -> Verdict:
    """Judge by the waterfall, or by the first subject that has a verdict."""
    dominant = dominant_part(report)
    if dominant is not None:
        headline, detail = dominant_words(report, dominant)
        why = sentences_of(report)
        return Verdict(headline=headline, detail=detail, why=why, part=dominant.key)
    line, reasons = next(_said_by(report, VERDICTS), _nothing_measured(report))
    return _said(line, (*reasons, plan_sentence(report)))


def leading(report: Report) -> Finding | None:
    """The finding that becomes the verdict: the first on the job, if it warns or there is a plan.

    Findings on the recording, or on settings of a job that stands, say nothing about it.
    """
    on_job = (one for one in report.findings if not is_on_recording(one.code))
    first = next(on_job, None)
    if first is None or not first.message.strip():
        return None
    is_undecided = first.code == "HST101" and report.perturbation.is_estimated
    is_worth = report.plan.repairs or is_undecided or first.severity is not Severity.INFO
    stands = report.ending.cause == "complaint" and first.severity is not Severity.ERROR
    cost = (first.cost_ns_per_step or 0) / (report.training_log.mean_ns or 1)
    shares = (float(one[1]) / 100 for one in map(_PAUSED, report.training_log.unavailable) if one)
    is_less = any(share > cost * (1 - share) > 0 for share in shares)
    return first if is_worth and not stands and not is_less else None


def _nothing_measured(report: Report) -> tuple[str, tuple[str, ...]]:
    """The verdict of a recording without any time."""
    if report.ending.num_lines and not report.run.ranks:
        step = "Name the output of all ranks, or record a trace with distprof capture -- COMMAND."
        return f"Not decided: {report.ending.num_lines:,} lines show no end or iteration", (step,)
    reasons = (*report.waterfall.unavailable, *report.breakdown.unavailable)
    gaps = tuple(gap.message for gap in report.capture.gaps)
    reason = next(iter((*reasons, *gaps)), "no GPU or operator activity was recorded")
    return "Nothing could be measured", (f"{capitalized(reason.rstrip('.'))}.",)
