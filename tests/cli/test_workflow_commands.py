"""Under GitHub Actions, no name out of a trace becomes a workflow command."""

from __future__ import annotations

import json
import re

import pytest

from distprof.cli import main
from distprof.escape import inert
from tests.documents.samples import nasty

NAME = "::error file=a.py::pwned ##[add-mask]secret"
FORMATS = ("text", "brief", "md", "html", "json", "gitlab", "sarif", "junit")


def commands_in(text: str) -> list[str]:
    """What GitHub's runner takes for commands: ``ActionCommand.cs``, TryParseV2 and TryParse.

    Spaces before the colons are trimmed, and the older form may stand anywhere in a line.
    """
    return [
        line
        for line in re.split(r"\r\n|\r|\n", text)
        if re.match(r"\s*::.*?::", line) or re.search(r"##\[.*?\]", line)
    ]


@pytest.fixture
def saved(tmp_path):
    """A report whose names are commands."""
    file = tmp_path / "report.json"
    nasty().save(file)
    said = json.loads(file.read_text())
    said["kernels"]["kernels"][0]["name"] = NAME
    said["run"]["source"] = NAME
    for finding in said["findings"]:
        finding["message"] = f"One.\n{NAME}"
    file.write_text(json.dumps(said))
    return str(file)


def test_a_name_at_the_start_of_a_line_would_be_a_command(saved, capsys, monkeypatch):
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    assert main(["report", saved, "--full", "--all"]) == 0
    assert commands_in(capsys.readouterr().out)


@pytest.mark.parametrize("format_name", FORMATS)
def test_no_format_writes_a_command_to_a_stream(format_name, saved, capsys, monkeypatch):
    command = ["report", saved, "--format", format_name]
    command += ["--full", "--all"] if format_name == "text" else []
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    main(command)
    before = capsys.readouterr().out
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    main(command)
    after = capsys.readouterr().out
    assert "pwned" in after
    assert commands_in(after) == []
    if format_name in ("json", "gitlab", "sarif"):
        assert json.loads(after) == json.loads(before)


def test_annotations_stay_commands(saved, capsys, monkeypatch):
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    main(["report", saved, "--format", "github"])
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if not re.match(r"::(notice|warning|error) ", line)] == []


def test_a_file_holds_what_the_trace_says(saved, tmp_path, monkeypatch):
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    main(["report", saved, "--format", "json", "-o", str(tmp_path / "out.json")])
    assert "##[add-mask]" in (tmp_path / "out.json").read_text()


def test_errors_and_notes_are_no_commands(capsys, monkeypatch):
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    assert main(["report", f"a\n{NAME}"]) == 3
    shown = capsys.readouterr().err
    assert "pwned" in shown
    assert commands_in(shown) == []


@pytest.mark.parametrize(
    ("text", "form", "shown"),
    [
        ("  ::error::x", "text", "  : :error::x"),
        ("a ##[group]x", "text", "a # #[group]x"),
        ("a::b::c", "text", "a::b::c"),
        ('{"a": "##[x]"}', "json", '{"a": "#\\u0023[x]"}'),
        ("::x::y ##[z]", "junit", "&#58;:x::y #&#35;[z]"),
        ("::error::x ##[z]", "github", "::error::x ##[z]"),
    ],
)
def test_what_is_written_instead(text, form, shown, monkeypatch):
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    assert inert(text, form) == text
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    assert inert(text, form) == shown
