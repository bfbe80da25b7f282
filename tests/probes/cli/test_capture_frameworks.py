"""``distprof capture`` on trainers of frameworks, and on ranks that torch itself spawns."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

from tests.probes.cli.runs import SCRIPTS, captured

pytestmark = pytest.mark.distributed


def _free_port() -> str:
    with socket.socket() as taken:
        taken.bind(("localhost", 0))
        return str(taken.getsockname()[1])


@pytest.mark.parametrize(
    ("package", "script", "updates"),
    [("lightning", "lightning_script.py", 12), ("transformers", "trainer_script.py", 12)],
)
def test_a_frameworks_updates_are_the_steps(
    tmp_path: Path, package: str, script: str, updates: int
) -> None:
    """2 epochs of 12 batches, two of them to an update."""
    pytest.importorskip(package, reason=f"extra {package} is not installed")
    program = [sys.executable, str(SCRIPTS / script)]
    run = captured(tmp_path / "run", "--no-report", "--no-measure-overhead", program=program)
    assert run.code == 0, run.err
    assert f"updates {updates}" in run.out
    assert len(run.lines(0)) == updates
    names = [name for name, _, _ in run.lines(0)[2]["phases"]]
    assert names.count("backward") == 2


def test_spawned_ranks_are_told_apart_by_their_group(tmp_path: Path) -> None:
    program = [sys.executable, str(SCRIPTS / "spawned.py"), _free_port()]
    run = captured(tmp_path / "run", "--no-report", "--no-measure-overhead", program=program)
    assert run.code == 0, run.err
    assert [entry.rank for entry in run.run.ranks] == [0, 1]
    for rank in (0, 1):
        assert len(run.lines(rank)) == 14
        assert run.read(rank, "rank.json")["ended_ns"] is not None


def test_the_spawned_rank_that_failed_is_blamed(tmp_path: Path) -> None:
    program = [sys.executable, str(SCRIPTS / "spawned.py"), _free_port(), "fail"]
    run = captured(tmp_path / "run", "--no-report", "--no-measure-overhead", program=program)
    assert run.code == 1
    assert run.run.outcome == "failed"
    assert run.run.failure is not None
    assert (run.run.failure.rank, run.run.failure.kind) == (1, "exception")
    assert run.read(1, "error.json")["message"] == "rank 1 has had enough"
