"""Volumes per step: the check values of the formula sheet."""

from __future__ import annotations

import pytest

from distprof.costs import collectives as volumes


def test_tensor_parallelism_of_gpt3():
    layer = volumes.tensor_parallel_bytes(8, 1, 2048, 12288)
    assert layer / 1e6 == pytest.approx(352.3, abs=0.05)
    assert 96 * layer / 1e9 == pytest.approx(33.8, abs=0.05)


def test_a_pipeline_of_eight():
    boundary = volumes.pipeline_bytes(512 // 32, 2048, 8192)
    assert boundary / 1e9 == pytest.approx(1.074, abs=0.0005)
    assert boundary * 32 * 7 / 1e9 == pytest.approx(240.5, abs=0.1)


@pytest.mark.parametrize(
    ("parameters", "ms"), [(25e6, 0.5), (340e6, 6.8), (1.5e9, 30), (7e9, 140), (70e9, 1400)]
)
def test_gradients_at_200_gb_per_s(parameters, ms):
    """Over so many ranks that (P - 1) / P is 1."""
    sent = volumes.data_parallel_bytes(100_000, parameters)
    assert sent / 200e9 * 1e3 == pytest.approx(ms, rel=0.001)


def test_full_sharding_sends_half_as_much_again_and_without_resharding_the_same():
    ddp = volumes.data_parallel_bytes(8, 1e9)
    assert volumes.fully_sharded_bytes(8, 1e9) == pytest.approx(1.5 * ddp)
    assert volumes.fully_sharded_bytes(8, 1e9, reshards=False) == pytest.approx(ddp)


def test_experts_and_sequences():
    assert volumes.expert_parallel_bytes(8, 2, 1000, 10) == 4 * 2 * 1000 * 10 * 2 * 7 / 8
    assert volumes.ring_attention_bytes(4, 1, 1000, 10) == 3 * 3 * (2 * 250 * 10 * 2)


def test_alone_nobody_sends():
    assert volumes.data_parallel_bytes(1, 1e9) == volumes.fully_sharded_bytes(1, 1e9) == 0
    assert volumes.ring_attention_bytes(1, 1, 10, 10) == 0
