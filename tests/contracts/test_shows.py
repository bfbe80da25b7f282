"""What every section must show: a table, a verdict where it declares one, and JSON.

Samples are made from the types of results, so that a new section is tested without anybody writing
one: every field holds something, every table three rows.
"""

from __future__ import annotations

import enum
import importlib
import re
import types
import typing
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest

import distprof.sections
from distprof.artefacts.record import Gap
from distprof.documents.saved import REPORT, Report
from distprof.escape import headed
from distprof.formats import RenderOptions, find_reporter
from distprof.sections import shows
from distprof.sections.base import Result, subject_of
from distprof.sections.perturbation import PerturbationResult
from distprof.sections.shows import (
    LONG_SENTENCES,
    ORIGINS,
    SENTENCES,
    TABLES,
    VERDICTS,
    judge,
    origin,
    tables_of,
)
from distprof.terms import StepSource
from tests.documents.samples import capture_only, empty, healthy, run_info, straggler

HINTS = typing.get_type_hints(Report)
SECTIONS = {
    name: hint
    for name, hint in HINTS.items()
    if isinstance(hint, type) and issubclass(hint, Result)
}
SUBJECTS = sorted(
    path.parent.name for path in Path(distprof.sections.__file__).parent.glob("*/show.py")
)
LISTED = (*TABLES, *VERDICTS, *ORIGINS, *SENTENCES)
NOTHING = msgspec.structs.replace(empty(), run=run_info(()))
ALWAYS = {field.name for field in msgspec.structs.fields(Report) if field.required}

WORDS: dict[str, Any] = {
    "order": "blocked",
    "mesh": {"pp": 4, "tp": 2},
    "what": "rank 2",
    "counted_ratio": 1.0,
    "second": None,  # a table like the one that holds it
}
"""Fields that hold one of a few words."""


def filled(hint: Any, number: int = 0, name: str = "") -> Any:
    """Something of a type: no field empty, three rows in every table, numbers that differ by row.

    Args:
        hint: The type.
        number: Of the row; ranks and stages are numbered by it.
        name: Of the field.
    """
    if name in WORDS:
        return WORDS[name]
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return filled(next(one for one in arguments if one is not type(None)), number, name)
    if origin is tuple:
        if arguments[-1] is not Ellipsis:
            return tuple(filled(one, number, name) for one in arguments)
        return tuple(filled(arguments[0], row, name) for row in range(3))
    if origin is dict:
        return {filled(arguments[0], row): filled(arguments[1], row) for row in range(2)}
    if origin is Literal:
        return arguments[0]
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return next(iter(hint))
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        fields = typing.get_type_hints(hint)
        wanted = {field.name for field in msgspec.structs.fields(hint)}
        return hint(**{f: filled(fields[f], number, f) for f in fields if f in wanted})
    if hint is int and name.endswith(("rank", "stage", "sender")):
        return number
    if hint is int and name.endswith("receiver"):
        return (number + 1) % 3
    if hint in (int, float, bool, str):
        return {int: number + 1, float: (number + 1) / 4, bool: True, str: f"{name} {number}"}[hint]
    raise TypeError(f"no sample of {hint!r}")


def only(*names: str, base: Report | None = None, source: str = "traces") -> Report:
    """A report in which these sections, and no other optional one, hold something.

    Args:
        names: Fields of the report.
        base: What else it holds, a healthy job by default.
        source: What was simulated, ``traces`` or ``operations``.
    """
    found = {name: filled(SECTIONS[name]) for name in names}
    whatif = found.get("whatif")
    if whatif is not None:
        found["whatif"] = msgspec.structs.replace(
            whatif, source=source, replayed_ns=10, slowdown=1.5
        )
    return msgspec.structs.replace(base or healthy(), **found)


LIKELY_SLOWED = PerturbationResult(
    traced_ns=22_300_000, likely_ns=21_300_000, least_ns=20_000_000, num_operators=1_000
)
"""A foreign trace: nothing says how long steps take without the profiler."""


def function(name: str) -> Any:
    """The function that a name in a list stands for."""
    subject, _, made = name.partition(".")
    return getattr(importlib.import_module(f"distprof.sections.{subject}.show"), made)


def sections_of(subject: str) -> list[str]:
    """Fields of a report that a subject's results fill."""
    return [name for name, hint in SECTIONS.items() if subject_of(hint) == subject]


def test_every_show_is_found_by_a_result_of_the_report() -> None:
    assert [subject for subject in SUBJECTS if not sections_of(subject)] == []


def written_in(subject: str) -> set[str]:
    """Public functions of a ``show.py`` that are named as tables, verdicts and origins are."""
    module = importlib.import_module(f"distprof.sections.{subject}.show")
    return {
        f"{subject}.{name}"
        for name, value in vars(module).items()
        if getattr(value, "__module__", "") == module.__name__
        and re.fullmatch(r"[a-z]\w*_(table|verdict|origin)", name)
    }


def test_every_table_verdict_and_origin_is_listed_once() -> None:
    """A function that is written and not listed is shown by nobody."""
    written = set().union(*map(written_in, SUBJECTS))
    assert len(set(LISTED)) == len(LISTED)
    assert written <= set(LISTED)
    assert set(LONG_SENTENCES) < set(SENTENCES)


@pytest.mark.parametrize("subject", SUBJECTS)
def test_a_subject_shows_a_table_and_json(subject: str) -> None:
    report = only(*sections_of(subject))
    makers = [function(name) for name in TABLES if name.startswith(f"{subject}.")]
    made = [view for make in makers if (view := make(report, show_all=True)) is not None]
    assert made
    assert all(len(row) == len(view.columns) for view in made for row in view.rows)
    assert REPORT.decode(REPORT.encode(report), subject) == report


def test_every_table_is_shown_and_every_sentence_is_said() -> None:
    reports = [
        only(*SECTIONS),
        only(*SECTIONS, source="operations"),
        only(*(name for name in SECTIONS if name not in ALWAYS), base=straggler()),
        only(*(name for name in SECTIONS if name != "efficiency")),
        msgspec.structs.replace(straggler(), perturbation=LIKELY_SLOWED),
        capture_only(),
    ]
    said = {
        name
        for report in reports
        for name in (*TABLES, *SENTENCES)
        if function(name)(report, **({"show_all": True} if name in TABLES else {}))
    }
    assert said == {*TABLES, *SENTENCES}
    for report in reports:
        for name in ("text", "md", "json"):
            assert find_reporter(name)(report, RenderOptions(show_all=True))


@pytest.mark.parametrize("name", VERDICTS)
def test_a_listed_verdict_is_the_verdict_where_nothing_else_is(name: str) -> None:
    subject = name.partition(".")[0]
    names = [name for name in sections_of(subject) if name not in ALWAYS]
    report = only(*names, base=NOTHING, source="operations")
    telemetry = msgspec.structs.replace(report.telemetry, ranks=())  # of devices without a rank
    report = msgspec.structs.replace(report, telemetry=telemetry)
    if subject == "capture":  # it is in every report, and has a verdict where a device is missing
        gap = Gap(what="no-device-activity", message="No device activity. Why.", ranks=(0,))
        capture = msgspec.structs.replace(report.capture, gaps=(gap,))
        report = msgspec.structs.replace(report, capture=capture)
    told = function(name)(report)
    assert told
    verdict = judge(report)
    headline, rest = headed(told[0])
    assert (verdict.headline, verdict.detail) == (headline, rest or next(iter(told[1]), ""))


@pytest.mark.parametrize("listed", ORIGINS)
def test_a_listed_origin_is_the_origin_where_nothing_else_is(listed: str) -> None:
    subject, line = listed.partition(".")[0], function(listed)
    names = [name for name in sections_of(subject) if name not in ALWAYS]
    report = only(*names, base=NOTHING)
    telemetry = msgspec.structs.replace(report.telemetry, ranks=())
    source = StepSource.OPERATIONS if subject == "whatif" else StepSource.CAPTURE
    step_time = msgspec.structs.replace(report.step_time, source=source)
    report = msgspec.structs.replace(report, telemetry=telemetry, step_time=step_time)
    assert line(report)
    assert origin(report) == line(report)
    assert not line(healthy())


def test_a_subject_in_which_nothing_was_found_is_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []

    def noted(name: str) -> Any:
        asked.append(name)
        return importlib.import_module(name)

    monkeypatch.setattr(shows, "import_module", noted)
    tables_of(empty(), show_all=True)
    always = {subject_of(HINTS[name]) for name in ALWAYS & SECTIONS.keys()}
    assert {name.split(".")[2] for name in asked} <= always


def test_a_table_that_cannot_be_made_is_not_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> bool:
        raise ZeroDivisionError

    monkeypatch.setattr("distprof.sections.capture.show.facts_table", broken)
    with pytest.raises(ZeroDivisionError):
        tables_of(healthy(), show_all=True)
