"""``distprof compare``, as its user calls it."""

import json
from pathlib import Path

import msgspec
import pytest

import distprof
from distprof.cli.app import main

GOLDEN = Path(__file__).parents[1] / "golden"
FSDP, PP = str(GOLDEN / "job" / "gloo-hsdp-4ranks"), str(GOLDEN / "job" / "gloo-pp-4ranks")


def test_the_first_line_says_which_is_slower(capsys):
    assert main(["compare", FSDP, PP]) == 0
    out = capsys.readouterr().out
    assert out.startswith("Not like for like: mesh ")
    assert "The second run is " in " ".join(out.partition("first:")[0].split())
    assert "Not like for like: mesh" in out
    assert "Where the difference is" in out


def test_a_saved_report_is_as_good_as_its_traces(capsys, tmp_path):
    saved = distprof.analyze(FSDP).save(tmp_path / "report.json")
    assert main(["compare", str(saved), FSDP, "--format", "json"]) == 0
    comparison = json.loads(capsys.readouterr().out)
    assert comparison["schema"] == "distprof.comparison/1"
    assert comparison["step"]["change_ns"] == 0
    assert comparison["first"]["source"] == str(saved)


@pytest.mark.parametrize("width", ["60", "80", "120"])
def test_no_line_is_wider_than_asked(capsys, width):
    assert main(["compare", FSDP, PP, "--width", width]) == 0
    assert max(len(line) for line in capsys.readouterr().out.splitlines()) <= int(width)


def test_markdown_goes_into_a_file(tmp_path):
    out = tmp_path / "comparison.md"
    assert main(["compare", FSDP, PP, "-o", str(out), "-q"]) == 0
    assert out.read_text().startswith("### Not like for like: mesh ")


def test_names_that_a_terminal_would_obey_are_harmless(capsys, tmp_path):
    report = distprof.analyze(FSDP)
    kernels = [
        msgspec.structs.replace(row, name=f"\x1b[31m<b>|{i}")
        for i, row in enumerate(report.kernels.kernels)
    ]
    changed = msgspec.structs.replace(
        report, kernels=msgspec.structs.replace(report.kernels, kernels=tuple(kernels))
    )
    path = str(changed.save(tmp_path / "report.json"))
    for name in ("text", "md"):
        assert main(["compare", FSDP, path, "--format", name]) == 0
        out = capsys.readouterr().out
        assert "\x1b" not in out
        assert name == "text" or "<b>" not in out


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        ([FSDP], 2, "SECOND"),
        ([FSDP, "nowhere"], 3, "no file or folder with that name"),
        ([FSDP, PP, "--format", "xml"], 2, "xml"),
    ],
)
def test_what_is_wrong_is_said(capsys, arguments, code, says):
    assert main(["compare", *arguments]) == code
    assert says in capsys.readouterr().err


def test_a_truncated_report_is_named(capsys, tmp_path):
    saved = distprof.analyze(FSDP).save(tmp_path / "report.json")
    saved.write_bytes(saved.read_bytes()[:5_000])
    assert main(["compare", str(saved), FSDP]) == 3
    assert "report.json" in capsys.readouterr().err
