"""Jobs that fail for real: who failed first, the exit code, and what is kept."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from distprof.artefacts import ATTACH_FILE
from tests.e2e.jobs import Job, RunOnce, command_of, job_in, run_job
from tests.small_disk import needs_mounts, small_disk
from tests.warm import LIMIT_S, Starter, WarmPython

pytestmark = pytest.mark.distributed

SMALL = (
    *("--group-timeout-s", "8", "--layers", "2", "--hidden", "64", "--ffn", "128"),
    *("--batch", "1", "--sequence", "32"),
)


def disturbed(folder: Path, number: signal.Signals, *, rank: int | None, warm: WarmPython) -> Job:
    """A long job that meets a signal once it trains: one rank, or the launcher itself (None)."""
    options = ("ddp", "--ranks", "2", "--steps", "5000", "--no-report", *SMALL)
    started = warm.popen(
        command_of(folder, *options), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    steps = folder / "rank00001" / "steps.jsonl"
    limit = time.monotonic() + LIMIT_S
    while started.poll() is None and time.monotonic() < limit:
        if steps.is_file() and steps.read_text().count("\n") > 3:
            break
        time.sleep(0.05)
    os.kill(started.pid if rank is None else _pid(folder, rank), number)
    stdout, stderr = started.communicate(timeout=LIMIT_S)
    return job_in(folder, started.returncode, stdout, stderr)


def _pid(folder: Path, rank: int) -> int:
    return int(json.loads((folder / f"rank{rank:05d}" / "rank.json").read_text())["pid"])


def test_a_rank_that_dies_is_named_and_the_rest_is_reported(run_once: RunOnce) -> None:
    job = run_once("ddp", "--ranks", "2", "--fault", "dead-rank=1:6", *SMALL)
    assert job.exit_code == 4
    assert job.run is not None
    assert job.run.outcome == "failed"
    assert job.run.failure is not None
    assert (job.run.failure.rank, job.run.failure.kind) == (1, "killed")
    assert [fault.text for fault in job.run.faults] == ["dead-rank=1:6"]
    assert "The job failed: rank 1 was killed (SIGKILL)" in job.stderr
    told = json.loads((job.dir / "rank00001" / ATTACH_FILE).read_text("utf-8"))
    assert not Path(told["socket"]).parent.exists()
    assert job.report["job"]["failure"]["rank"] == 1
    assert (job.dir / "rank00000" / "error.json").is_file()


def test_a_rank_that_hangs_is_named_though_the_others_time_out(run_once: RunOnce) -> None:
    job = run_once("ddp", "--ranks", "3", "--fault", "hang-rank=1:5", "--no-report", *SMALL)
    assert job.exit_code == 4
    assert job.run is not None
    assert job.run.failure is not None
    assert (job.run.failure.rank, job.run.failure.kind) == (1, "hung")
    assert "it was in hang_on_purpose" in job.stderr
    ends = {entry.rank: entry.exit for entry in job.run.ranks}
    assert {rank: end.by_launcher for rank, end in ends.items() if end is not None} == {
        0: False,
        1: True,
        2: False,
    }


def test_a_stopped_rank_is_named(tmp_path: Path, warm_python: WarmPython) -> None:
    job = disturbed(tmp_path / "run", signal.SIGSTOP, rank=1, warm=warm_python)
    assert job.exit_code == 4
    assert job.run is not None
    assert job.run.failure is not None
    assert (job.run.failure.rank, job.run.failure.kind) == (1, "stopped")


def test_ctrl_c_keeps_what_was_recorded(tmp_path: Path, warm_python: WarmPython) -> None:
    job = disturbed(tmp_path / "run", signal.SIGINT, rank=None, warm=warm_python)
    assert job.exit_code == 130
    assert job.run is not None
    assert (job.run.outcome, job.run.failure) == ("interrupted", None)
    assert len(job.run.ranks) == 2
    assert "stopping the ranks" in job.stderr


def test_ctrl_c_before_the_first_step_takes_three_lines(
    tmp_path: Path, warm_python: WarmPython
) -> None:
    """More ranks than cores take turns, which is said before they do."""
    num_ranks = len(os.sched_getaffinity(0)) + 1
    options = ("ddp", "--ranks", str(num_ranks), "--device", "cpu", "--fault", "sleep-rank=0:60000")
    started = warm_python.popen(
        command_of(tmp_path / "run", *options), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    files = [tmp_path / "run" / f"rank{rank:05d}" / "rank.json" for rank in range(num_ranks)]
    limit = time.monotonic() + LIMIT_S
    while not all(file.exists() for file in files) and time.monotonic() < limit:
        time.sleep(0.05)
    started.send_signal(signal.SIGINT)
    out, err = started.communicate(timeout=LIMIT_S)
    assert started.returncode == 130
    assert out == ""
    assert err.startswith(f"{num_ranks} ranks share {num_ranks - 1} CPU core")
    assert [line.partition(";")[0].partition(":")[0] for line in err.splitlines()[1:]] == [
        f"DDP on {num_ranks} CPU ranks, 8 steps",
        "stopping the ranks",
        "Interrupted before the first step",
    ]


def test_sigterm_is_as_orderly(tmp_path: Path, warm_python: WarmPython) -> None:
    job = disturbed(tmp_path / "run", signal.SIGTERM, rank=None, warm=warm_python)
    assert job.exit_code == 143
    assert job.run is not None
    assert job.run.outcome == "interrupted"


@needs_mounts
def test_a_disk_that_fills_up_does_not_stop_training(tmp_path: Path, started_warm: Starter) -> None:
    with small_disk(tmp_path / "small") as small:
        job = run_job(small / "run", "ddp", "--ranks", "2", "--no-report", start=started_warm)
    assert "Traceback" not in job.stderr
    assert job.exit_code == 0


def refused(start: Starter, folder: Path, *arguments: str) -> str:
    """What a command says that never starts a job."""
    command = [sys.executable, "-m", "distprof", "run", *arguments, "-o", str(folder)]
    done = start(command, os.environ)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    return done.stderr


def test_gpus_that_are_not_there_name_the_way_without(
    tmp_path: Path, started_warm: Starter
) -> None:
    said = refused(started_warm, tmp_path / "run", "ddp", "--gpus", "64")
    assert "--ranks 64 --device cpu" in said
    assert not (tmp_path / "run").exists()


def test_a_folder_that_cannot_be_written_is_refused(started_warm: Starter) -> None:
    said = refused(started_warm, Path("/proc/distprof-run"), "ddp", "--device", "cpu")
    assert "choose another folder with -o" in said


def test_a_folder_in_use_is_refused(tmp_path: Path, started_warm: Starter) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    assert "is not empty" in refused(started_warm, tmp_path, "ddp", "--device", "cpu")
    assert [file.name for file in tmp_path.iterdir()] == ["notes.txt"]


def test_a_port_in_use_is_refused(tmp_path: Path, started_warm: Starter) -> None:
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        endpoint = f"localhost:{taken.getsockname()[1]}"
        said = refused(
            started_warm,
            tmp_path / "run",
            *("ddp", "--device", "cpu", "--nodes", "2", "--node-rank", "0"),
            *("--rdzv-endpoint", endpoint),
        )
    assert "is in use on this node" in said


def test_without_torch_the_extra_is_named(tmp_path: Path) -> None:
    hides = "import importlib.util as u; f = u.find_spec\n"
    hides += "u.find_spec = lambda name, *a: None if name == 'torch' else f(name, *a)\n"
    program = hides + "from distprof.cli import main; raise SystemExit(main())"
    done = subprocess.run(
        [sys.executable, "-c", program, "run", "ddp", "--device", "cpu"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 2
    assert "pip install 'distprof[run]'" in done.stderr
    assert list(tmp_path.iterdir()) == []
