"""Two nodes with a slow link between them: what the report sees, and advice that helps."""

from __future__ import annotations

import pytest
from distprof_runs.launching.emulated_nodes import why_not

from tests.e2e.jobs import Job, RunOnce

REASON = why_not()
pytestmark = [
    pytest.mark.distributed,
    pytest.mark.skipif(bool(REASON), reason=f"nodes cannot be emulated here: {REASON}"),
]
NODES = ("--emulate-nodes", "2", "--ranks", "2", "--fault", "slow-link=100:1")
STEPS = ("--steps", "6", "--profile-steps", "3", "--profile-warmup", "2")
SHORT = ("--layers", "2", "--batch", "1", "--sequence", "32")  # much is moved, little computed


@pytest.fixture
def flat(run_once: RunOnce) -> Job:
    return run_once("fsdp", *NODES, *STEPS, *SHORT)


@pytest.fixture
def hybrid(run_once: RunOnce) -> Job:
    return run_once("fsdp", "--replicas", "2", *NODES, *STEPS, *SHORT)


def codes(job: Job) -> set[str]:
    return {finding["code"] for finding in job.report["findings"]}


def exposed_ns(job: Job, axis: str) -> int:
    return next(
        row["exposed_comm_ns"] for row in job.report["overlap"]["axes"] if row["axis"] == axis
    )


def test_nodes_and_what_was_injected_are_in_the_report(flat: Job) -> None:
    assert flat.exit_code == 0, flat.stderr
    assert flat.report["run"]["nodes"] == {"node0": [0, 1], "node1": [2, 3]}
    assert [fault["text"] for fault in flat.report["job"]["faults"]] == ["slow-link=100:1"]


def test_a_run_on_emulated_nodes_says_what_was_typed(flat: Job) -> None:
    assert flat.run is not None
    assert flat.run.command[:2] == ("distprof", "run")
    assert "--emulate-nodes" in flat.run.command
    assert flat.run.world_size == 4


def test_ranks_of_a_node_share_a_clock_and_nodes_are_aligned(flat: Job) -> None:
    clocks = flat.report["capture"]["clocks"]
    assert [clock["ranks"] for clock in clocks] == [[0, 1], [2, 3]]
    assert all(clock["residual_ns"] < 20_000_000 for clock in clocks)


def test_sharding_across_the_slow_link_is_found(flat: Job) -> None:
    finding = next(item for item in flat.report["findings"] if item["code"] == "COM106")
    assert "HSDP" in finding["fix"]
    assert finding["cost_ns_per_step"] > 0.3 * flat.report["step_time"]["median_ns"]


def test_the_slow_axis_of_the_hybrid_run_is_the_one_between_nodes(hybrid: Job) -> None:
    assert hybrid.report["run"]["mesh"] == {"dp_replicate": 2, "dp_shard": 2}
    assert "COM106" not in codes(hybrid)
    assert exposed_ns(hybrid, "dp_replicate") > exposed_ns(hybrid, "dp_shard")


def test_the_hybrid_run_is_indeed_faster(flat: Job, hybrid: Job) -> None:
    assert hybrid.report["step_time"]["median_ns"] < 0.7 * flat.report["step_time"]["median_ns"]
