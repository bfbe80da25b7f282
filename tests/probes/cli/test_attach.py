"""``distprof attach`` on a job that runs, hangs, and is stopped."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from distprof_probes.attach.ranks import look, remove_sockets

from tests.probes.cli.runs import (
    SCRIPTS,
    TORCHRUN,
    capture_command,
    environment,
    started_cold,
)
from tests.warm import LIMIT_S, Starter, WarmPython

pytestmark = pytest.mark.distributed


def _attach(
    folder: Path, *options: str, start: Starter = started_cold
) -> subprocess.CompletedProcess[str]:
    return start([sys.executable, "-m", "distprof", "attach", str(folder), *options], environment())


def _steps(folder: Path, rank: int) -> int:
    file = folder / f"rank{rank:05d}" / "steps.jsonl"
    return len(file.read_text().splitlines()) - 1 if file.exists() else 0


def _wait_for(condition: str, *, holds: object) -> None:
    """Wait for another process; the limit is for a machine that is very busy."""
    limit = time.monotonic() + LIMIT_S / 2
    while not holds():  # type: ignore[operator]
        assert time.monotonic() < limit, f"never: {condition}"
        time.sleep(0.1)


class Job:
    """Two ranks under capture; the second hangs once ``hang`` exists."""

    def __init__(self, folder: Path, warm_python: WarmPython) -> None:
        self.folder, self.hang = folder / "run", folder / "hang"
        program = [*TORCHRUN, str(SCRIPTS / "hangs.py"), "20", str(self.hang)]
        options = ["--no-report", "--start-step", "1000000"]
        self.process = warm_python.popen(
            capture_command(self.folder, *options, program=program),
            env=environment(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )

    def pid(self, rank: int) -> int:
        text = (self.folder / f"rank{rank:05d}" / "attach.json").read_text()
        return int(json.loads(text)["pid"])


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory, warm_python: WarmPython) -> Iterator[Job]:
    job = Job(tmp_path_factory.mktemp("attach"), warm_python)
    try:
        _wait_for("20 steps", holds=lambda: min(_steps(job.folder, r) for r in (0, 1)) >= 20)
        yield job
    finally:
        job.process.kill()
        for rank in (0, 1):
            os.kill(job.pid(rank), signal.SIGKILL)
        job.process.communicate()
        _wait_for("the end", holds=lambda: not any(rank.process for rank in look(job.folder)))
        remove_sockets(job.folder)


def test_a_running_a_hung_and_a_stopped_job(job: Job, started_warm: Starter) -> None:
    """One job, three states: starting it takes longest."""
    _profiles_while_it_runs(job, started_warm)
    _sockets_belong_to_this_user(job)
    job.hang.touch()
    _wait_for("the hang", holds=lambda: _stands_still(job))
    _says_where_ranks_hang(job, started_warm)
    _folds_stacks_and_saves_them(job, started_warm)
    _saves_the_flight_recorder(job, started_warm)
    _a_profile_of_what_hangs_names_what_shows_more(job, started_warm)
    os.kill(job.pid(1), signal.SIGSTOP)
    _says_who_is_stopped(job, started_warm)
    os.kill(job.pid(1), signal.SIGCONT)


def _stands_still(job: Job) -> bool:
    before = _steps(job.folder, 0)
    time.sleep(1.0)
    return _steps(job.folder, 0) == before


def _profiles_while_it_runs(job: Job, start: Starter) -> None:
    out = job.folder.with_name("profile")
    done = _attach(job.folder, "--profile", "1", "-o", str(out), start=start)
    assert done.returncode == 0, done.stderr
    assert "Traced ranks 0-1" in done.stderr
    report = json.loads((out / "report.json").read_bytes())
    assert "No step has ended" not in done.stderr
    assert report["run"]["ranks"] == [0, 1]
    assert report["collectives"]["classes"]
    assert "rank  host" not in done.stdout


def _a_profile_of_what_hangs_names_what_shows_more(job: Job, start: Starter) -> None:
    _wait_for("ten seconds without a step", holds=lambda: _idle_s(job) > 10)
    out = job.folder.with_name("hung")
    done = _attach(job.folder, "--profile", "0.2", "--no-report", "-o", str(out), start=start)
    assert done.returncode == 0, done.stderr
    said = done.stderr.partition("Traced ranks 0-1")[2]
    assert "No step has ended for" in said
    assert f"distprof attach {job.folder} --stacks" in said
    assert f"distprof hang {job.folder}" in said


def _idle_s(job: Job) -> float:
    ended_ns = max(rank.progressed_ns or 0 for rank in look(job.folder))
    return (time.time_ns() - ended_ns) / 1e9


def _sockets_belong_to_this_user(job: Job) -> None:
    for rank in (0, 1):
        text = (job.folder / f"rank{rank:05d}" / "attach.json").read_text()
        path = Path(json.loads(text)["socket"])
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert path.parent.stat().st_uid == os.getuid()


def _says_where_ranks_hang(job: Job, start: Starter) -> None:
    done = _attach(job.folder, start=start)
    assert done.returncode == 0, done.stderr
    _, first, second = done.stdout.splitlines()
    assert first.split()[0] == "0"
    assert "main (hangs.py:" in first
    assert "wait_for_a_lock_that_nobody_gives_back (hangs.py:" in second


def _folds_stacks_and_saves_them(job: Job, start: Starter) -> None:
    done = _attach(job.folder, "--stacks", start=start)
    assert done.returncode == 0, done.stderr
    assert "rank 1:\n" in done.stdout
    assert "    wait_for_a_lock_that_nobody_gives_back  " in done.stdout
    assert "    all_reduce  " in done.stdout
    for rank in (0, 1):
        text = (job.folder / f"rank{rank:05d}" / "stacks.txt").read_text()
        assert "hangs.py" in text


def _saves_the_flight_recorder(job: Job, start: Starter) -> None:
    done = _attach(job.folder, "--flight", "--ranks", "1", start=start)
    assert done.returncode == 0, done.stderr
    assert "collectives of rank 1" in done.stdout
    flight = json.loads((job.folder / "rank00001" / "flight.json").read_bytes())
    assert flight["entries"]


def _says_who_is_stopped(job: Job, start: Starter) -> None:
    done = _attach(job.folder, start=start)
    assert "stopped (T)" in done.stdout
    done = _attach(job.folder, "--stacks", start=start)
    assert done.returncode == 0
    assert (
        f"rank 1: it is stopped and does not answer; resume it with kill -CONT {job.pid(1)}"
        in done.stderr
    )


def test_a_folder_without_ranks_is_bad_input(tmp_path: Path) -> None:
    done = _attach(tmp_path)
    assert done.returncode == 3
    assert "run directory of a job" in done.stderr


def test_a_job_that_is_over_is_said_to_be(tmp_path: Path) -> None:
    rank = tmp_path / "rank00000"
    rank.mkdir()
    started = {"rank": 0, "host": os.uname().nodename, "pid": 2**22 - 1, "socket": "/nowhere/s"}
    (rank / "attach.json").write_text(json.dumps(started))
    done = _attach(tmp_path)
    assert done.returncode == 3
    assert done.stdout.splitlines()[1].split()[:4] == ["0", os.uname().nodename, "4194303", "gone"]


def test_ranks_of_other_hosts_are_named_with_the_way_there(tmp_path: Path) -> None:
    rank = tmp_path / "rank00003"
    rank.mkdir()
    (rank / "attach.json").write_text(json.dumps({"rank": 3, "host": "gpu-7", "pid": 1}))
    done = _attach(tmp_path)
    assert f"rank 3 on another host: ssh gpu-7 distprof attach {tmp_path}" in done.stderr
    assert "--all-nodes" not in done.stderr, "its probes take no requests"
