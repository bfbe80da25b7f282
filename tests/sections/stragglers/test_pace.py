"""The pace of devices: the same kernels compared, however many of them a rank runs."""

import random
from dataclasses import replace

import numpy as np
import pytest

from distprof.ingest.assemble import assemble_run
from distprof.sections.stragglers.pace import pace_of
from tests.sections.measured import measure
from tests.simulator import MoreWork, SimulatedJob, SlowDevice
from tests.simulator.shapes import pipeline

QUIET = {"compute_noise": 0.0, "num_steps": 6}


def paces(job, peers=None):
    run = assemble_run("simulated", job.run().to_ranks())
    return pace_of(measure(run).analyses, peers or (tuple(range(job.world_size)),))


@pytest.mark.parametrize("factor", [1.07, 1.5])
def test_a_slow_device_has_its_factor_as_pace(factor):
    pace = paces(SimulatedJob(**QUIET, faults=(SlowDevice(rank=2, factor=factor),)))
    others = np.delete(pace.factor, 2, axis=0)
    np.testing.assert_allclose(pace.factor[2] / np.median(others), factor, rtol=0.01)
    np.testing.assert_allclose(others, np.median(others), rtol=0.01)


def test_more_kernels_leave_the_pace_as_it_is():
    pace = paces(SimulatedJob(**QUIET, faults=(MoreWork(rank=1, factor=1.5),)))
    np.testing.assert_allclose(pace.factor, 1.0, rtol=0.01)


def test_stages_that_run_the_same_kernels_are_compared_with_each_other():
    job = replace(pipeline(4, 1, random.Random(1), num_steps=6), compute_noise=0.0)
    slow = replace(job, faults=(SlowDevice(rank=2, factor=1.3),), device_spread=0.0)
    pace = paces(slow, peers=((0,), (1,), (2,), (3,)))
    assert pace.groups == ((0, 1, 2, 3),)
    np.testing.assert_allclose(pace.factor[2] / pace.factor[0], 1.3, rtol=0.02)


def test_one_rank_alone_has_no_pace():
    job = SimulatedJob(num_nodes=1, ranks_per_node=1, **QUIET)
    assert paces(job) is None
