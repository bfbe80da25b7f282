"""Whatever text a user names is read, or named: never taken for a broken trace."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from distprof.cli import main
from distprof.errors import InputError
from distprof.ingest.discovery import discover
from distprof.verbs.watch.follow import follow

LOGS = Path(__file__).parents[1] / "golden" / "logs"


def test_the_log_of_a_dead_job_is_a_report(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", str(LOGS / "torchrun-sigkill.log"), "--fail-on", "error"]) == 1
    text = capsys.readouterr().out
    assert text.startswith("Rank 10 on node-a was ended by SIGKILL")
    assert "CAP106" in text


def test_hang_reads_a_log_without_dumps(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["hang", str(LOGS / "watchdog-24-tensor-parallel.log"), "--format", "json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert (report["state"], report["culprits"], report["dumps"]) == ("stuck", [3], [])
    assert report["operation"]["seq"] == 9120
    assert report["operation"]["description"] == "tp"


def test_unknown_text_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "notes.log"
    file.write_text("Dear all,\nthe job is slow today.\n" * 20)
    assert main(["analyze", str(file)]) == 3
    said = capsys.readouterr().err
    assert "text" in said.lower()
    assert "traceEvents" not in said
    assert "damaged JSON" not in said


def test_a_table_of_operators_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "averages.txt"
    columns = "Name    Self CPU %      Self CPU   CPU total %     CPU total    # of Calls"
    file.write_text(f"{'-' * 60}\n{columns}\n{'-' * 60}\naten::mm  1.0%  1ms  2.0%  2ms  3\n")
    assert main(["analyze", str(file)]) == 0
    assert "table of operators · 1 row · no traces" in capsys.readouterr().out


@pytest.mark.parametrize("ranks", [(0, 1, 2, 3), (0, 3), (2,)])
def test_files_that_a_shell_names_are_one_job(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], ranks: tuple[int, ...]
) -> None:
    line = "Epoch: [0][{}/900]\tTime 1.3 (1.3)\tData {} ({})\tLoss 6.9 (6.9)\n"
    for rank in range(4):
        waits = "0.930" if rank == 3 else "0.010"
        text = "".join(line.format(step, waits, waits) for step in range(0, 100, 10))
        (tmp_path / f"rank{rank}.log").write_text(text)
    assert main(["analyze", *(str(tmp_path / f"rank{rank}.log") for rank in ranks)]) == 0
    said = capsys.readouterr().out
    assert (f" {len(ranks)} files " in said) == (len(ranks) > 1)
    assert said.startswith("Rank 3 waits 71.5 % of each iteration for input") == (3 in ranks)


def test_files_that_no_pattern_names_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a.log", "job.out", "other.out"):
        (tmp_path / name).write_text("x\n")
    assert main(["analyze", str(tmp_path / "a.log"), str(tmp_path / "job.out")]) == 2
    assert "put them into a folder of their own" in capsys.readouterr().err


def test_traces_of_installed_packages_are_of_no_job(tmp_path: Path) -> None:
    demo = tmp_path / ".venv-like" / "lib" / "site-packages" / "demo"
    demo.mkdir(parents=True)
    (demo / "rank-0.json").write_text('{"schemaVersion": 1, "traceEvents": []}')
    with pytest.raises(InputError, match="no file with a matching name"):
        discover(str(tmp_path))


@pytest.mark.parametrize("period_s", [1.0, 2.0, 3.0])
def test_watching_no_run_directory_ends_within_five_seconds(
    tmp_path: Path, period_s: float
) -> None:
    (tmp_path / "train.py").write_text("pass\n")
    slept: list[float] = []
    with pytest.raises(InputError, match="distprof hang"):
        list(follow(tmp_path, {}, period_s=period_s, sleep=slept.append))
    assert 0 < sum(slept) <= 5


def test_several_logs_and_standard_input_are_read(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = LOGS / "ranks-in-files"
    assert main(["hang", *map(str, sorted(folder.iterdir()))]) == 1
    assert capsys.readouterr().out.startswith("Stuck: rank 1 stands at all-reduce 41")
    data = (LOGS / "xid-79.log").read_bytes()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))
    assert main(["analyze", "-"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("A GPU failed: the driver reports Xid 79")
    assert "distprof analyze - --full" in shown  # the file of the text is deleted at the end
