"""Every section of a report is made by an analyzer found by looking, from what it asks for."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, get_type_hints

import msgspec
import pytest

import distprof.sections
from distprof.run.run import Run
from distprof.sections.base import Result
from distprof.sections.engine import (
    Inputs,
    WiringError,
    analyzer_of,
    in_order,
    resolve,
    sections_of,
)
from distprof.sections.report import Report
from tests.builders import make_run

SECTIONS = sections_of(Report)
PART_OF_A_RANK = {"input"}
"""Measured on each rank alone: shown by other sections."""


@pytest.mark.parametrize("kind", SECTIONS.values(), ids=lambda kind: kind.__name__)
def test_every_section_has_one_analyzer(kind: type[Result]) -> None:
    assert analyzer_of(kind).make.__module__.startswith(kind.__module__.rpartition(".")[0])


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
    assert folders - PART_OF_A_RANK == {
        kind.__module__.split(".")[-2] for kind in SECTIONS.values()
    }
    for folder in folders - PART_OF_A_RANK:
        assert (root / folder / "result.py").exists(), folder
        assert (root / folder / "measure.py").exists(), folder


# A section that somebody adds ---------------------------------------------------------------------

RESULT = """
    from distprof.sections.base import Result

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
        (folder / "__init__.py").touch()
        (folder / "result.py").write_text(textwrap.dedent(RESULT.format(name=name)))
        (folder / "measure.py").write_text(textwrap.dedent(measure))
        kind: type[Result] = getattr(import_module(f"{folder.name}.result"), name)
        return kind

    return make


class OnlyRun(msgspec.Struct, frozen=True):
    run: Run
    limit: int | None = None


def report_of(**sections: Any) -> type:
    return type("SomeReport", (), {"__annotations__": {"title": str, **sections}})


RANKS = """
    from distprof.run.run import Run
    from scratch_ranks.result import RanksResult

    def analyze_ranks(run: Run) -> RanksResult:
        return RanksResult(number=len(run))
"""
TWICE = """
    from scratch_ranks.result import RanksResult
    from scratch_twice.result import TwiceResult

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
    with pytest.raises(WiringError, match=r"scratch_ranks.measure must have one function analyze_"):
        list(in_order(report_of(ranks=kind)))


def test_a_parameter_that_nobody_provides_is_said(make_section: Make) -> None:
    kind = make_section("ranks", "RanksResult", RANKS.replace("run: Run", "path: str"))
    with pytest.raises(WiringError, match=r"analyze_ranks: no analyzer makes the .*str.*'path'"):
        list(in_order(report_of(ranks=kind)))


def test_results_that_need_each_other_are_said(make_section: Make) -> None:
    twice = make_section("twice", "TwiceResult", TWICE)
    circle = RANKS.replace("run: Run", "twice: 'TwiceResult'").replace(
        "from distprof.run.run import Run", "from scratch_twice.result import TwiceResult"
    )
    make_section("ranks", "RanksResult", circle)
    with pytest.raises(WiringError, match="TwiceResult needs RanksResult needs TwiceResult"):
        list(in_order(report_of(twice=twice), OnlyRun))
