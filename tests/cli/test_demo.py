"""``distprof demo``: a report without traces of one's own, and what is typed goes on."""

from __future__ import annotations

import json
from importlib import util
from pathlib import Path

import click
import pytest

from distprof.cli.app import main
from distprof.demo import ABOUT, FOLDER

LICENCE = Path(__file__).parents[1] / "golden" / "LICENSES" / "facebookresearch+param.txt"


def test_the_recording_is_analysed_and_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--executor", "serial"]) == 0
    said = capsys.readouterr()
    assert said.err.splitlines()[0] == ABOUT
    assert "4 of 8 ranks" in said.out
    assert "distprof demo --full" in said.out
    assert str(FOLDER) not in said.out


def test_options_are_those_of_analyze(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "-q", "--format", "json", "--ranks", "0", "--executor", "serial"]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    assert json.loads(said.out)["run"]["ranks"] == [0]


@pytest.mark.parametrize("typed", [["--bogus"], ["--format", "jpeg"], ["other/traces"]])
def test_what_analyze_does_not_know_is_its_error(
    typed: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo", *typed]) == 2
    assert "Error: " in capsys.readouterr().err


def test_run_is_the_training_with_a_slow_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[tuple[str, ...]] = []

    @click.command(context_settings={"ignore_unknown_options": True})
    @click.argument("words", nargs=-1, type=click.UNPROCESSED)
    def run(words: tuple[str, ...]) -> int:
        called.append(words)
        return 4

    monkeypatch.setattr("distprof_runs.cli.run", run)
    assert main(["demo", "run", "--steps", "8"]) == 4
    (words,) = called
    assert words[:1] == ("ddp",)
    assert {"slow-rank=1:1.5", "cpu", "2"} < set(words)
    assert words[-2:] == ("--steps", "8")


def test_without_the_training_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(util, "find_spec", lambda _: None)
    assert main(["demo", "run"]) == 2
    assert "pip install 'distprof[run]'" in capsys.readouterr().err


def test_the_licence_of_the_recording_comes_with_it() -> None:
    assert (FOLDER.parent / "LICENSE.param.txt").read_text() == LICENCE.read_text()
