"""Computation that follows sequence lengths, told from slow devices and from noise."""

import random
from dataclasses import replace

import numpy as np
import pytest

from distprof.ingest.assemble import assemble_run
from distprof.sections.context import ProbeRecords
from distprof.sections.idle.measure import HostPauses, measure_host_pauses
from distprof.sections.stragglers.measure import analyze_stragglers
from distprof.sections.stragglers.workload import _is_of_one_step, is_attention
from distprof.terms import StragglerCause, StragglerPattern
from tests.sections.measured import measure
from tests.simulator import SlowDevice, rotating
from tests.simulator.shapes import Shape, long_documents

FOUR = Shape(num_nodes=2, per_node=2)


def stragglers_of(job, *, with_log=True):
    recording = job.run()
    run = assemble_run("simulated", recording.to_ranks())
    found = measure(run)
    records = recording.to_records() if with_log else {}
    pauses = {rank: measure_host_pauses(source.load()) for rank, source in records.items()}
    return analyze_stragglers(
        run,
        found.analyses,
        found.step_time,
        ProbeRecords(found={HostPauses: pauses}),
    )


def documents(seed=1, *, packed, spread):
    return long_documents(FOUR, random.Random(seed), packed=packed, spread=spread)


def test_packed_batches_are_told_by_attention():
    found = stragglers_of(documents(packed=True, spread=0.4)).sequences
    assert found.evidence == "attention"
    assert found.attention_spread > 5 * found.rest_spread
    assert found.ranks == (0, 1, 2, 3)


def test_batches_of_unlike_tokens_are_told_by_the_step_log():
    found = stragglers_of(documents(packed=False, spread=0.3)).sequences
    assert found.evidence == "tokens"
    assert found.correlation > 0.9


def test_without_a_step_log_attention_that_grows_faster_than_the_rest_tells():
    found = stragglers_of(documents(packed=False, spread=0.3), with_log=False).sequences
    assert found.evidence == "attention"


def test_the_cost_is_the_busiest_ranks_computation_less_the_mean():
    job = documents(packed=True, spread=0.4)
    found = stragglers_of(replace(job, compute_noise=0.0)).sequences
    attention_ns = 4_000_000  # of a batch as usual: twice 1 ms forward, twice 1 ms backward
    loads = np.array(
        [
            [job.load["attention", rank, step] for step in job.steps]
            for rank in range(job.world_size)
        ]
    )
    lost = (loads.max(axis=0) - loads.mean(axis=0)) * attention_ns
    # the first steps are torn by captures that start late
    assert min(lost[1:].mean(), lost.mean()) * 0.9 < found.lost_ns_per_step
    assert found.lost_ns_per_step < max(lost[1:].mean(), lost.mean()) * 1.1


@pytest.mark.parametrize("seed", range(4))
def test_equal_lengths_are_no_imbalance(seed):
    assert stragglers_of(documents(seed, packed=True, spread=0.0)).sequences is None


def test_devices_that_are_slow_by_turns_are_no_imbalance():
    job = documents(packed=True, spread=0.0)
    slow = rotating(range(job.world_size), 1.5, job.steps)
    result = stragglers_of(replace(job, faults=slow), with_log=False)
    assert result.sequences is None
    assert result.pattern is not StragglerPattern.NONE


def test_a_device_that_is_slow_all_the_time_is_no_imbalance():
    job = documents(packed=True, spread=0.0)
    result = stragglers_of(replace(job, faults=(SlowDevice(rank=2, factor=1.3),)))
    assert result.sequences is None
    assert result.ranks[0].cause is StragglerCause.SLOW_DEVICE


def test_a_rank_that_always_has_more_tokens_has_more_work_and_is_no_slow_device():
    job = documents(packed=False, spread=0.0)
    load = {cell: 1.3 if cell[1] == 2 else factor for cell, factor in job.load.items()}
    tokens = {
        cell: round(count * (1.3 if cell[0] == 2 else 1)) for cell, count in job.tokens.items()
    }
    result = stragglers_of(replace(job, load=load, tokens=tokens))
    assert result.sequences is None
    late = result.ranks[0]
    assert (late.rank, late.cause, late.detail) == (2, StragglerCause.MORE_WORK, "tokens")
    assert "1.3 times as many tokens" in late.evidence[-1]


@pytest.mark.parametrize(
    "name",
    [
        "flash_fwd_kernel",
        "fmha_cutlassF_bf16_aligned_64x128",
        "cudnn_generated_fort_native_sdpa_sm90_flash_fprop",
        "aten::scaled_dot_product_attention",
    ],
)
def test_attention_is_known_by_name(name):
    assert is_attention(name)


@pytest.mark.parametrize("name", ["ampere_bf16_gemm_128x128", "softmax_warp_forward", "adam"])
def test_other_kernels_are_not_taken_for_attention(name):
    assert not is_attention(name)


def test_a_kernel_that_stalls_in_one_step_is_no_longer_sequence():
    more = np.zeros((4, 8))
    more[2, 4] = 12e6
    assert _is_of_one_step(more - more.mean(axis=0))
    drawn = np.random.default_rng(0).normal(size=(4, 8))
    assert not _is_of_one_step(drawn - drawn.mean(axis=0))
