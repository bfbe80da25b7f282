"""A full disk and a read-only one, for everything that distprof writes."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from distprof.cli import main
from tests.small_disk import fill, needs_mounts, small_disk

pytestmark = needs_mounts

GOLDEN = Path(__file__).parent / "golden"
TRACE = str(GOLDEN / "kineto/ddp-a100-2gpu-rank0/nccl_data.json.gz")
WHY = {"full": "No space left on device", "read-only": "Read-only file system"}


@pytest.fixture(params=["full", "read-only"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A disk that takes nothing, and why."""
    kind: str = request.param
    with small_disk(tmp_path / "disk", "64k", read_only=kind == "read-only") as folder:
        if kind == "full":
            fill(folder)
        yield folder, WHY[kind]


def left(folder: Path) -> list[str]:
    """Files besides the one that fills the disk."""
    return sorted(
        path.name for path in folder.rglob("*") if path.is_file() and path.name != "large"
    )


def test_a_cache_on_it_costs_the_cache_only(
    disk: tuple[Path, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, why = disk
    out = tmp_path / "report.json"
    words = ["analyze", TRACE, "--cache-dir", str(folder / "cache"), "-o", str(out)]
    assert main(words) == 0
    report = json.loads(out.read_bytes())
    assert report["run"]["ranks"] == [0]
    said = json.dumps(report["capture"]) + capsys.readouterr().err
    assert "this run is not cached" in said
    assert why in said
    assert left(folder) == []


@pytest.mark.parametrize(
    "words",
    [("analyze", TRACE, "--no-cache"), ("plan", "--model", "llama2-7b", "--gpus", "8")],
    ids=lambda words: words[0],
)
def test_a_result_on_it_is_an_error_and_leaves_nothing(
    words: tuple[str, ...], disk: tuple[Path, str], capsys: pytest.CaptureFixture[str]
) -> None:
    folder, why = disk
    assert main([*words, "-o", str(folder / "result.json")]) in (2, 3)
    said = capsys.readouterr().err
    assert why in said or "cannot be written" in said
    assert str(folder) in said
    assert "unexpected" not in said
    assert left(folder) == []


def test_an_older_result_on_it_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with small_disk(tmp_path / "disk", "64k") as folder:
        (folder / "plan.json").write_text("old")
        fill(folder)
        words = ["plan", "--model", "llama2-7b", "--gpus", "8", "-o", str(folder / "plan.json")]
        assert main([*words, "--force"]) == 3
        assert (folder / "plan.json").read_text() == "old"
        assert left(folder) == ["plan.json"]
    assert WHY["full"] in capsys.readouterr().err


def test_a_history_on_it_keeps_what_it_has(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "report.json"
    assert main(["analyze", TRACE, "--no-cache", "-o", str(report)]) == 0
    with small_disk(tmp_path / "disk", "256k") as folder:
        history = ["--history", str(folder)]
        assert main(["history", "add", str(report), *history]) == 0
        before = left(folder)
        fill(folder)
        capsys.readouterr()
        assert main(["history", "add", TRACE, "--label", "other", *history]) == 3
        said = capsys.readouterr().err
        assert WHY["full"] in said
        assert "unexpected" not in said
        assert left(folder) == before
        assert main(["history", "show", *history]) == 0


def test_a_run_directory_on_it_is_refused_before_the_program_starts(
    disk: tuple[Path, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, _ = disk
    program = [sys.executable, "-c", f"open({str(tmp_path / 'started')!r}, 'w')"]
    assert main(["capture", "-o", str(folder / "run"), "--", *program]) == 2
    said = capsys.readouterr().err
    assert f"{folder / 'run'} cannot be written" in said
    assert "-o" in said
    assert not (tmp_path / "started").exists()
    assert left(folder) == []


def test_a_run_directory_that_became_read_only_is_analysed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with small_disk(tmp_path / "disk", "8m") as folder:
        (folder / "rank00000").mkdir()
        (folder / "run.json").write_text('{"schema": "distprof.run/1"}')
        shutil.copy(TRACE, folder / "rank00000/trace.json.gz")
        subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
        assert main(["analyze", str(folder)]) == 0
        assert left(folder) == ["run.json", "trace.json.gz"]
    said = capsys.readouterr()
    assert "The report was not saved: Read-only file system" in said.err
    assert said.out
