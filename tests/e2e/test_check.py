"""This project's own gate: real runs, and a fault that it must not let pass."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

import tasks
from tests.warm import Starter

ROOT = Path(__file__).parents[2]
LENIENT = ("--allow-unlike", "--tolerance", "step_time=0.25", "--session-noise", "0.05")


@pytest.mark.distributed
@pytest.mark.slow
def test_twice_the_time_is_stopped_and_explained(tmp_path: Path, started_warm: Starter) -> None:
    command = [
        *(sys.executable, "-m", "distprof", "check"),
        *("--run", f"{tasks.GATE_RUN} --fault slow-rank=1:2", "--repeats", "3"),
        *("--baseline", str(ROOT / tasks.GATE_BASELINE), "--sweep", str(tmp_path / "runs")),
        *(*LENIENT, "--format", "json"),
    ]
    done = started_warm(command, os.environ)
    assert done.returncode == 1, done.stderr
    found = json.loads(done.stdout)
    assert found["state"] == "regressed"
    (step,) = (metric for metric in found["metrics"] if metric["is_gated"])
    assert step["metric"] == "step_time"
    assert 1.7 < step["change"] < 2.6
    assert any("config faults" in difference for difference in found["unlike"])
    computation = next(part for part in found["parts"] if part["part"] == "computation")
    wait = next(part for part in found["parts"] if part["part"] == "exposed_wait")
    assert (
        computation["change_ns"] > 80_000_000
    )  # mean of a rank that is slowed and one that is not
    assert wait["change_ns"] > 80_000_000
