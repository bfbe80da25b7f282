"""Switches of the run ``ddp`` that spoil its gradients are found, and nothing without them."""

from __future__ import annotations

import pytest
from distprof_runs.launching.emulated_nodes import why_not

from tests.e2e.jobs import Job, RunOnce

REASON = why_not()
pytestmark = [
    pytest.mark.distributed,
    pytest.mark.skipif(bool(REASON), reason=f"nodes cannot be emulated here: {REASON}"),
]

NODES = ("--emulate-nodes", "2", "--ranks", "1", "--fault", "slow-link=500:0.2")
STEPS = ("--compute", "sleep", "--steps", "6", "--profile-steps", "3", "--profile-warmup", "2")
OURS = {"COM110", "COM111", "COM112", "COM113", "COM114", "COM115"}


def codes(job: Job) -> set[str]:
    assert job.exit_code == 0, job.stderr
    return {finding["code"] for finding in job.report["findings"]} & OURS


def test_reducing_each_micro_batch_is_found_and_silent_with_no_sync(run_once: RunOnce) -> None:
    sync = run_once("ddp", *NODES, *STEPS, "--micro-batches", "3", "--sync")
    once = run_once("ddp", *NODES, *STEPS, "--micro-batches", "3")
    assert "COM110" in codes(sync)
    assert "COM110" not in codes(once)
    finding = next(item for item in sync.report["findings"] if item["code"] == "COM110")
    (group,) = sync.report["gradients"]["groups"]
    assert (group["micro_batches"], group["times_reduced"]) == (3.0, 3.0)
    # 2 × 3.15 MB at 500 Mbit/s are 100 ms, and each time one bucket of three at least is exposed
    assert 0.03e9 < finding["cost_ns_per_step"] < group["exposed_ns_per_step"]
    assert finding["recoverable_ns"] > 0.02e9


@pytest.mark.alone
def test_one_bucket_is_found_to_be_late(run_once: RunOnce) -> None:
    job = run_once("ddp", *NODES, *STEPS, "--bucket-mb", "1000", "--hook", "fp16")
    assert codes(job) == {"COM112"}
    # low-overlap counts the same time, and does not know why
    assert "COM101" not in {finding["code"] for finding in job.report["findings"]}
