"""The pace of devices: the same kernels compared, however many of them a rank runs."""

import random
import tracemalloc
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from distprof.ingest.assemble import assemble_run
from distprof.sections.context import KernelSteps
from distprof.sections.stragglers import computing
from distprof.sections.stragglers.computing import pace_of
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


def of_experts(*times, blocks=None):
    """A rank per time: it spends 1 ms in dense kernels and so much in those of its experts."""
    return {
        rank: SimpleNamespace(
            kernel_steps=KernelSteps(
                names=("dense", "experts"),
                count=np.full((2, 3), 10),
                total_ns=np.repeat([[10**6], [ns]], 3, axis=1),
                quartile_ns=np.full((2, 3, 3), [[[10**5]], [[ns // 10]]]),
                blocks=np.repeat([[1000], [(blocks or {}).get(rank, -1)]], 3, axis=1),
            )
        )
        for rank, ns in enumerate(times)
    }


def test_a_rank_whose_experts_get_few_tokens_has_no_faster_device():
    """Else what it computes at that pace would look like more work."""
    analyses = of_experts(10**6, 10**6, 10**6, 600_000, 600_000, 1_900_000)
    pace = pace_of(analyses, [tuple(analyses)])
    np.testing.assert_allclose(pace.factor, 1.0)


def test_half_of_the_devices_are_slow_and_the_others_as_usual():
    analyses = {
        rank: SimpleNamespace(
            kernel_steps=KernelSteps(
                names=("a", "b"),
                count=np.full((2, 3), 10),
                total_ns=np.full((2, 3), ns),
                quartile_ns=np.full((2, 3, 3), ns // 10),
                blocks=np.full((2, 3), -1),
            )
        )
        for rank, ns in enumerate((10**6, 1_400_000, 1_400_000, 10**6))
    }
    pace = pace_of(analyses, [tuple(analyses)])
    np.testing.assert_allclose(pace.factor[:, 0], [1, 1.4, 1.4, 1])


def test_kernels_of_other_grids_are_not_the_same_kernels():
    blocks = {0: 10_000, 1: 10_000, 2: 10_000, 3: 25_000}
    slow = of_experts(10**6, 10**6, 10**6, 2_500_000)
    sized = of_experts(10**6, 10**6, 10**6, 2_500_000, blocks=blocks)
    for analyses in (slow, sized):  # the dense kernels then make little of the time
        for one in analyses.values():
            one.kernel_steps.total_ns[0] //= 4
    assert pace_of(slow, [(0, 1, 2, 3)]).factor[3, 0] == 2.5
    np.testing.assert_allclose(pace_of(sized, [(0, 1, 2, 3)]).factor, 1.0)


def of_launches(*ranks):
    """A rank per mapping of kernels to the durations of their launches, the same in 4 steps."""
    return {
        rank: SimpleNamespace(
            kernel_steps=KernelSteps(
                names=tuple(launches),
                count=np.repeat([[len(each)] for each in launches.values()], 4, axis=1),
                total_ns=np.repeat([[int(sum(each))] for each in launches.values()], 4, axis=1),
                quartile_ns=np.array(
                    [[np.quantile(each, (0.25, 0.5, 0.75))] * 4 for each in launches.values()]
                ).astype(np.int64),
                blocks=np.full((len(launches), 4), -1),
            )
        )
        for rank, launches in enumerate(ranks)
    }


def stage(layers, heads=0, slower=1.0):
    """A stage: one name for four kinds of products, which the output layer uses too."""
    products = [72_000, 72_000, 162_000, 231_000] * layers + [5_000] * heads
    launches = {"gemm": products, "attention": [99_000] * layers, "norm": [18_000] * 2 * layers}
    return {name: slower * np.array(each) for name, each in launches.items()}


@pytest.mark.parametrize("layers", [(6, 6), (6, 9)])
@pytest.mark.parametrize("slower", [(1.0, 1.0), (1.3, 1.0), (1.0, 1.3)])
def test_a_stage_with_further_launches_of_other_sizes_is_not_faster_or_slower(layers, slower):
    """A single short launch more moves the quartiles of all from one kind of product to another."""
    first, last = stage(layers[0], 0, slower[0]), stage(layers[1], 2, slower[1])
    analyses = of_launches(first, first, last, last)
    pace = pace_of(analyses, [(0, 1), (2, 3)])
    assert pace.groups == ((0, 1, 2, 3),)
    expected = np.repeat(slower, 2)[:, None] * np.ones(4)
    np.testing.assert_allclose(pace.factor, expected, rtol=0.001)


def test_a_stage_with_more_of_the_same_layers_is_compared_by_all_of_its_kernels():
    analyses = of_launches(stage(6), stage(6), stage(9, slower=1.3), stage(6))
    pace = pace_of(analyses, [(0,), (1,), (2,), (3,)])
    np.testing.assert_allclose(pace.factor[:, 0], [1, 1, 1.3, 1], rtol=0.001)


def test_one_rank_alone_has_no_pace():
    job = SimulatedJob(num_nodes=1, ranks_per_node=1, **QUIET)
    assert paces(job) is None


def many_cells(num_ranks, num_kernels, num_steps, seed):
    """Noisy quartiles, a rank without one of the kernels, unknown grids."""
    dice = np.random.default_rng(seed)
    usual = dice.integers(10**3, 10**6, num_kernels)
    found = {}
    for rank in range(num_ranks):
        own = np.arange(num_kernels)[rank % 2 :]
        count = dice.integers(0, 4, (len(own), num_steps))
        spread = 1 + dice.random((len(own), num_steps, 3)) / 50
        quartiles = np.sort((usual[own][:, None, None] * spread).astype(np.int64))
        quartiles[count == 0] = 0
        blocks = np.where(dice.random(count.shape) < 0.1, -1, 100 * count)
        found[rank] = SimpleNamespace(
            kernel_steps=KernelSteps(
                names=tuple(f"kernel {number}" for number in own),
                count=count,
                total_ns=count * quartiles[:, :, 1],
                quartile_ns=quartiles,
                blocks=blocks,
            )
        )
    return found


@pytest.mark.parametrize("cells", [1, 7, 50])
def test_steps_in_blocks_have_the_same_pace(cells, monkeypatch):
    ranks = many_cells(6, 5, 9, seed=cells)
    everybody = (tuple(range(6)),)
    whole = pace_of(ranks, everybody).factor
    assert (whole > 1).any()
    monkeypatch.setattr(computing, "_CELLS", cells)
    assert pace_of(ranks, everybody).factor.tobytes() == whole.tobytes()


def test_memory_follows_what_ranks_hold():
    """What is worked on at once is a block of cells, and one kernel of all ranks."""
    ranks = many_cells(48, 60, 64, seed=1)
    held = sum(k.nbytes for r in ranks.values() for k in cells_of(r.kernel_steps))
    tracemalloc.start()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(computing, "_CELLS", 1 << 12)
        pace_of(ranks, (tuple(range(48)),))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < held / 4


def cells_of(kernels):
    return kernels.count, kernels.total_ns, kernels.quartile_ns, kernels.blocks
