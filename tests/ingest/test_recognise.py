"""What a source is, by a look at it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from distprof.artefacts import REPORT_FILE, REPORT_SCHEMA, RUN_FILE
from distprof.artefacts.summary_file import SUMMARY_SCHEMA
from distprof.ingest.recognise import Kind, fresh_report_in, kind_of, runs_inside


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (f'{{"schema": "{REPORT_SCHEMA}", "verdict": {{}}}}', Kind.REPORT),
        (f'{{\n  "schema": "{SUMMARY_SCHEMA}"\n}}', Kind.SUMMARIES),
        (f'[{{"schema": "{SUMMARY_SCHEMA}"}}]', Kind.SUMMARIES),
        ('{"traceEvents": []}', Kind.RECORDING),
        (f'{{"traceEvents": [{" " * 1_000}"{REPORT_SCHEMA}"]}}', Kind.RECORDING),
        ("", Kind.RECORDING),
    ],
)
def test_a_file_is_known_by_its_first_bytes(tmp_path: Path, text: str, kind: Kind) -> None:
    file = tmp_path / "file.json"
    file.write_text(text)
    assert kind_of(str(file)) is kind


@pytest.mark.parametrize("name", ["", "no such file", "a\0b", "x" * 5_000, "s3://a/b", "*.json"])
def test_what_cannot_be_read_is_left_to_the_reader(tmp_path: Path, name: str) -> None:
    source = name if "://" in name else f"{tmp_path}/{name}"
    assert kind_of(source) is Kind.RECORDING
    assert list(runs_inside(source)) == []
    assert fresh_report_in(source) is None


def test_a_folder_holds_runs_unless_it_is_one(tmp_path: Path) -> None:
    for name in ("b", "a"):
        (tmp_path / name).mkdir()
        (tmp_path / name / RUN_FILE).write_text("{}")
    (tmp_path / "notes").mkdir()
    assert [run.name for run in runs_inside(str(tmp_path))] == ["a", "b"]
    (tmp_path / RUN_FILE).write_text("{}")
    assert list(runs_inside(str(tmp_path))) == []


def test_a_report_older_than_its_run_is_not_fresh(tmp_path: Path) -> None:
    report, run = tmp_path / REPORT_FILE, tmp_path / RUN_FILE
    report.write_text("{}")
    assert fresh_report_in(str(tmp_path)) is None  # of no run
    run.write_text("{}")
    os.utime(report, ns=(5, 5))
    os.utime(run, ns=(4, 4))
    assert fresh_report_in(str(tmp_path)) == report
    os.utime(run, ns=(6, 6))
    assert fresh_report_in(str(tmp_path)) is None
