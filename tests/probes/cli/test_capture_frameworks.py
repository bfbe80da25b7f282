"""``distprof capture`` on trainers of frameworks, spawned ranks, and one launcher per node."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.probes.cli.runs import (
    SCRIPTS,
    Captured,
    capture_command,
    captured,
    environment,
)
from tests.warm import LIMIT_S, Starter, WarmPython

pytestmark = pytest.mark.distributed


def _free_port() -> str:
    with socket.socket() as taken:
        taken.bind(("localhost", 0))
        return str(taken.getsockname()[1])


@pytest.mark.parametrize(
    ("package", "script", "updates"),
    [
        pytest.param("lightning", "lightning_script.py", 12, marks=pytest.mark.nightly),
        ("transformers", "trainer_script.py", 12),
    ],
)
def test_a_frameworks_updates_are_the_steps(
    tmp_path: Path, package: str, script: str, updates: int, started_warm: Starter
) -> None:
    """2 epochs of 12 batches, two of them to an update."""
    pytest.importorskip(package, reason=f"extra {package} is not installed")
    program = [sys.executable, str(SCRIPTS / script)]
    options = ("--no-report", "--no-measure-overhead")
    run = captured(tmp_path / "run", *options, program=program, start=started_warm)
    assert run.code == 0, run.err
    assert f"updates {updates}" in run.out
    assert len(run.lines(0)) == updates
    names = [name for name, _, _ in run.lines(0)[2]["phases"]]
    assert names.count("backward") == 2


@pytest.mark.parametrize("is_warm", [True, pytest.param(False, marks=pytest.mark.nightly)])
def test_spawned_ranks_are_told_apart_by_their_group(
    tmp_path: Path, started_warm: Starter, is_warm: bool
) -> None:
    program = [sys.executable, str(SCRIPTS / "spawned.py"), _free_port()]
    options = ("--no-report", "--no-measure-overhead")
    how = {"start": started_warm} if is_warm else {}
    run = captured(tmp_path / "run", *options, program=program, **how)
    assert run.code == 0, run.err
    assert [entry.rank for entry in run.run.ranks] == [0, 1]
    for rank in (0, 1):
        assert len(run.lines(rank)) == 14
        assert run.read(rank, "rank.json")["ended_ns"] is not None


def test_the_spawned_rank_that_failed_is_blamed(tmp_path: Path, started_warm: Starter) -> None:
    program = [sys.executable, str(SCRIPTS / "spawned.py"), _free_port(), "fail"]
    options = ("--no-report", "--no-measure-overhead")
    run = captured(tmp_path / "run", *options, program=program, start=started_warm)
    assert run.code == 1
    assert run.run.outcome == "failed"
    assert run.run.failure is not None
    assert (run.run.failure.rank, run.run.failure.kind) == (1, "exception")
    assert run.read(1, "error.json")["message"] == "rank 1 has had enough"


def test_captures_on_two_nodes_share_a_folder(tmp_path: Path, warm_python: WarmPython) -> None:
    """Both nodes are this host; the first one's capture describes the run and concludes it."""
    port, folder = _free_port(), tmp_path / "run"

    def node(*number: str) -> subprocess.Popen[str]:
        program = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2"]
        program += [*number, "--nproc-per-node", "1"]
        program += ["--master-addr", "localhost", "--master-port", port]
        program += [str(SCRIPTS / "plain_loop.py"), "--times", str(tmp_path / "times")]
        options = ["--no-measure-overhead", "--no-nvml"]
        return warm_python.popen(
            capture_command(folder, *options, program=program),
            env={**environment(), "PET_NODE_RANK": "1"},  # as Kubernetes sets it; options win
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    with node() as second, node("--node-rank", "0") as first:
        shown, said = first.communicate(timeout=LIMIT_S)
        silent, _ = second.communicate(timeout=LIMIT_S)
    assert (first.returncode, second.returncode) == (0, 0), said
    assert "Findings" in shown
    assert "Findings" not in silent
    run = Captured(folder=folder, code=0, out=shown, err=said)
    assert run.run.outcome == "completed"
    assert [(entry.rank, entry.node) for entry in run.run.ranks] == [(0, 0), (1, 1)]
    assert [len(run.lines(rank)) for rank in (0, 1)] == [16, 16]
