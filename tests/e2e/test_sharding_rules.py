"""What runs of ``fsdp`` gather and reduce is counted, and gathering too late is found."""

from __future__ import annotations

import pytest

from tests.e2e.jobs import RunOnce
from tests.e2e.workload_cases import CASES, Case

pytestmark = pytest.mark.distributed
SMALL = (
    *("--ranks", "2", "--steps", "6", "--profile-steps", "3", "--profile-warmup", "2"),
    *("--sequence", "32", "--batch", "1", "--hidden", "64", "--ffn", "128", "--vocabulary", "128"),
)
PASSES = {"FSDP (ZeRO-3)": 2.0, "FSDP (ZeRO-2)": 1.0, "HSDP (ZeRO-3)": 2.0}
"""In which a micro-batch gathers all weights."""

SHARDED = [case for case in CASES if case.strategy in PASSES]


@pytest.mark.parametrize("case", SHARDED, ids=lambda case: case.name)
def test_passes_of_a_step_are_those_of_its_micro_batches(case: Case, run_once: RunOnce) -> None:
    job = run_once(*case.arguments)
    assert job.exit_code == 0, job.stderr
    (axis,) = job.report["sharding"]["axes"]
    times = 2 if "--micro-batches" in case.options else 1
    assert (axis["axis"], axis["num_units"]) == ("dp_shard", 3)  # two blocks and the rest
    assert (axis["gather_passes"], axis["scatter_passes"]) == (PASSES[case.strategy] * times, times)
    assert axis["ahead_ratio"] > 0
    if axis["gather_passes"] > 1:  # of one pass over three units, one gather at most is ahead
        assert "COM117" not in {finding["code"] for finding in job.report["findings"]}


@pytest.mark.alone
def test_gathers_that_wait_for_their_turn_are_found(run_once: RunOnce) -> None:
    job = run_once("fsdp", *SMALL, "--no-prefetch")
    assert job.exit_code == 0, job.stderr
    (axis,) = job.report["sharding"]["axes"]
    assert (axis["num_units"], axis["ahead_ratio"]) == (5, 0.0)
    assert "COM117" in {finding["code"] for finding in job.report["findings"]}
