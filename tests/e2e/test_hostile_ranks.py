"""Ranks of ``distprof run`` that do what programs do and launchers forget."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.jobs import Job, RunOnce, run_job, started_cold
from tests.probes.scripts.hostile import BLOCK
from tests.warm import Starter

pytestmark = pytest.mark.distributed

AT, STEPS, MEGABYTES = 4, 8, 512
SMALL = (
    *("--layers", "2", "--hidden", "64", "--ffn", "128", "--batch", "1", "--sequence", "32"),
    *("--group-timeout-s", "60"),
)
JOB = ("ddp", "--ranks", "2", *SMALL)
HOOK = """
import os
if os.environ.get("RANK") == "1" and "HOSTILE" in os.environ:
    import tests.e2e.hostile_worker
"""
HARMLESS = (
    *("no-newline", "replace-streams", "close-streams", "move", "own-handlers", "new-session"),
    *("fork-child", "terminate-child", "few-files"),
)
COLD = ("spawn",)
"""A warm rank cannot start other processes."""

RunHostile = Callable[[str], Job]


@pytest.fixture
def run_hostile(
    tmp_path: Path, started_warm: Starter, monkeypatch: pytest.MonkeyPatch
) -> RunHostile:
    """Run the job; rank 1 does a deed before step ``AT``."""

    def run(deed: str) -> Job:
        hook = tmp_path / "hook"
        hook.mkdir()
        (hook / "sitecustomize.py").write_text(HOOK)
        root = Path(__file__).parents[2]
        path = [str(hook), str(root), os.environ.get("PYTHONPATH", "")]
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, path)))
        monkeypatch.setenv("HOSTILE", deed)
        monkeypatch.setenv("HOSTILE_RESULT", str(tmp_path / "result"))
        start = started_cold if deed in COLD else started_warm
        return run_job(tmp_path / "run", *JOB, start=start)

    return run


def losses(job: Job, rank: int) -> list[float]:
    lines = (job.dir / f"rank{rank:05d}" / "steps.jsonl").read_text().splitlines()[1:]
    return [json.loads(line)["loss"] for line in lines]


def output(job: Job) -> Path:
    return job.dir / "rank00001" / "output.log"


@pytest.mark.parametrize("deed", [*HARMLESS, pytest.param("spawn", marks=pytest.mark.nightly)])
def test_hostile_ranks_train_as_others_do(
    deed: str, run_hostile: RunHostile, run_once: RunOnce
) -> None:
    job, usual = run_hostile(deed), run_once(*JOB)
    assert job.exit_code == 0, job.stderr
    assert job.run is not None
    assert job.run.outcome == "completed"
    for rank in (0, 1):
        assert losses(job, rank) == losses(usual, rank)
        assert len(losses(job, rank)) == STEPS


def test_what_a_rank_prints_is_kept_to_the_last_byte(run_hostile: RunHostile) -> None:
    """A gigabyte, half of it on each stream, binary and without a newline at its end."""
    job = run_hostile("flood")
    try:
        assert job.exit_code == 0, job.stderr
        with output(job).open("rb") as file:
            file.seek(-(2 * MEGABYTES << 20), os.SEEK_END)
            assert all(block == BLOCK for block in iter(lambda: file.read(len(BLOCK)), b""))
    finally:
        output(job).unlink(missing_ok=True)


@pytest.mark.parametrize("code", [0, 7])
def test_a_rank_that_leaves_in_the_middle_is_named(code: int, run_hostile: RunHostile) -> None:
    job = run_hostile(f"leave-{code}")
    assert job.exit_code == 4
    assert job.run is not None
    assert job.run.failure is not None
    assert job.run.failure.rank == 1
    assert f"rank 1 exited with code {code}" in job.run.failure.message
    assert job.report["job"]["failure"]["rank"] == 1


def test_a_run_directory_that_a_rank_deletes_is_named(run_hostile: RunHostile) -> None:
    job = run_hostile("delete-run")
    assert job.exit_code == 3
    assert "Traceback" not in job.stderr
    assert "was deleted while the job ran: there is no report" in job.stderr
    assert "failed" not in job.stderr
