"""The summary page of a step of GitHub Actions: who writes to it, and who does not."""

import os
import sys
from pathlib import Path

import pytest

from distprof.cli import main
from distprof.verbs.sweep.running import run_child

GOLDEN = Path(__file__).parents[1] / "golden"
DDP = str(GOLDEN / "kineto" / "gloo-ddp-2ranks")
JOB = str(Path(__file__).parents[1] / "verbs" / "plan" / "jobs_of_others" / "own.toml")


@pytest.fixture
def page(tmp_path, monkeypatch):
    """The page, which already holds what another step wrote."""
    file = tmp_path / "summary.md"
    file.write_text("# before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(file))
    return file


def test_analyze_adds_its_report(page, capsys):
    assert main(["analyze", DDP, "--format", "github"]) == 0
    assert capsys.readouterr().out.startswith("::notice title=distprof analyze::")
    heading, _, rest = page.read_text().partition("\n")
    assert heading == "# before"
    assert rest.startswith("### ")


def test_a_linted_configuration_is_added_too(page):
    assert main(["plan", "--lint", JOB, "--model", "llama3-8b", "--gpus", "24"]) == 1
    assert "### This configuration cannot run as it is" in page.read_text()


def test_a_report_that_is_written_there_anyway_is_not_added_again(page):
    assert main(["analyze", DDP, "--format", "md", "-o", str(page), "--force", "-q"]) == 0
    assert page.read_text().count("\n### ") + page.read_text().startswith("### ") == 1


def test_without_the_variable_nothing_is_written(page, monkeypatch):
    monkeypatch.delenv("GITHUB_STEP_SUMMARY")
    assert main(["analyze", DDP]) == 0
    assert page.read_text() == "# before\n"


def test_a_page_that_cannot_be_written_changes_no_exit_code(page, monkeypatch, capsys):
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(page / "missing"))
    assert main(["analyze", DDP]) == 0
    assert "The step summary was not written: Not a directory" in capsys.readouterr().err


def test_each_run_of_a_sweep_keeps_to_itself(page):
    """A gate of 20 runs would otherwise put 20 reports on the page."""
    code = "import os, sys; sys.exit('GITHUB_STEP_SUMMARY' in os.environ)"
    assert "GITHUB_STEP_SUMMARY" in os.environ
    assert run_child([sys.executable, "-c", code], beat=lambda _: None).exit_code == 0
