"""Every section of a report is made by an analyzer found by looking, from what it asks for."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, get_args, get_type_hints

import msgspec
import pytest

import distprof.sections
from distprof.documents.saved import Report
from distprof.intervals import Intervals
from distprof.run.records import RankRecords
from distprof.run.run import Run
from distprof.sections import engine
from distprof.sections import measure_run as measure_run_module
from distprof.sections.base import Result, subject_of
from distprof.sections.context import RankAnalysis
from distprof.sections.engine import (
    Inputs,
    WiringError,
    analyzer_of,
    declared_functions,
    in_order,
    resolve,
    sections_of,
)
from distprof.sections.measure_run import _given, measure_rank, rank_parts, record_parts
from distprof.sections.overlap import RankOverlap
from tests.builders import RankBuilder, make_run
from tests.sections.measured import context_of

SECTIONS = sections_of(Report)
PART_OF_A_RANK = {"input", "picture"}
"""Measured on each rank alone: shown by other sections, or drawn."""


@pytest.mark.parametrize("kind", SECTIONS.values(), ids=lambda kind: kind.__name__)
def test_every_section_has_one_analyzer(kind: type[Result]) -> None:
    made_in = analyzer_of(kind).make.__module__
    assert made_in.startswith(f"distprof.sections.{subject_of(kind)}.")


@pytest.mark.parametrize("kind", SECTIONS.values(), ids=lambda kind: kind.__name__)
def test_an_analyzer_takes_no_path_and_says_what_it_makes(kind: type[Result]) -> None:
    """Pure: what it needs comes as a value, so that it can be tested without a file."""
    needs = analyzer_of(kind).needs
    assert not {str, bytes, Path, os.PathLike} & set(needs.values())
    assert analyzer_of(kind).make.__doc__


def test_each_result_comes_after_what_it_needs() -> None:
    given = {Run, *get_type_hints(Inputs).values()}
    done: set[Any] = set()
    for kind, analyzer in in_order(Report):
        results = {need for need in analyzer.needs.values() if need not in given}
        assert {need for need in results if issubclass(need, Result)} <= done
        done.add(kind)
    assert set(SECTIONS.values()) <= done


def test_every_folder_of_a_section_has_its_rooms() -> None:
    root = Path(distprof.sections.__path__[0])
    folders = {path.parent.name for path in root.glob("*/__init__.py")}
    assert folders - PART_OF_A_RANK == {subject_of(kind) for kind in SECTIONS.values()}
    for folder in folders - PART_OF_A_RANK:
        assert (root / folder / "measure.py").exists(), folder
        assert (root / folder / "show.py").exists(), folder


# What is measured on one rank alone ---------------------------------------------------------------

GIVEN = set(_given(RankBuilder().tables(), context_of(RankBuilder())))
OF_A_RANK = get_type_hints(RankAnalysis)
ITS_TYPE = {name: get_type_hints(make)["return"] for name, make in rank_parts().items()}


@pytest.mark.parametrize("name", sorted(OF_A_RANK.keys() - GIVEN))
def test_each_field_of_a_rank_is_made_by_one_subject(name: str) -> None:
    assert ITS_TYPE[name] in (OF_A_RANK[name], *get_args(OF_A_RANK[name]))


@pytest.mark.parametrize("name", rank_parts())
def test_what_is_measured_on_a_rank_asks_for_what_there_is(name: str) -> None:
    needs = get_type_hints(rank_parts()[name])
    del needs["return"]
    assert needs.keys() <= GIVEN | ITS_TYPE.keys()
    for need in needs.keys() - GIVEN:
        assert ITS_TYPE[need] == needs[need], need


def test_no_part_of_a_rank_is_made_for_nothing() -> None:
    asked = {need for make in rank_parts().values() for need in get_type_hints(make)}
    assert rank_parts().keys() <= OF_A_RANK.keys() | asked


def test_a_part_that_nobody_makes_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    rank = RankBuilder()
    without = {name: make for name, make in rank_parts().items() if name != "timeline"}
    monkeypatch.setattr(measure_run_module, "rank_parts", lambda: without)
    with pytest.raises(WiringError, match="rank_timeline to make timeline for steps"):
        measure_rank(rank.tables(), context_of(rank))


def test_parts_that_need_each_other_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def rank_timeline(overlap: RankOverlap) -> None:
        raise AssertionError(overlap)

    parts = {**rank_parts(), "timeline": rank_timeline}
    monkeypatch.setattr(measure_run_module, "rank_parts", lambda: parts)
    rank = RankBuilder()
    with pytest.raises(WiringError, match="to make timeline for overlap for timeline for steps"):
        measure_rank(rank.tables(), context_of(rank))


def test_measurements_of_records_differ_in_type() -> None:
    """They are found by it."""
    kinds = [get_type_hints(make)["return"] for make, _ in record_parts()]
    assert len(kinds) >= 7
    assert len(set(kinds)) == len(kinds)
    assert {need for _, needs in record_parts() for need in needs.values()} <= {
        RankRecords,
        Intervals,
    }


def test_two_subjects_with_the_same_part_are_said(
    make_section: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    part = "def rank_width(windows: list) -> int:\n    return len(windows)\n"
    make_section("one", "OneResult", part)
    monkeypatch.setattr(engine, "_subjects", lambda: ("scratch_one",))
    assert declared_functions("rank_")["width"]([1, 2]) == 2
    make_section("other", "OtherResult", part)
    monkeypatch.setattr(engine, "_subjects", lambda: ("scratch_one", "scratch_other"))
    with pytest.raises(WiringError, match="another subject also has a rank_width"):
        declared_functions("rank_")


# A section that somebody adds ---------------------------------------------------------------------

RESULT = """
    from distprof.sections.base import Result, subject_of

    class {name}(Result, frozen=True, kw_only=True):
        number: int = 0
"""

Make = Callable[..., type[Result]]


@pytest.fixture
def make_section(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Writes the folder of a section; returns the type of its result."""
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in [name for name in sys.modules if name.startswith("scratch_")]:
        monkeypatch.delitem(sys.modules, name)

    def make(subject: str, name: str, measure: str) -> type[Result]:
        folder = tmp_path / f"scratch_{subject}"
        folder.mkdir()
        (folder / "__init__.py").write_text(textwrap.dedent(RESULT.format(name=name)))
        (folder / "measure.py").write_text(textwrap.dedent(measure))
        kind: type[Result] = getattr(import_module(folder.name), name)
        return kind

    return make


class OnlyRun(msgspec.Struct, frozen=True):
    run: Run
    limit: int | None = None


def report_of(**sections: Any) -> type:
    return type("SomeReport", (), {"__annotations__": {"title": str, **sections}})


RANKS = """
    from distprof.run.run import Run
    from scratch_ranks import RanksResult

    def analyze_ranks(run: Run) -> RanksResult:
        return RanksResult(number=len(run))
"""
TWICE = """
    from scratch_ranks import RanksResult
    from scratch_twice import TwiceResult

    def analyze_twice(ranks: RanksResult, limit: int | None) -> TwiceResult:
        return TwiceResult(number=2 * ranks.number if limit is None else limit)
"""


def test_a_section_is_a_folder_and_a_field(make_section: Make) -> None:
    ranks = make_section("ranks", "RanksResult", RANKS)
    twice = make_section("twice", "TwiceResult", TWICE)
    report = report_of(twice=twice, ranks=ranks)
    results = resolve(report, OnlyRun(make_run([])))
    assert list(results) == ["twice", "ranks"]
    assert results == {"twice": twice(number=0), "ranks": ranks(number=0)}
    assert resolve(report, OnlyRun(make_run([]), limit=7))["twice"] == twice(number=7)


def test_a_result_that_nobody_makes_is_said(make_section: Make) -> None:
    kind = make_section("ranks", "RanksResult", "")
    with pytest.raises(WiringError, match=r"scratch_ranks.measure must have exactly one function"):
        list(in_order(report_of(ranks=kind)))


def test_a_parameter_that_nobody_provides_is_said(make_section: Make) -> None:
    kind = make_section("ranks", "RanksResult", RANKS.replace("run: Run", "path: str"))
    with pytest.raises(WiringError, match=r"analyze_ranks: no analyzer makes the .*str.*'path'"):
        list(in_order(report_of(ranks=kind)))


def test_results_that_need_each_other_are_said(make_section: Make) -> None:
    twice = make_section("twice", "TwiceResult", TWICE)
    circle = RANKS.replace("run: Run", "twice: 'TwiceResult'").replace(
        "from distprof.run.run import Run", "from scratch_twice import TwiceResult"
    )
    make_section("ranks", "RanksResult", circle)
    with pytest.raises(WiringError, match="TwiceResult needs RanksResult needs TwiceResult"):
        list(in_order(report_of(twice=twice), OnlyRun))
