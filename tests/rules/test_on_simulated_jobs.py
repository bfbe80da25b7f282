"""From written traces to findings: jobs whose fault is known."""

import pytest

import distprof
from distprof.sections.shows import judge
from distprof.terms import Confidence
from tests.simulator import (
    Collective,
    Compute,
    LateHost,
    LateInput,
    MoreWork,
    SimulatedJob,
    SlowDevice,
)

MS = 1_000_000

BADLY_RECORDED = {
    "num_steps": 9,
    "clock_offset_ns": (-10 * MS, 10 * MS),
    "clock_drift_ppm": (-10.0, 10.0),
    "capture_skip": {0: 10, 2: 3},
}


def findings(job, folder):
    job.run().write_kineto(folder)
    report = distprof.analyze(distprof.open_run(folder), debug=True)
    return {finding.name: finding for finding in report.findings}


@pytest.mark.parametrize(
    ("fault", "clause"),
    [
        (SlowDevice(rank=3, factor=1.2), "It runs the same kernels slower"),
        (MoreWork(rank=3, factor=1.5), "It has more work"),
        (LateInput(rank=3, ns=3 * MS), "Its input arrives late"),
        (LateHost(rank=3, ns=3 * MS), "Its CPU launches late"),
    ],
)
def test_the_late_rank_and_its_cause_are_named_on_skewed_clocks_and_torn_captures(
    fault, clause, tmp_path
):
    found = findings(SimulatedJob(**BADLY_RECORDED, faults=(fault,)), tmp_path / "traces")
    straggler = found["persistent-straggler"]
    assert straggler.ranks == (3,)
    assert clause in straggler.message
    assert straggler.cost_ns_per_step > 0


def test_waiting_for_a_rank_that_is_not_recorded_is_not_taken_for_transfer(tmp_path):
    program = (Compute(ns=10 * MS, kernels=40), Collective(transfer_ns=1 * MS))
    late = SimulatedJob(program=program, faults=(SlowDevice(rank=3, factor=2),), present=(0, 1, 2))
    late.run().write_kineto(tmp_path / "traces")
    report = distprof.analyze(distprof.open_run(tmp_path / "traces"))
    assert report.capture.incomplete_ratio == 1.0
    found = {finding.name: finding for finding in report.findings}
    assert found["low-overlap"].confidence is Confidence.INFERRED
    assert "may be waiting for rank 3, which was not recorded" in found["low-overlap"].message
    assert "exposed-communication" not in found  # the plan leaves nothing of it
    assert "COM104" in {item.code for item in report.not_checked}
    assert "may be waiting for rank 3, which was not recorded" in judge(report).detail


def test_with_all_members_recorded_transfer_is_measured(tmp_path):
    program = (Compute(ns=10 * MS, kernels=40), Collective(transfer_ns=10 * MS))
    found = findings(SimulatedJob(program=program), tmp_path / "traces")
    assert found["low-overlap"].confidence is Confidence.MEASURED
    assert "may be waiting" not in found["low-overlap"].message


def test_a_healthy_job_so_recorded_accuses_nobody(tmp_path):
    found = findings(SimulatedJob(**BADLY_RECORDED), tmp_path / "traces")
    assert not any(name.endswith("-straggler") for name in found)
    assert "arrival-skew-bound-collectives" not in found


def test_communication_after_all_computation_is_low_overlap(tmp_path):
    program = (Compute(ns=10 * MS, kernels=40), Collective(transfer_ns=5 * MS))
    found = findings(SimulatedJob(program=program), tmp_path / "traces")
    assert "low-overlap" in found
    assert "exposed-communication" not in found  # overlap hides all of it
    # 5 ms of transfer, and 10 ms of computation alone that could hide all of it
    assert found["low-overlap"].cost_ns_per_step == pytest.approx(5 * MS, rel=0.02)
    assert "transfer-bound-collectives" not in found


def test_more_communication_than_computation_is_bound_by_transfer(tmp_path):
    program = (Compute(ns=2 * MS), Collective(transfer_ns=10 * MS))
    found = findings(SimulatedJob(program=program), tmp_path / "traces")
    assert found["low-overlap"].cost_ns_per_step == pytest.approx(2 * MS, rel=0.05)
    # what 2 ms of computation cannot hide: the two costs add up to the exposed transfer
    bound = found["transfer-bound-collectives"].cost_ns_per_step
    assert bound == pytest.approx(8 * MS, rel=0.05)


def test_many_small_reductions_are_tiny_collectives(tmp_path):
    layer = (Compute(ns=MS // 4, kernels=1), Collective(bytes=4_096, transfer_ns=30_000))
    found = findings(SimulatedJob(program=layer * 40), tmp_path / "traces")
    assert "40 per step and rank" in found["tiny-collectives"].message


def test_a_slow_host_is_launch_bound(tmp_path):
    program = (Compute(ns=MS, kernels=200), Collective(transfer_ns=100_000))
    found = findings(SimulatedJob(program=program, launch_ns=20_000), tmp_path / "traces")
    assert found["launch-bound-host"].cost_ns_per_step == pytest.approx(3 * MS, rel=0.1)


def test_small_collectives_of_groups_side_by_side_are_counted_per_rank(tmp_path):
    small = Collective(axis="tp", bytes=4_096, transfer_ns=30_000)
    layer = (Compute(ns=MS // 4, kernels=1), small)
    pairs = {"tp": ((0, 1), (2, 3))}
    found = findings(SimulatedJob(program=layer * 30, axes=pairs), tmp_path / "traces")
    assert "30 per step and rank" in found["tiny-collectives"].message
