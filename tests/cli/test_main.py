"""Every way out of the program: exit codes, messages, clean stdout, quick start."""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import util
from pathlib import Path

import click
import pytest

import distprof
from distprof.cli import app as application
from distprof.cli.app import main
from distprof.cli.options import SectionName
from distprof.cli.output import has_color
from distprof.cli.simple import RuleCode
from distprof.errors import InputError, MissingExtraError
from docs.command_line import command_line_page
from tests.documents.samples import many_ranks, straggler

ROOT = Path(__file__).resolve().parent.parent.parent
HEAVY = {"numpy", "pandas", "pyarrow", "torch", "rich", "msgspec", "fsspec", "distprof_runs"}
VERBS = ["analyze", "report", "rule", "doctor"]


@pytest.fixture
def saved(tmp_path: Path) -> str:
    return str(straggler().save(tmp_path / "report.json"))


def test_help_lists_the_verbs_and_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(f"  {verb} " in out for verb in VERBS)
    assert "Exit codes" in out


def test_no_arguments_show_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert "Usage: distprof" in capsys.readouterr().out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"distprof {distprof.__version__}\n"


@pytest.mark.parametrize("arguments", [["--help"], ["analyze", "--help"], ["report", "--help"]])
def test_help_loads_nothing_heavy(arguments: list[str]) -> None:
    code = (
        "import sys; from distprof.cli import main; code = main(sys.argv[1:]);"
        "print(*sys.modules, file=sys.stderr); sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0
    assert HEAVY.isdisjoint(done.stderr.split())


def test_an_unknown_verb_suggests_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["anlyze", "x"]) == 2
    assert "did you mean analyze?" in capsys.readouterr().err


def test_a_mistyped_verb_of_another_package_gets_a_hint(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["captrue"]) == 2
    assert "did you mean capture?" in capsys.readouterr().err


def test_a_verb_without_its_package_is_not_listed_and_says_how_to_install_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = util.find_spec
    monkeypatch.setattr(
        util, "find_spec", lambda name: None if name == "distprof_probes" else found(name)
    )
    assert main(["capture", "--", "python"]) == 2
    said = capsys.readouterr().err
    assert "package distprof_probes is not installed (pip install distprof)" in said
    assert main(["--help"]) == 0
    listed = capsys.readouterr().out
    assert "  run " in listed
    assert "  capture " not in listed


def test_a_trace_given_as_verb_is_pointed_to_analyze(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["traces/"]) == 2
    assert "distprof analyze traces/" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["report"],
        ["report", "x", "--format", "pdf"],
        ["report", "x", "--width", "5"],
        ["analyze", "x", "--ranks", "3-1"],
        ["analyze", "x", "--ranks", "a"],
        ["analyze", "x", "--ranks", "0-99999999999"],
        ["analyze", "x", "--fail-on", "fatal"],
        ["analyze", "x", "--nonsense"],
        ["rule", "COM101", "--all"],
        ["rule", "XYZ999"],
        ["run", "ddp", "--ranks", "1000000000"],
        ["bench", "--rounds", "1000000000"],
        ["bench", "--max-bytes", "2048G"],
    ],
)
def test_wrong_usage_is_2_with_a_sentence(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("Error: ")


def options_with_a_fraction() -> list[tuple[str, click.Option]]:
    """Of all verbs and their subcommands, with the name of the verb."""
    context, found = click.Context(application.app), []
    waiting: list[click.Command] = [application.app]
    while waiting:
        command = waiting.pop()
        if isinstance(command, click.Group):
            below = (command.get_command(context, name) for name in command.list_commands(context))
            waiting += [each for each in below if each is not None]
        found += [
            (f"{command.name} {option.opts[0]}", option)
            for option in command.params
            if isinstance(option, click.Option) and option.type.name.startswith("float")
        ]
    return found


@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "1e999"])
def test_no_option_takes_a_number_that_nothing_can_be_computed_with(text: str) -> None:
    options = options_with_a_fraction()
    assert len(options) > 10
    for name, option in options:
        with pytest.raises(click.BadParameter):
            pytest.fail(f"{name}: {option.type.convert(text, option, None)}")


def test_a_report_that_cannot_be_read_is_3(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text("{")
    assert main(["report", str(bad)]) == 3
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "expected:" in captured.err
    assert "found: damaged" in captured.err


def test_a_saved_report_is_shown(saved: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", saved]) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("Rank 2 holds the others up")
    assert captured.err == ""


@pytest.mark.parametrize(
    ("fail_on", "code"), [("error", 1), ("warning", 1), ("info", 1), (None, 0)]
)
def test_findings_fail_the_call_only_when_asked(saved: str, fail_on: str | None, code: int) -> None:
    assert main(["report", saved, *(["--fail-on", fail_on] if fail_on else [])]) == code


def test_findings_below_the_threshold_do_not_fail(tmp_path: Path) -> None:
    report = straggler()
    mild = report.__class__(
        **{
            **{name: getattr(report, name) for name in report.__struct_fields__},
            "findings": report.findings[1:],  # a warning and an info
        }
    )
    file = str(mild.save(tmp_path / "mild.json"))
    assert main(["report", file, "--fail-on", "error"]) == 0
    assert main(["report", file, "--fail-on", "warning"]) == 1


def test_output_goes_to_a_file_in_the_format_of_its_ending(
    saved: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.md"
    assert main(["report", saved, "-o", str(out)]) == 0
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == f"Wrote {out}\n"
    assert out.read_text(encoding="utf-8").startswith("### Rank 2 holds the others up")


def test_a_dash_is_stdout(saved: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", saved, "-o", "-"]) == 0
    assert capsys.readouterr().out.startswith("Rank 2 holds the others up")


def test_an_existing_file_is_safe_without_force(
    saved: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.txt"
    out.write_text("precious")
    assert main(["report", saved, "-o", str(out)]) == 2
    assert "--force" in capsys.readouterr().err
    assert out.read_text() == "precious"
    assert main(["report", saved, "-o", str(out), "--force", "--quiet"]) == 0
    assert out.read_text(encoding="utf-8").startswith("Rank 2 holds the others up")
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("where", ["absent/out.txt", "."])
def test_a_place_that_cannot_take_a_file_is_refused_before_the_work(
    saved: str, tmp_path: Path, where: str
) -> None:
    assert main(["report", saved, "-o", str(tmp_path / where)]) == 2


def test_width_and_all_reach_the_reporter(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(many_ranks().save(tmp_path / "report.json"))
    assert main(["report", file, "--all", "--width", "70"]) == 0
    out = capsys.readouterr().out
    assert out.count("fix:") == 8
    assert max(map(len, out.splitlines())) <= 70


def test_no_colour_in_a_pipe(saved: str) -> None:
    done = run_program("report", saved)
    assert done.returncode == 0
    assert "\x1b" not in done.stdout


def test_a_terminal_that_knows_no_unicode_gets_text_nevertheless(saved: str) -> None:
    done = run_program("report", saved, PYTHONIOENCODING="ascii")
    assert done.returncode == 0
    assert "Rank 2 holds the others up" in done.stdout
    assert re.search(r"^  #+=+~+", done.stdout, re.MULTILINE)
    assert "?" not in done.stdout


def test_a_full_disk_behind_stdout_is_3_and_a_sentence(saved: str) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    command = f'"{sys.executable}" -m distprof report "{saved}" > /dev/full'
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, cwd=ROOT, timeout=60
    )
    assert done.returncode == 3
    assert done.stderr.startswith("Error: stdout:")
    assert "unexpected error in distprof" not in done.stderr


def test_a_closed_pipe_is_a_quiet_end(saved: str) -> None:
    command = f'"{sys.executable}" -m distprof report "{saved}" --all; echo "code $?" >&2'
    done = subprocess.run(
        ["bash", "-c", f"({command}) | true"], capture_output=True, text=True, cwd=ROOT, timeout=60
    )
    assert done.stderr == "code 0\n"


def test_an_interruption_is_130_and_one_line(
    monkeypatch: pytest.MonkeyPatch, saved: str, capsys: pytest.CaptureFixture[str]
) -> None:
    raising(monkeypatch, KeyboardInterrupt())
    assert main(["report", saved]) == 130
    assert capsys.readouterr().err.strip() == "Interrupted."


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ((), "Interrupted."),
        (("--cache-dir", "kept"), "Interrupted. Traces that were parsed stay in the cache."),
        (("--no-cache",), "Interrupted."),
    ],
)
def test_an_interrupted_analysis_says_what_stays(
    more: tuple[str, ...],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("distprof.ingest.open.map_each", interrupted)
    monkeypatch.chdir(tmp_path)
    assert main(["analyze", str(ROOT / "tests/golden/kineto/gloo-ddp-2ranks"), *more]) == 130
    assert capsys.readouterr().err.strip() == said


def test_a_batch_system_that_ends_the_job_gets_143_and_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def end(path: str) -> None:
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr("distprof.documents.saved.load_report", end)
    before = signal.getsignal(signal.SIGTERM)
    assert main(["report", "report.json"]) == 143
    assert capsys.readouterr().err == "Terminated.\n"
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_termination_while_its_handler_is_restored_is_one(monkeypatch, capsys):
    restored = signal.signal

    def ended_meanwhile(number, handler):
        if number == signal.SIGTERM and handler == signal.SIG_DFL:
            signal.raise_signal(signal.SIGTERM)
        return restored(number, handler)

    monkeypatch.setattr(signal, "signal", ended_meanwhile)
    before = signal.getsignal(signal.SIGTERM)
    try:
        assert main(["--version"]) == 143
    finally:
        restored(signal.SIGTERM, before)
    assert "Terminated." in capsys.readouterr().err


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_during_a_destructor_ends_the_command_too(number, code, monkeypatch, capsys):
    """Python ignores exceptions there, also those that a signal's handler raises."""

    class Released:
        def __del__(self) -> None:
            signal.raise_signal(number)

    def slow(path: str) -> None:
        Released()
        time.sleep(5)

    monkeypatch.setattr("distprof.documents.saved.load_report", slow)
    assert main(["report", "report.json"]) == code
    assert capsys.readouterr().err.strip() in ("Terminated.", "Interrupted.")


def test_an_unexpected_error_is_3_and_one_sentence(
    monkeypatch: pytest.MonkeyPatch, saved: str, capsys: pytest.CaptureFixture[str]
) -> None:
    raising(monkeypatch, ZeroDivisionError("\x1b[31mno"))
    assert main(["report", saved]) == 3
    assert capsys.readouterr().err == (
        "Error: unexpected error in distprof (ZeroDivisionError: \\x1b[31mno). "
        "Run again with --debug to see the traceback.\n"
    )


def test_debug_shows_where(
    monkeypatch: pytest.MonkeyPatch, saved: str, capsys: pytest.CaptureFixture[str]
) -> None:
    raising(monkeypatch, ZeroDivisionError("no"))
    assert main(["report", saved, "--debug"]) == 3
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InputError("a\x1bb.json", expected="x", found="y"), 3),
        (MissingExtraError("dask executors", "dask"), 2),
        (MemoryError(), 3),
        (RecursionError("deep"), 3),
    ],
)
def test_errors_become_their_exit_codes_and_stay_printable(
    monkeypatch: pytest.MonkeyPatch,
    saved: str,
    capsys: pytest.CaptureFixture[str],
    error: Exception,
    code: int,
) -> None:
    raising(monkeypatch, error)
    assert main(["report", saved]) == code
    assert "\x1b" not in capsys.readouterr().err


def test_the_reference_page_is_the_generated_one(golden: Callable[[Path, str], None]) -> None:
    golden(ROOT / "docs" / "reference" / "command-line.md", command_line_page())


@pytest.mark.parametrize("verb", VERBS)
def test_the_reference_page_shows_every_verb(verb: str) -> None:
    assert f"Usage: distprof {verb}" in command_line_page()


def raising(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def fail(path: str) -> None:
        raise error

    monkeypatch.setattr("distprof.documents.saved.load_report", fail)


def run_program(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "distprof", *arguments],
        capture_output=True,
        text=True,
        encoding="utf-8",
        env={**os.environ, **environment},
        timeout=60,
        check=False,
    )


def test_help_groups_the_verbs_by_what_they_are_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    titles = ["Start:", "Record:", "Diagnose:", "Compare and gate:", "Plan:"]
    assert [line for line in shown.splitlines() if line in titles] == titles
    assert "Other:" not in shown


def test_a_file_whose_ending_names_no_format_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["analyze", "traces", "-o", str(tmp_path / "report.pdf")]) == 2
    assert "no format has the extension .pdf" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("variables", "is_terminal", "colored"),
    [
        ({}, True, True),
        ({}, False, False),
        ({"FORCE_COLOR": "1"}, False, True),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, True, False),
        ({"TERM": "dumb"}, True, False),
    ],
)
def test_colour_follows_the_terminal_unless_told(
    variables: dict[str, str], is_terminal: bool, colored: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TERM", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: is_terminal)
    assert has_color(stream) is colored


def test_the_shell_completes_sections_and_rules() -> None:
    context = click.Context(click.Command("analyze"))
    option = click.Option(["--section"])
    sections = SectionName().shell_complete(context, option, "st")
    assert [item.value for item in sections] == ["step_log", "stragglers"]
    assert "COM101" in [i.value for i in RuleCode().shell_complete(context, option, "com1")]


def test_a_page_for_the_browser_is_named_by_its_ending(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "report.html"
    assert (
        main(
            [
                "analyze",
                str(ROOT / "tests" / "golden" / "kineto" / "dlrm-v100-8gpu"),
                "-o",
                str(page),
                "--no-cache",
                "-q",
            ]
        )
        == 0
    )
    text = page.read_text(encoding="utf-8")
    assert text.startswith("<!doctype html>")
    assert (
        main(
            [
                "analyze",
                str(ROOT / "tests" / "golden" / "kineto" / "dlrm-v100-8gpu"),
                "--format",
                "html",
                "--no-cache",
                "-q",
            ]
        )
        == 0
    )
    assert capsys.readouterr().out == text
