"""``distprof`` started once per rank, by launchers that know nothing of it."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.jobs import Job, job_in, started_cold
from tests.warm import LIMIT_S, Starter, WarmPython

pytestmark = pytest.mark.distributed

DISTPROF = (sys.executable, "-m", "distprof")
QUICK = (
    *("--device", "cpu", "--no-measure-overhead", "--group-timeout-s", "20", "--layers", "2"),
    *("--hidden", "64", "--ffn", "128", "--batch", "1", "--sequence", "32"),
)
LOOP = str(Path(__file__).parents[1] / "probes" / "scripts" / "plain_loop.py")
LAUNCHERS = {
    "torchrun": (
        *(sys.executable, "-m", "torch.distributed.run"),
        *("--standalone", "--nproc-per-node", "2", "--no-python"),
    ),
    "srun": ("srun", "--ntasks", "2", "--overcommit", "--kill-on-bad-exit"),
    "mpirun": ("mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2"),
}


@pytest.fixture
def start(request: pytest.FixtureRequest, launcher: tuple[str, ...]) -> Starter:
    """How to start a launcher: one that is written in Python may be warm, and so its ranks are."""
    if launcher == LAUNCHERS["torchrun"]:
        return request.getfixturevalue("started_warm")  # type: ignore[no-any-return]
    return started_cold


@pytest.fixture(params=LAUNCHERS)
def launcher(request: pytest.FixtureRequest) -> tuple[str, ...]:
    """The launcher's command, where it can start something here."""
    name: str = request.param
    if name != "torchrun" and shutil.which(name) is None:
        pytest.skip(f"{name} is not installed")
    if name == "srun" and subprocess.run(["sinfo"], capture_output=True, check=False).returncode:
        pytest.skip("SLURM is installed and does not run")
    return LAUNCHERS[name]


def environment(**added: str) -> dict[str, str]:
    ours = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
    kept = {name: value for name, value in os.environ.items() if name not in ours}
    return {**kept, "OMP_NUM_THREADS": "1", **added}


def launched(
    launcher: tuple[str, ...], folder: Path, *arguments: str, start: Starter = started_cold
) -> Job:
    """One job; the folder is its run directory."""
    done = start([*launcher, *DISTPROF, *arguments], environment())
    return job_in(folder, done.returncode, done.stdout, done.stderr)


def test_ranks_are_one_run(launcher: tuple[str, ...], start: Starter, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    words = ("ddp", "--steps", "6", "--no-report", "-o", str(folder))
    job = launched(launcher, folder, "run", *words, *QUICK, start=start)
    assert job.exit_code == 0, job.stderr
    assert job.run is not None
    assert (job.run.outcome, job.run.world_size) == ("completed", 2)
    assert [(entry.rank, entry.local_rank) for entry in job.run.ranks] == [(0, 0), (1, 1)]
    assert [entry.exit and entry.exit.code for entry in job.run.ranks] == [0, 0]


def test_a_rank_that_dies_is_named_in_a_report_before_the_launcher_ends_all(
    launcher: tuple[str, ...], start: Starter, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    words = ("ddp", "--steps", "9", "--fault", "dead-rank=1:6", "-o", str(folder))
    job = launched(launcher, folder, "run", *words, *QUICK, start=start)
    assert job.exit_code != 0
    assert job.run is not None
    assert job.run.failure is not None
    assert (job.run.outcome, job.run.failure.rank, job.run.failure.kind) == ("failed", 1, "killed")
    assert [entry.exit and entry.exit.signal for entry in job.run.ranks] == ["", "SIGKILL"]
    assert job.report["job"]["failure"]["rank"] == 1
    assert not (folder / ".trouble").exists()


def test_a_capture_on_each_rank_is_one_run(tmp_path: Path, started_warm: Starter) -> None:
    folder = tmp_path / "run"
    program = (sys.executable, LOOP, "--steps", "8", "--times", str(tmp_path / "times"))
    words = ("capture", "--no-report", "--no-measure-overhead", "-o", str(folder), "--")
    job = launched(LAUNCHERS["torchrun"], folder, *words, *program, start=started_warm)
    assert job.exit_code == 0, job.stderr
    assert job.run is not None
    assert (job.run.kind, job.run.outcome, job.run.world_size) == ("capture", "completed", 2)
    assert [entry.exit and entry.exit.code for entry in job.run.ranks] == [0, 0]


def test_a_capture_on_each_rank_names_the_one_that_failed(
    tmp_path: Path, started_warm: Starter
) -> None:
    """The data of rank 1 end; the other rank's own program knows only that a peer has gone."""
    folder, script = tmp_path / "run", tmp_path / "train.py"
    script.write_text(FAILS_ON_RANK_1)
    words = ("capture", "--no-report", "--no-measure-overhead", "-o", str(folder), "--")
    program = (sys.executable, str(script))
    job = launched(LAUNCHERS["torchrun"], folder, *words, *program, start=started_warm)
    assert job.exit_code != 0
    assert job.run is not None
    assert job.run.failure is not None
    assert job.run.outcome == "failed"
    assert (job.run.failure.rank, job.run.failure.kind) == (1, "out_of_memory")
    assert "you tried to allocate" in job.run.failure.message


FAILS_ON_RANK_1 = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters())
for step in range(8):
    if step == 4 and dist.get_rank() == 1:
        torch.empty(10**15)
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_pods_that_are_told_their_rank_are_one_run(tmp_path: Path, warm_python: WarmPython) -> None:
    """As Kubeflow's PyTorchJob starts them: nothing says what is on which node."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    told = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    command = [*DISTPROF, "run", "ddp", "--steps", "6", "--no-report", *QUICK]
    pods = [
        warm_python.popen(
            [*command, "-o", str(tmp_path / "run")],
            env=environment(**told, RANK=str(rank)),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        for rank in (1, 0)
    ]
    said = [pod.communicate(timeout=LIMIT_S)[0] for pod in pods]
    assert [pod.returncode for pod in pods] == [0, 0], said
    job = job_in(tmp_path / "run", 0, "", "")
    assert job.run is not None
    assert (job.run.outcome, [entry.rank for entry in job.run.ranks]) == ("completed", [0, 1])
