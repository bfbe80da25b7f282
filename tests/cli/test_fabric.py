"""``fabric``: formats, widths, and a profile made of nccl-tests' output that reads back."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from distprof.cli.app import main
from distprof.ingest.fabric import read_fabric

GOLDEN = Path(__file__).parents[1] / "golden" / "nccl-tests"
ALL_REDUCE = str(GOLDEN / "superbench-a100-40gb-8gpu-allreduce.log")


def test_the_first_line_says_how_fast_and_from_which_size(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["fabric", ALL_REDUCE, "--width", "120"]) == 0
    first = capsys.readouterr().out.splitlines()[0]
    assert first == (
        "all_reduce over 8 ranks in one node reaches 235 GB/s bus bandwidth at 8.59 GB, as usual "
        "for healthy links that carry"
    )


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("path", sorted(GOLDEN.iterdir()), ids=lambda path: path.stem)
@pytest.mark.parametrize("more", [[], ["--all"]], ids=["short", "all"])
def test_text_fits_the_terminal(
    path: Path, width: int, more: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fabric", str(path), "--width", str(width), *more]) == 0
    text = capsys.readouterr().out
    assert max(len(line) for line in text.splitlines()) <= width
    assert "busbw" in text or "Bus bandwidth" in text


def test_a_dash_is_standard_input_which_is_no_file_to_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data = Path(ALL_REDUCE).read_bytes()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))
    assert main(["fabric", "-", "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["source"] == ""
    assert len(found["curves"]) == len(read_fabric(ALL_REDUCE).curves)


def test_json_is_a_profile_that_reads_back(tmp_path: Path) -> None:
    file = tmp_path / "fabric.json"
    assert main(["fabric", ALL_REDUCE, "-o", str(file), "-q"]) == 0
    assert json.loads(file.read_text())["schema"] == "distprof.fabric/1"
    assert read_fabric(str(file)).curves == read_fabric(ALL_REDUCE).curves
    assert main(["fabric", str(file), "-o", str(tmp_path / "fabric.md"), "-q"]) == 0
    assert "| all\\_reduce | 8 ranks in one node |" in (tmp_path / "fabric.md").read_text()


def test_nothing_hostile_reaches_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = Path(ALL_REDUCE).read_text().replace("A100-SXM4-40GB", "A100 \x1b[31m[red]x")
    (tmp_path / "all_reduce.log").write_text(text)
    assert main(["fabric", str(tmp_path / "all_reduce.log")]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "[red]x" in out


def test_what_is_no_profile_is_bad_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x").write_text("hello")
    assert main(["fabric", str(tmp_path / "x")]) == 3
    assert "no row of an nccl-tests table" in capsys.readouterr().err
