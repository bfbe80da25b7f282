"""A second fault that waiting for the first one hides."""

from dataclasses import replace

import pytest

from tests.simulator import Collective, Compute, Input, SimulatedJob, SlowDevice, SlowLaunches, Wait
from tests.simulator.trials import report_of

MS = 1_000_000
JOB = SimulatedJob(
    num_nodes=2,
    ranks_per_node=2,
    num_steps=10,
    program=(
        Input(),
        *(
            op
            for _ in range(20)
            for op in (Compute(ns=MS, kernels=10), Collective(bytes=8 << 20, transfer_ns=MS // 20))
        ),
        Wait(),
        Compute(ns=MS, kernels=10, name="adam", fixed=True),
    ),
)
DEVICE = SlowDevice(rank=0, factor=1.5)
LAUNCHES = SlowLaunches(rank=2, ns=110_000)


def mean_step(job):
    """From the last rank's end of a step to the next, without the first one."""
    ends = {}
    for instance in job.run().instances:
        ends[instance.step] = max(ends.get(instance.step, 0), instance.end_ns)
    times = [ends[step] for step in sorted(ends)]
    return (times[-1] - times[0]) / (len(times) - 1)


@pytest.fixture(scope="module")
def found():
    report = report_of(replace(JOB, faults=(DEVICE, LAUNCHES)).run())
    return [finding for finding in report.findings if finding.code == "STR101"], report.plan


def test_mending_the_first_gives_back_what_the_second_leaves(found):
    (first, _), _ = found
    both, second = (mean_step(replace(JOB, faults=f)) for f in ((DEVICE, LAUNCHES), (LAUNCHES,)))
    assert first.ranks == (0,)
    assert second > mean_step(JOB) * 1.05
    assert first.recoverable_ns == pytest.approx(both - second, rel=0.1)


def test_the_second_is_named_with_what_it_costs_then(found):
    (_, hidden), plan = found
    costs = mean_step(replace(JOB, faults=(LAUNCHES,))) - mean_step(JOB)
    assert hidden.ranks == (2,)
    assert "would be next" in hidden.headline
    assert "CPU launches late" in hidden.message
    assert hidden.recoverable_ns < costs / 10
    assert hidden.remaining_ns == pytest.approx(costs, rel=0.15)
    assert plan.repairs[-1].step_ns == pytest.approx(mean_step(JOB), rel=0.02)


def test_slow_launches_that_nobody_waits_for_accuse_nobody():
    """20 µs more per launch are less than a kernel takes."""
    report = report_of(replace(JOB, faults=(replace(LAUNCHES, ns=20_000),)).run())
    assert [finding.code for finding in report.findings if finding.ranks == (2,)] == []


def test_a_slow_device_alone_accuses_no_other_rank():
    report = report_of(replace(JOB, faults=(DEVICE,)).run())
    named = [finding.ranks for finding in report.findings if finding.code.startswith("STR")]
    assert named == [(0,)]
