"""``distprof attach --all-nodes`` on two nodes that share nothing but the run directory.

Each node is a network namespace with a host name of its own, and a folder for temporary files of
its own, so that neither the other node nor the test can reach the sockets of its ranks.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from distprof_runs.launching.emulated_nodes import EmulatedNodes, Link, why_not

from tests.probes.cli.runs import SCRIPTS, capture_command, environment, started_cold
from tests.processes import ended
from tests.warm import LIMIT_S, Starter, WarmPython

REASON = why_not()
pytestmark = [
    pytest.mark.distributed,
    pytest.mark.skipif(bool(REASON), reason=f"nodes cannot be emulated here: {REASON}"),
]

_PRIVATE = 'mount -t tmpfs tmpfs "$0" && exec "$@"'
"""``ip netns exec`` has made a mount namespace: what is mounted in it is seen nowhere else."""


def wait_for(condition: str, holds: Callable[[], bool]) -> None:
    limit_s = time.monotonic() + LIMIT_S / 2
    while not holds():
        assert time.monotonic() < limit_s, f"never: {condition}"
        time.sleep(0.1)


def steps_of(folder: Path, rank: int) -> int:
    file = folder / f"rank{rank:05d}" / "steps.jsonl"
    return len(file.read_text().splitlines()) - 1 if file.exists() else 0


class Job:
    """Two nodes with two ranks each; rank 1 hangs once ``hang`` exists."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.hang = folder / "run", folder / "hang"

    def commands(self, nodes: EmulatedNodes, private: Path) -> Iterator[list[str]]:
        launch = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2"]
        meet = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"{nodes.address(0)}:29500"]
        script = [str(SCRIPTS / "hangs.py"), "20", str(self.hang)]
        for node in (0, 1):
            place = ["--nproc-per-node", "2", "--node-rank", str(node), "--rdzv-id", "attach"]
            program = [*launch, *place, *meet, *script]
            options = ["--no-report", "--start-step", "1000000"]
            command = capture_command(self.folder, *options, program=program)
            yield nodes.command(node, ["sh", "-c", _PRIVATE, str(private), *command])

    def told(self, rank: int) -> dict[str, Any]:
        text = (self.folder / f"rank{rank:05d}" / "attach.json").read_text()
        found: dict[str, Any] = json.loads(text)
        return found

    def send(self, number: signal.Signals, *ranks: int) -> None:
        for rank in ranks:
            os.kill(self.told(rank)["pid"], number)

    def steps(self) -> int:
        return min(steps_of(self.folder, rank) for rank in range(4))

    def stands_still(self) -> bool:
        before = self.steps()
        time.sleep(1.0)
        return self.steps() == before

    def requests(self) -> list[str]:
        return sorted(each.name for each in (self.folder / "requests").iterdir())


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory, warm_python: WarmPython) -> Iterator[Job]:
    job = Job(tmp_path_factory.mktemp("all-nodes"))
    with ExitStack() as opened:
        private = Path(opened.enter_context(tempfile.TemporaryDirectory(dir="/tmp")))
        nodes = opened.enter_context(EmulatedNodes(2, Link()))
        told = {**environment(), **nodes.environment, "XDG_RUNTIME_DIR": str(private)}
        for command in job.commands(nodes, private):
            process = warm_python.popen(command, env=told, stdout=subprocess.DEVNULL)
            opened.enter_context(ended(process))
        wait_for("20 steps", lambda: job.steps() >= 20)
        try:
            yield job
        finally:
            job.send(signal.SIGKILL, 0, 1, 2, 3)


def attach(
    job: Job, *options: str, start: Starter = started_cold
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "distprof", "attach", str(job.folder), *options]
    return start(command, environment())


def test_a_running_a_hung_and_a_stopped_job_on_two_nodes(job: Job, started_warm: Starter) -> None:
    """One job, several states: starting it takes longest."""
    _no_socket_can_be_reached_from_here(job, started_warm)
    _all_ranks_say_where_they_are(job, started_warm)
    _one_trace_of_all_ranks(job, started_warm)
    _ctrl_c_withdraws_the_request(job)
    job.hang.touch()
    wait_for("the hang", job.stands_still)
    _stacks_and_flight_recorders_of_all_explain_a_hang(job, started_warm)
    job.send(signal.SIGSTOP, 2)
    _another_rank_looks_where_the_first_is_stopped(job, started_warm)
    job.send(signal.SIGSTOP, 3)
    _a_node_that_sees_nothing_is_named(job, started_warm)
    job.send(signal.SIGCONT, 2, 3)


def _no_socket_can_be_reached_from_here(job: Job, start: Starter) -> None:
    assert [job.told(rank)["host"] for rank in range(4)] == ["node0", "node0", "node1", "node1"]
    assert not any(Path(job.told(rank)["socket"]).exists() for rank in range(4))
    done = attach(job, start=start)
    assert done.returncode == 3
    assert "ranks 2-3 on another host: ssh node1" in done.stderr
    assert "To ask the ranks of all hosts at once, add --all-nodes." in done.stderr


def _all_ranks_say_where_they_are(job: Job, start: Starter) -> None:
    done = attach(job, "--all-nodes", start=start)
    assert done.returncode == 0, done.stderr
    _, *rows = done.stdout.splitlines()
    assert [row.split()[:2] for row in rows] == [
        ["0", "node0"],
        ["1", "node0"],
        ["2", "node1"],
        ["3", "node1"],
    ]
    assert all("alive (" in row and "hangs.py:" in row for row in rows)
    assert "All answered: 4 ranks" in done.stderr
    assert job.requests() == []


def _one_trace_of_all_ranks(job: Job, start: Starter) -> None:
    done = attach(job, "--profile", "1", "--all-nodes", start=start)
    assert done.returncode == 0, done.stderr
    assert "Traced ranks 0-3 in" in done.stderr
    assert "They began within" in done.stderr
    (name,) = job.requests()
    report = json.loads((job.folder / "requests" / name / "report.json").read_bytes())
    assert report["run"]["ranks"] == [0, 1, 2, 3]
    assert report["collectives"]["classes"]
    assert sorted(p.name for p in (job.folder / "requests" / name / "rank00003").iterdir()) == [
        "flight.json",
        "rank.json",
        "trace.json.gz",
    ]


def _ctrl_c_withdraws_the_request(job: Job) -> None:
    before = job.requests()
    command = [sys.executable, "-m", "distprof", "attach", str(job.folder)]
    with ended(
        subprocess.Popen(
            [*command, "--profile", "--all-nodes"],
            env=environment(),
            stderr=subprocess.PIPE,
            text=True,
        )
    ) as asking:
        wait_for("the request", lambda: len(job.requests()) > len(before) + 1)
        refused = attach(job, "--flight", "--all-nodes")
        assert refused.returncode == 2
        assert "another request is being served (profile-" in refused.stderr
        asking.send_signal(signal.SIGINT)
        asking.communicate(timeout=LIMIT_S)
    assert job.requests() == before


def _stacks_and_flight_recorders_of_all_explain_a_hang(job: Job, start: Starter) -> None:
    done = attach(job, "--stacks", "--flight", "--all-nodes", start=start)
    assert done.returncode == 0, done.stderr
    first = done.stdout.index("wait_for_a_lock_that_nobody_gives_back")
    assert done.stdout.index("rank 1:") < first < done.stdout.index("ranks 0,2-3:")
    assert "collectives of ranks 0-3: flight.json in each rank's folder." in done.stdout
    hang = start([sys.executable, "-m", "distprof", "hang", str(job.folder)], environment())
    assert hang.stdout.startswith("Stuck: rank 1 never launched all_reduce")


def _another_rank_looks_where_the_first_is_stopped(job: Job, start: Starter) -> None:
    done = attach(job, "--stacks", "--all-nodes", start=start)
    assert done.returncode == 0, done.stderr
    assert "ranks 0,3:" in done.stdout
    pid = job.told(2)["pid"]
    assert (
        f"rank 2: it is stopped and does not answer; resume it with kill -CONT {pid} on node1"
        in (done.stderr)
    )


def _a_node_that_sees_nothing_is_named(job: Job, start: Starter) -> None:
    done = attach(job, "--flight", "--all-nodes", start=start)
    assert done.returncode == 0, done.stderr
    assert "collectives of ranks 0-1" in done.stdout
    assert "ranks 2-3: node1 has not seen the request" in done.stderr
    assert "No answer from node1: either no process of the job is left there" in done.stderr


def test_a_job_whose_probes_take_no_requests_is_told_at_once(tmp_path: Path) -> None:
    rank = tmp_path / "rank00003"
    rank.mkdir()
    (rank / "attach.json").write_text(json.dumps({"rank": 3, "host": "gpu-7", "pid": 1}))
    command = [sys.executable, "-m", "distprof", "attach", str(tmp_path)]
    done = started_cold([*command, "--flight", "--all-nodes"], environment())
    assert done.returncode == 3
    assert "rank 3: its probes are of an older version and take no requests" in done.stderr
