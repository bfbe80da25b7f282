"""Names that no system can look for: each verb says so in a sentence."""

import pytest

from distprof.cli import main

LONG = "x" * 5_000
NAMES = [LONG, f"{LONG}/{LONG}", f"{LONG}*.json", "~no-such-user/trace.json", "~[", "\udc80.json"]
COMMANDS = [
    ("analyze", "{}"),
    ("analyze", "{}", "--no-cache", "--executor", "serial"),
    ("analyze", "{here}", "--with", "{}"),
    ("analyze", "{here}", "--fabric", "{}"),
    ("analyze", "{here}", "--config", "{}"),
    ("analyze", "{here}", "--cache-dir", "{}"),
    ("analyze", "{here}", "--save-report", "{}"),
    ("analyze", "{here}", "-o", "{}"),
    ("hang", "{}"),
    ("fabric", "{}"),
    ("report", "{}"),
    ("compare", "{}", "{}"),
    ("scale", "--from", "{}"),
    ("scale", "--sweep", "{}"),
    ("check", "{}", "--against", "{}"),
    ("check", "{here}", "--baseline", "{}"),
    ("check", "{here}", "--baseline", "{}", "--update-baseline"),
    ("history", "show", "--history", "{}"),
    ("history", "add", "{}"),
    ("plan", "--lint", "{}", "--model", "llama3-8b", "--gpus", "8"),
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("name", NAMES, ids=lambda name: ascii(name)[:20])
def test_a_name_that_cannot_be_is_refused_in_a_sentence(
    command, name, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here.json").write_text('{"schemaVersion": 1, "traceEvents": []}')
    words = [word.replace("{here}", "here.json").replace("{}", name) for word in command]
    assert main(words) in (0, 2, 3)
    assert "unexpected error" not in capsys.readouterr().err


@pytest.mark.parametrize("ranks", ["9" * 5_000, f"0-{'9' * 5_000}", "²", "1-²", "10000001"])
def test_ranks_that_no_job_has_are_refused_in_a_sentence(ranks, capsys):
    assert main(["analyze", "here.json", "--ranks", ranks]) == 2
    assert "is neither a rank nor a range such as 0-3" in capsys.readouterr().err
