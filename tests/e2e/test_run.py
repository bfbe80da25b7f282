"""``distprof run`` from the shell to the report: what goes well."""

from __future__ import annotations

import json

import pytest

from tests.e2e.jobs import RunOnce

pytestmark = pytest.mark.distributed


COMMAND = ("ddp", "--ranks", "2", "--layers", "2", "--batch", "1", "--sequence", "32")


def test_a_run_ends_in_its_report(run_cold: RunOnce) -> None:
    job = run_cold(*COMMAND)
    assert job.exit_code == 0, job.stderr
    assert job.run is not None
    assert (job.run.outcome, job.run.failure, job.run.world_size) == ("completed", None, 2)
    assert [entry.exit.code for entry in job.run.ranks if entry.exit] == [0, 0]
    assert job.report["run"]["world_size"] == 2
    assert " per step: █ comp" in job.stdout
    assert "--full" in job.stdout


def test_the_last_line_says_where_everything_is(run_cold: RunOnce) -> None:
    job = run_cold(*COMMAND)
    last = job.stderr.splitlines()[-1]
    assert job.dir.name in last
    assert "distprof report" in last


def test_a_page_is_written_into_the_run_directory_and_named_last(run_once: RunOnce) -> None:
    job = run_once(*COMMAND, "--format", "html")
    assert job.exit_code == 0, job.stderr
    page = (job.dir / "report.html").read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>")
    assert "2 of 2 ranks" in page
    assert job.stdout == ""
    assert "report.html" in job.stderr.splitlines()[-1]
    assert job.report["run"]["world_size"] == 2  # next to report.json, which other commands read


def test_a_format_that_is_none_is_refused_before_the_job(run_once: RunOnce) -> None:
    job = run_once(*COMMAND, "--format", "pdf")
    assert job.exit_code == 2
    assert "no format 'pdf': choose from text, brief, json, md, html" in job.stderr
    assert job.run is None


def test_stderr_is_short_where_it_is_no_terminal(run_cold: RunOnce) -> None:
    assert len(run_cold(*COMMAND).stderr.splitlines()) == 2


def test_the_whole_configuration_stands_in_run_json(run_cold: RunOnce) -> None:
    run = run_cold(*COMMAND).run
    assert run is not None
    assert run.config["training"]["steps"] == 8
    assert run.config["training"]["device"] == "cpu"
    assert run.config["model"]["hidden"] == 256
    assert run.config["ddp"]["bucket_mb"] == 1.0
    assert run.config["probes"]["total_steps"] == 8
    assert run.mesh == {"dp_replicate": 2}
    assert run.versions["torch"]


def test_each_rank_keeps_what_it_recorded(run_cold: RunOnce) -> None:
    job = run_cold(*COMMAND)
    for rank in ("rank00000", "rank00001"):
        lines = (job.dir / rank / "steps.jsonl").read_text().splitlines()
        assert [json.loads(line).get("step") for line in lines] == [None, *range(8)]
        assert (job.dir / rank / "trace.json.gz").is_file()
        assert (job.dir / rank / "output.log").is_file()
