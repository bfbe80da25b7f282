"""Two processes that write to one place at the same time: a run directory, a cache, a history."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.processes import ended

LIMIT_S = 120
TRACES = Path(__file__).parent / "golden/kineto/dlrm-v100-8gpu"
NUM_RANKS = 4


def both(commands: Sequence[Sequence[str]]) -> list[subprocess.CompletedProcess[str]]:
    """Run distprof commands at the same time, to their ends."""
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "distprof", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for words in commands
    ]
    done = []
    for process in started:
        with ended(process):
            out, err = process.communicate(timeout=LIMIT_S)
        done.append(subprocess.CompletedProcess(process.args, process.returncode, out, err))
    return done


def test_two_captures_in_one_folder_are_one_capture(tmp_path: Path) -> None:
    """The program of the other one does not start."""
    program = f"import os; open(os.path.join({str(tmp_path)!r}, str(os.getpid())), 'w'); print('I')"
    words = ["capture", "-o", str(tmp_path / "run"), "--", sys.executable, "-c", program]
    first, second = sorted(both([words, words]), key=lambda done: done.returncode)
    assert (first.returncode, second.returncode) == (0, 2), first.stderr + second.stderr
    assert (first.stdout, second.stdout) == ("I\n", "")
    assert "-o" in second.stderr
    assert len([path for path in tmp_path.iterdir() if path.is_file()]) == 1
    run = json.loads((tmp_path / "run" / "run.json").read_bytes())
    assert run["outcome"] == "completed"
    assert not list((tmp_path / "run").glob(".*"))


def analyses(tmp_path: Path, *options: str) -> list[list[str]]:
    words = ["analyze", str(TRACES), "--cache-dir", str(tmp_path / "cache"), *options]
    return [[*words, "-o", str(tmp_path / f"{name}.json")] for name in "ab"]


def check_equal(tmp_path: Path, done: Sequence[subprocess.CompletedProcess[str]]) -> None:
    for each in done:
        assert each.returncode == 0, each.stderr
        assert "unexpected" not in each.stderr
    a, b = (json.loads((tmp_path / f"{name}.json").read_bytes()) for name in "ab")
    assert a == b
    assert len(a["run"]["ranks"]) == NUM_RANKS
    assert not list((tmp_path / "cache").rglob(".making-*"))
    assert len(list((tmp_path / "cache").rglob("*.tables"))) == NUM_RANKS


@pytest.mark.parametrize("executor", ["serial", "process:2"])
def test_two_analyses_that_fill_one_cache_agree(tmp_path: Path, executor: str) -> None:
    done = both(analyses(tmp_path, "--executor", executor))
    check_equal(tmp_path, done)


def test_two_analyses_that_repair_one_cache_agree(tmp_path: Path) -> None:
    """Every entry is damaged: each process makes it again and replaces it."""
    check_equal(tmp_path, both(analyses(tmp_path)))
    for entry in (tmp_path / "cache").rglob("*.tables"):
        entry.write_bytes(b"damaged")
    for name in "ab":
        (tmp_path / f"{name}.json").unlink()
    check_equal(tmp_path, both(analyses(tmp_path)))
