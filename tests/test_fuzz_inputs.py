"""Hundreds of broken inputs through the real command line: a result or a sentence, never more.

A case is named after what is wrong with it; see :mod:`tests.broken_inputs` for the builders. A
traceback, an exit code outside the contract, a control character on the terminal, a refusal that
does not say what was found, or memory without bound: each fails the case.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from distprof.cli import main
from tests.broken_inputs import CASES, HEAVY, Case, Outcome, intact
from tests.drawn import some

SENTENCE = ("expected: ", "found: ")
UNEXPECTED = "unexpected error in distprof"  # what the command line says of a bug of ours
POLITE = "please report this"  # what it says of one in the reader of a rank
MOVES = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""Control characters but the line end, and what changes the direction of text."""
DAMAGE = ("num_repaired", "num_quarantined", "num_clamped")
MAX_BYTES = 700 * 2**20
ADDRESS_SPACE = 6 * 2**30  # shared libraries and arenas are reserved far beyond what is touched

LIMITED = f"""
import resource, sys
from pathlib import Path
resource.setrlimit(resource.RLIMIT_AS, ({ADDRESS_SPACE},) * 2)
from distprof.cli import main
code = main(sys.argv[1:])
status = Path("/proc/self/status")
if status.exists():  # of this program alone: Linux hands ru_maxrss on from whoever started it
    (peak,) = [line.split()[1] for line in status.read_text().splitlines() if "VmHWM" in line]
else:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(f"\\npeak {{peak}}", file=sys.stderr)
sys.exit(code)
"""
"""The command line with little address space, which says its peak memory in KiB at the end."""

EXIT_CODES = {Outcome.REFUSED: {3}, Outcome.SALVAGED: {0, 3}, Outcome.EITHER: {0, 3}}


def _no_such_number(word: str) -> None:
    raise ValueError(f"{word} is not JSON")


@dataclass(frozen=True)
class Answer:
    """What the command line said and returned."""

    code: int
    out: str
    err: str

    @property
    def report(self) -> dict[str, Any]:
        loaded: dict[str, Any] = json.loads(self.out, parse_constant=_no_such_number)
        return loaded


def arguments(path: Path, cache_dir: Path, *more: str) -> list[str]:
    common = ["--executor", "serial", "--cache-dir", str(cache_dir), "--debug"]
    return ["analyze", os.fspath(path), *common, *more]


def analyze(path: Path, cache_dir: Path, capfd: pytest.CaptureFixture[str], *more: str) -> Answer:
    capfd.readouterr()
    code = main(arguments(path, cache_dir, *more))
    captured = capfd.readouterr()
    return Answer(code, captured.out, captured.err)


def check(case: Case, answer: Answer) -> None:
    """What must hold of every answer, and what the case's outcome adds."""
    assert "Traceback" not in answer.err
    assert UNEXPECTED not in answer.err
    assert POLITE not in answer.err
    assert is_plain(answer.out)
    assert is_plain(answer.err)
    allowed = EXIT_CODES.get(case.outcome, {0})
    assert answer.code in allowed, answer.err
    if answer.code == 3:
        assert answer.out == ""
        # Or a sentence on a text that is known, and holds nothing to analyse.
        assert all(words in answer.err for words in SENTENCE) or "\n  try: " in answer.err
        return
    assert_sums(answer.report)
    if case.outcome in (Outcome.TOLD, Outcome.SALVAGED):
        capture = answer.report["capture"]
        assert capture["gaps"] or any(capture[name] for name in DAMAGE)
    if case.outcome is Outcome.FINE:
        assert measured(answer.report) == measured(intact_report())


def assert_sums(report: dict[str, Any]) -> None:
    """The parts of a time are never negative and add up to it exactly, whatever was read."""
    parts = ("computation_ns", "exposed_comm_ns", "exposed_copy_ns", "idle_ns")
    rows = report["breakdown"]["ranks"] + report["breakdown"]["steps"]
    for row in rows:
        assert all(row[part] >= 0 for part in parts)
        assert sum(row[part] for part in parts) == row["span_ns"]
    for row in report["overlap"]["ranks"]:
        assert row["overlapped_ns"] + row["exposed_comm_ns"] == row["communication_ns"]


def is_plain(text: str) -> bool:
    """Whether nothing but line ends could move a cursor, change a terminal or turn text around."""
    return MOVES.search(text) is None


def measured(report: dict[str, Any]) -> Any:
    return report["breakdown"], report["overlap"], report["waterfall"]


@cache
def intact_report() -> dict[str, Any]:
    """The report of the intact trace, from a process of its own."""
    import tempfile

    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "trace.json"
        path.write_text(json.dumps(intact()))
        answer = in_a_process(path, Path(name) / "cache", "--format", "json")[0]
    assert answer.code == 0, answer.err
    return answer.report


def in_a_process(path: Path, cache_dir: Path, *more: str) -> tuple[Answer, int]:
    """The answer of a process with limits, and its peak memory in bytes."""
    finished = subprocess.run(
        [sys.executable, "-c", LIMITED, *arguments(path, cache_dir, *more)],
        capture_output=True,
        text=True,
        errors="backslashreplace",
        timeout=60,
        check=False,
    )
    err, _, peak = finished.stderr.rpartition("\npeak ")
    assert peak, finished.stderr
    return Answer(finished.returncode, finished.stdout, err), int(peak) * 1024


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_broken_input_ends_in_a_result_or_a_sentence(
    case: Case, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "input"
    folder.mkdir()
    path = case.build(folder)
    check(case, analyze(path, tmp_path / "cache", capfd, "--format", "json"))


NAMED = [case for case in CASES if case.name.startswith(("name is", "a file name"))]


@pytest.mark.parametrize("format_name", ["text", "md"])
@pytest.mark.parametrize("case", NAMED, ids=[case.name for case in NAMED])
def test_no_reporter_passes_a_hostile_name_on(
    case: Case, format_name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "input"
    folder.mkdir()
    path = case.build(folder)
    answer = analyze(path, tmp_path / "cache", capfd, "--format", format_name)
    assert answer.code in {0, 3}
    assert "Traceback" not in answer.err
    assert UNEXPECTED not in answer.err
    assert is_plain(answer.out)
    assert is_plain(answer.err)
    if format_name == "md":
        assert "<script>" not in answer.out


# Of each kind of weight (bytes, nesting, numbers, members, files that never end) the others stay.
HEAVIEST = {
    "a million process groups",
    "three hundred thousand names",
    *(f"a gz bomb of {what}" for what in ("white space between events", "open brackets", "spaces")),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    some(HEAVY, always=lambda case: case.name not in HEAVIEST),
    ids=[case.name for case in HEAVY],
)
def test_heavy_input_ends_in_bounded_memory(case: Case, tmp_path: Path) -> None:
    folder = tmp_path / "input"
    folder.mkdir()
    path = case.build(folder)
    answer, peak_bytes = in_a_process(path, tmp_path / "cache", "--format", "json")
    check(case, answer)
    assert peak_bytes < MAX_BYTES


def test_damage_is_refused_when_strict(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """GIVEN one event with an unescaped quote WHEN strict THEN it is an error, not a repair."""
    path = tmp_path / "trace.json"
    path.write_bytes(json.dumps(intact()).encode().replace(b'"relu"', b'"re"lu"', 1))
    assert analyze(path, tmp_path / "cache", capfd, "--format", "json").code == 0
    strict = analyze(path, tmp_path / "cache", capfd, "--format", "json", "--strict")
    assert strict.code == 3
    assert "byte" in strict.err


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_a_file_without_read_permission_is_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(intact()))
    path.chmod(0)
    answer = analyze(path, tmp_path / "cache", capfd)
    assert answer.code == 3
    assert "trace.json" in answer.err


def test_an_intact_trace_is_analysed_without_a_word_of_damage() -> None:
    """The base of all cases is sound: else each of them would fail for another reason."""
    capture = intact_report()["capture"]
    assert [capture[name] for name in DAMAGE] == [0, 0, 0]
    assert capture["gaps"] == []
    assert intact_report()["run"]["num_steps"] == 2
