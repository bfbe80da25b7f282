"""Collectives that take the result of one on another stream, as in hybrid sharding (HSDP)."""

from dataclasses import replace

import pytest

from distprof.terms import CollectiveKind
from tests.simulator import Collective, Compute, Input, SimulatedJob, SlowDevice, Wait
from tests.simulator.trials import report_of

MS = 1_000_000
LAYER = (
    Compute(ns=3 * MS),
    Collective(
        kind=CollectiveKind.REDUCE_SCATTER, axis="dp_shard", transfer_ns=MS // 2, overlap=True
    ),
    Collective(
        axis="dp_replicate", bytes=64 << 20, transfer_ns=4 * MS, overlap=True, takes="dp_shard"
    ),
)
JOB = SimulatedJob(
    num_nodes=2,
    ranks_per_node=2,
    num_steps=8,
    program=(Input(), *LAYER * 5, Wait(), Compute(ns=MS, name="adam", fixed=True)),
    axes={"dp_shard": ((0, 1), (2, 3)), "dp_replicate": ((0, 2), (1, 3))},
)


def mean_step(job):
    """From the last rank's end of a step to the next, without the first one."""
    ends = {}
    for instance in job.run().instances:
        ends[instance.step] = max(ends.get(instance.step, 0), instance.end_ns)
    times = [ends[step] for step in sorted(ends)]
    return (times[-1] - times[0]) / (len(times) - 1)


@pytest.mark.parametrize(("rank", "factor"), [(0, 1.6), (1, 2.0), (3, 2.5)])
def test_mending_a_slow_device_starts_the_reductions_across_replicas_sooner(rank, factor):
    """Its neighbour's all-reduce waited for their reduce-scatter, not for its own computation."""
    slow = replace(JOB, faults=(SlowDevice(rank=rank, factor=factor),))
    first = report_of(slow.run()).findings[0]
    assert (first.code, first.ranks) == ("STR101", (rank,))
    assert first.recoverable_ns == pytest.approx(mean_step(slow) - mean_step(JOB), rel=0.03)
