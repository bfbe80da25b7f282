"""A mesh on two nodes with its axes in the wrong order, and in the right one."""

from __future__ import annotations

from typing import Any

import pytest
from distprof_runs.launching.emulated_nodes import why_not

from tests.e2e.jobs import Job, RunOnce

REASON = why_not()
pytestmark = [
    pytest.mark.distributed,
    pytest.mark.skipif(bool(REASON), reason=f"nodes cannot be emulated here: {REASON}"),
]
MESH = ("--pp", "1", "--fsdp", "2", "--tp", "2", "--micro-batches", "1", "--layers", "2")
SMALL = ("--batch", "1", "--sequence", "32")
NODES = ("--emulate-nodes", "2", "--ranks", "2", "--fault", "slow-link=200:1")
STEPS = ("--steps", "6", "--profile-steps", "3", "--profile-warmup", "2")
PLACEMENT = {"COM108", "COM109", "NET106", "NET107", "NET108", "NET109", "NET110"}


def of_placement(job: Job) -> list[dict[str, Any]]:
    return [finding for finding in job.report["findings"] if finding["code"] in PLACEMENT]


def nodes_each(job: Job) -> dict[str, int]:
    return {axis["axis"]: axis["num_nodes"] for axis in job.report["placement"]["axes"]}


def test_tensor_parallelism_outside_is_one_finding_with_its_cost(run_once: RunOnce) -> None:
    job = run_once("3d", *MESH, "--order", "pp,dp,tp,fsdp", *NODES, *STEPS, *SMALL)
    assert job.exit_code == 0, job.stderr
    assert nodes_each(job) == {"tp": 2, "dp_shard": 1, "world": 2}
    (finding,) = of_placement(job)
    assert finding["code"] == "NET108"
    assert finding["message"].startswith("Groups of tp (2 ranks, 2 apart) span 2 nodes")
    assert finding["cost_ns_per_step"] > 0
    assert finding["recoverable_ns"] > 0


def test_tensor_parallelism_inside_is_none(run_once: RunOnce) -> None:
    job = run_once("3d", *MESH, *NODES, *STEPS, *SMALL)
    assert job.exit_code == 0, job.stderr
    assert nodes_each(job) == {"tp": 1, "dp_shard": 2, "world": 2}
    assert of_placement(job) == []
