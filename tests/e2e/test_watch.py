"""Real jobs, watched while they run: a slow rank, a killed rank, a killed watcher."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from distprof.verbs.watch.alerts import default_levels
from distprof.verbs.watch.follow import follow
from distprof.verbs.watch.show import Alert, WatchReport
from tests.e2e.jobs import command_of
from tests.warm import LIMIT_S, WarmPython

pytestmark = pytest.mark.distributed

SMALL = (
    *("--group-timeout-s", "8", "--layers", "2", "--hidden", "64", "--ffn", "128"),
    *("--batch", "1", "--sequence", "32", "--no-report", "--mode", "always-on"),
)


def started(folder: Path, warm: WarmPython, *options: str) -> subprocess.Popen[str]:
    job = warm.popen(
        command_of(folder, "ddp", *options, *SMALL),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    limit = time.monotonic() + LIMIT_S
    while not folder.is_dir() and time.monotonic() < limit:
        time.sleep(0.02)
    return job


def watched(folder: Path) -> tuple[WatchReport, list[Alert]]:
    """The job at its end, and all alerts."""
    seen: list[Alert] = []
    last: WatchReport | None = None
    limit = time.monotonic() + LIMIT_S
    for report, alerts in follow(folder, default_levels(), period_s=0.1):
        last = report
        seen += alerts
        assert time.monotonic() < limit
    assert last is not None
    return last, seen


def test_a_slow_rank_is_told_while_the_job_runs(tmp_path: Path, warm_python: WarmPython) -> None:
    folder = tmp_path / "run"
    options = ("--ranks", "3", "--steps", "90", "--fault", "slow-rank=1:3")
    with started(folder, warm_python, *options) as job:
        report, alerts = watched(folder)
        job.communicate(timeout=LIMIT_S)
    assert job.returncode == 0
    assert (report.state, report.world_size, report.step) == ("completed", 3, 89)
    slow = [alert for alert in alerts if alert.kind == "slow-rank" and alert.state == "raised"]
    assert 1 in {rank for alert in slow for rank in alert.ranks}
    assert report.own_ratio is not None
    assert report.lost == ()


def test_a_rank_that_is_killed_is_lost_and_its_victims_are_not(
    tmp_path: Path, warm_python: WarmPython
) -> None:
    folder = tmp_path / "run"
    with started(folder, warm_python, "--ranks", "3", "--fault", "dead-rank=1:6") as job:
        report, alerts = watched(folder)
        job.communicate(timeout=LIMIT_S)
    assert report.state == "failed"
    assert [lost.rank for lost in report.lost] == [1]
    assert "SIGKILL" in report.lost[0].evidence
    assert any(alert.kind == "rank-lost" and 1 in alert.ranks for alert in alerts)


@pytest.mark.parametrize("end", [subprocess.Popen.kill, subprocess.Popen.terminate])
def test_a_watcher_that_ends_leaves_the_job_alone(
    tmp_path: Path, warm_python: WarmPython, end: Callable[[subprocess.Popen[bytes]], None]
) -> None:
    folder = tmp_path / "run"
    with started(folder, warm_python, "--ranks", "2", "--steps", "40") as job:
        command = [sys.executable, "-m", "distprof", "watch", str(folder), "--every", "0.1"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as watcher:
            assert watcher.stdout is not None
            watcher.stdout.readline()
            end(watcher)
            watcher.communicate(timeout=LIMIT_S)
        job.communicate(timeout=LIMIT_S)
    assert job.returncode == 0
