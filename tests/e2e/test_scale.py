"""A real sweep whose loss is known beforehand: a pipeline of sleeping stages.

Eight micro-batches through p stages of 4/p blocks take (8 + p − 1)·(4/p)·(f + b): nothing but the
bubble grows, and the efficiency from 2 to 4 stages is 9/11.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.warm import Starter

pytestmark = [pytest.mark.distributed, pytest.mark.slow]

SWEEP = (
    *("scale", "pp", "--ranks", "2,4", "--device", "cpu", "--strong", "--repeats", "1"),
    *("--steps", "11", "--profile-steps", "3", "--layers", "4", "--micro-batches", "8"),
    *("--compute", "sleep", "--forward-ms", "10", "--backward-ms", "20"),
    *("--hidden", "64", "--heads", "4", "--kv-heads", "4", "--ffn", "128"),
    *("--vocabulary", "256", "--sequence", "32"),
)
KNOWN = 9 / 11


def test_a_pipeline_loses_what_its_bubble_takes(tmp_path: Path, started_warm: Starter) -> None:
    def distprof(*arguments: str) -> subprocess.CompletedProcess[str]:
        return started_warm([sys.executable, "-m", "distprof", *arguments], os.environ)

    folder = str(tmp_path / "sweep")
    done = distprof(*SWEEP, "--sweep", folder, "--format", "json")
    assert done.returncode == 0, done.stderr
    scaling = json.loads(done.stdout)["scaling"]
    four = scaling["sizes"][1]
    assert scaling["mode"] == "strong"
    assert KNOWN - 0.2 < four["efficiency"] < KNOWN + 0.05
    losses = {loss["cause"]: loss for loss in four["losses"]}
    assert max(losses.values(), key=lambda loss: loss["lost_ns"])["cause"] == "pipeline bubble"
    assert losses["pipeline bubble"]["ratio"] == pytest.approx(1 - KNOWN, abs=0.08)
    assert sum(loss["lost_ns"] for loss in losses.values()) == four["lost_ns"]
    assert "[2/2] 2 ranks, repeat 1" in done.stderr
    again = distprof("scale", "--sweep", folder)  # nothing is left to do
    assert "repeat" not in again.stderr
    assert again.returncode == 0
    assert "pipeline bubble" in again.stdout.split("\n\n")[0].replace("\n", " ")
