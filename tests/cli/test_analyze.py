"""``distprof analyze`` on real traces: from files to a report, and every way it can end."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

import distprof
from distprof import api
from distprof.cli.app import main
from distprof.documents.saved import REPORT, load_report
from distprof.errors import UsageError
from distprof.sections import measure_run as measuring
from docs.schemas import schema_of
from tests.documents.samples import straggler

GOLDEN = Path(__file__).resolve().parent.parent / "golden" / "kineto"
DLRM = str(GOLDEN / "dlrm-v100-8gpu")
PARTS = ("computation_ns", "exposed_comm_ns", "exposed_copy_ns", "idle_ns")

pytestmark = pytest.mark.filterwarnings("error")


def analyzed(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["analyze", *arguments, "--format", "json", "--executor", "serial"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    document: dict[str, Any] = json.loads(captured.out)
    return document


def test_four_real_ranks_become_a_report(capsys: pytest.CaptureFixture[str]) -> None:
    report = analyzed(capsys, DLRM)
    assert report["run"]["ranks"] == [0, 1, 2, 3]
    assert report["run"]["world_size"] == 8
    assert report["run"]["device"] == "Tesla V100-SXM2-32GB"
    assert report["capture"]["ranks_missing"] == [4, 5, 6, 7]
    for rank in report["breakdown"]["ranks"]:
        assert sum(rank[part] for part in PARTS) == rank["span_ns"]


@pytest.mark.parametrize("folder", sorted(p.name for p in GOLDEN.iterdir() if p.is_dir()))
@pytest.mark.parametrize("window", ["steps", "capture"])
def test_every_golden_trace_gives_a_report_that_fits_the_schema(
    folder: str, window: str, capsys: pytest.CaptureFixture[str]
) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    report = analyzed(capsys, str(GOLDEN / folder), "--window", window)
    jsonschema.Draft202012Validator(schema_of(REPORT)).validate(report)
    total = report["waterfall"]["all"]
    if total is None:
        assert report["verdict"]["headline"].startswith("No device activity was recorded")
        return
    parts = [value for name, value in total.items() if name not in ("rank", "span_ns")]
    assert sum(parts) == total["span_ns"] > 0


@pytest.mark.parametrize("folder", sorted(p.name for p in GOLDEN.iterdir() if p.is_dir()))
@pytest.mark.parametrize("width", [80, 120])
def test_every_golden_trace_is_shown_within_the_width(
    folder: str,
    width: int,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(GOLDEN)  # commands are never wrapped, however long their path is
    assert main(["analyze", folder, "--width", str(width)]) == 0
    captured = capsys.readouterr()
    assert max(map(len, captured.out.splitlines())) <= width
    assert captured.err == ""


def test_shares_of_one_report_are_shares_of_the_same_step(
    capsys: pytest.CaptureFixture[str],
) -> None:
    report = analyzed(capsys, DLRM)
    waterfall = report["waterfall"]
    mean_step = waterfall["all"]["span_ns"] / (waterfall["num_ranks"] * waterfall["num_steps"])
    for rank in report["stragglers"]["ranks"]:
        share = rank["lost_ns_per_step"] / mean_step
        assert rank["share_of_step_ratio"] == pytest.approx(share, abs=1e-6)


def test_ranks_can_be_chosen(capsys: pytest.CaptureFixture[str]) -> None:
    assert analyzed(capsys, DLRM, "--ranks", "1-2")["run"]["ranks"] == [1, 2]


def test_ranks_left_out_as_asked_are_not_called_missing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["analyze", DLRM, "--ranks", "0-3", "--full"]) == 0
    shown = capsys.readouterr().out
    assert "Ranks 4-7 were left out on request." in shown
    assert "ranks left out" in shown
    assert "CAP101" not in shown


def test_the_whole_capture_can_be_one_window(capsys: pytest.CaptureFixture[str]) -> None:
    report = analyzed(capsys, DLRM, "--window", "capture")
    assert report["step_time"]["median_ns"] is None
    assert report["waterfall"]["num_steps"] == 1


def test_the_users_step_time_is_that_of_the_report(capsys: pytest.CaptureFixture[str]) -> None:
    traced = analyzed(capsys, DLRM)
    wanted = round(0.8 * traced["step_time"]["median_ns"])
    known = analyzed(capsys, DLRM, "--step-time", f"{wanted}ns")["perturbation"]
    assert (known["origin"], known["untraced_ns"]) == ("given", wanted)
    assert traced["perturbation"]["origin"] != "given"


@pytest.mark.parametrize("value", ["30.5", "fast", "0ms", "-1ms"])
def test_a_step_time_without_a_unit_is_wrong_usage(
    value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["analyze", DLRM, f"--step-time={value}"]) == 2
    assert "is not a time such as 30.5ms" in capsys.readouterr().err


def test_bare_traces_get_no_file_beside_them(tmp_path: Path) -> None:
    folder = shutil.copytree(DLRM, tmp_path / "traces")
    before = sorted(folder.rglob("*"))
    assert main(["analyze", str(folder)]) == 0
    assert sorted(folder.rglob("*")) == before


def test_a_run_directory_keeps_its_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "run.json").write_text('{"schema": "distprof.run/1"}')
    for number, trace in enumerate(sorted(Path(DLRM).glob("*.gz"))):
        rank = run / f"rank{number:05d}"
        rank.mkdir()
        shutil.copy(trace, rank / "trace.json.gz")
    assert main(["analyze", str(run)]) == 0
    said = " ".join(capsys.readouterr().out.split())  # a long path takes a line of its own
    assert f"distprof report {run} --full" in said
    assert load_report(run).run.ranks == (0, 1, 2, 3)


def test_a_report_is_kept_where_asked_and_never_replaced_unasked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "kept.json"
    assert main(["analyze", DLRM, "--save-report", str(file)]) == 0
    assert f"Wrote {file}" in capsys.readouterr().err
    assert main(["analyze", DLRM, "--save-report", str(file)]) == 2
    assert main(["analyze", DLRM, "--save-report", str(file), "--force", "-q"]) == 0


def test_the_saved_report_shows_what_the_analysis_showed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "kept.json"
    assert main(["analyze", DLRM, "--save-report", str(file)]) == 0
    shown = capsys.readouterr().out
    assert main(["report", str(file)]) == 0
    assert capsys.readouterr().out == shown


def test_findings_fail_the_call_when_asked(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", DLRM, "--fail-on", "info"]) == 1
    assert "Findings" in capsys.readouterr().out


def test_limits_of_the_configuration_reach_the_rules(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "distprof.toml"
    config.write_text("[limits.COM102]\nnonsense = 1\n")
    assert main(["analyze", DLRM, "--config", str(config)]) == 2
    assert "nonsense" in capsys.readouterr().err


def test_a_missing_source_suggests_near_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "traces").mkdir()
    assert main(["analyze", str(tmp_path / "trace")]) == 3
    captured = capsys.readouterr()
    assert captured.out == ""
    assert f"try: {tmp_path / 'traces'}" in captured.err


def test_a_pattern_that_the_shell_expanded_is_one_run(capsys: pytest.CaptureFixture[str]) -> None:
    traces = sorted(str(path) for path in Path(DLRM).glob("*.gz"))
    assert main(["analyze", *traces]) == 0
    assert "4 of 8 ranks" in capsys.readouterr().out


def test_a_pipe_is_refused_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pipe = tmp_path / "trace.json"
    os.mkfifo(pipe)
    assert main(["analyze", str(pipe)]) == 3
    assert "a pipe or a device" in capsys.readouterr().err


def test_a_saved_report_given_as_trace_is_pointed_to_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = straggler().save(tmp_path / "report.json")
    assert main(["analyze", str(file)]) == 3
    assert f"distprof report {file}" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["x" * 5_000, "nul\0l", "", " ", "\udcff"])
def test_odd_names_are_missing_files_and_no_crash(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(DLRM, tmp_path / "traces")
    monkeypatch.chdir(tmp_path)  # an empty name does not mean the folder one happens to be in
    assert main(["analyze", name]) == 3
    assert "Traceback" not in capsys.readouterr().err


def test_output_is_refused_before_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("the work was begun")

    monkeypatch.setattr(api, "open_run", never)
    existing = tmp_path / "there.md"
    existing.write_text("")
    assert main(["analyze", DLRM, "-o", str(existing)]) == 2
    assert main(["analyze", DLRM, "-o", ""]) == 2
    assert main(["analyze", DLRM, "--save-report", ""]) == 2


def test_each_file_that_is_named_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [tmp_path / name for name in ("a.html", "b.json", "c.md")]
    named = [word for file in files for word in ("-o", str(file))]
    assert main(["analyze", DLRM, *named, "-q"]) == 0
    assert [file.read_text().lstrip()[0] for file in files] == ["<", "{", "#"]
    assert main(["analyze", DLRM, *named[2:], "-o", "new.json"]) == 2
    assert "b.json exists" in capsys.readouterr().err


def test_the_python_api_gives_the_same_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    by_command = analyzed(capsys, DLRM)
    run = distprof.open_run(DLRM, executor="serial", cache_dir=tmp_path)
    report = distprof.analyze(run)
    assert json.loads(report.save(tmp_path / "r.json").read_bytes()) == by_command
    assert distprof.analyze(DLRM, executor="serial") == report


def test_progress_covers_reading_and_measuring() -> None:
    told: list[tuple[int, int]] = []
    distprof.analyze(DLRM, executor="serial", progress=lambda done, of: told.append((done, of)))
    assert told == [(done, 4) for done in (1, 2, 3, 4)] * 2


def test_processes_and_one_process_give_the_same(tmp_path: Path) -> None:
    serial = distprof.analyze(DLRM, executor="serial")
    assert distprof.analyze(DLRM, executor="process:2") == serial


def test_an_unknown_executor_is_wrong_usage() -> None:
    with pytest.raises(UsageError, match="carrier-pigeon"):
        distprof.open_run(DLRM, executor="carrier-pigeon")


def test_a_rank_that_cannot_be_measured_costs_itself_only(monkeypatch: pytest.MonkeyPatch) -> None:
    run = distprof.open_run(DLRM, executor="serial")
    original = measuring.measure_rank

    def measure_rank(tables: Any, context: Any, load_host: Any) -> Any:
        if context.rank == 2:
            raise ZeroDivisionError("no luck")
        return original(tables, context, load_host)

    monkeypatch.setattr(measuring, "measure_rank", measure_rank)
    report = distprof.analyze(run)
    assert [rank.rank for rank in report.breakdown.ranks] == [0, 1, 3]
    assert any("Rank 2 could not be measured" in text for text in report.breakdown.unavailable)
    with pytest.raises(ZeroDivisionError):
        distprof.analyze(run, debug=True)


def test_a_list_of_millions_is_refused_before_it_is_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A report that names ten million missing ranks took a gigabyte."""
    assert main(["analyze", str(tmp_path), "--ranks", "5,0-9999999"]) == 2
    assert "names more than 1,000,000 ranks" in capsys.readouterr().err
