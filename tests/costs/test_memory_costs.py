"""Memory: the check values of the formula sheet, and that all shapes agree with the GPT formula."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distprof.costs.transformer import (
    Transformer,
    activation_bytes_per_token,
    model_state_bytes,
)

GPT3 = Transformer(
    layers=96, hidden=12288, heads=96, kv_heads=96, ffn=49152, vocabulary=50257, gated=False,
    dropout=True,
)  # fmt: skip


@pytest.mark.parametrize(
    ("billions", "ranks", "expected_gb"),
    [(7, 8, (112, 38.5, 26.25, 14)), (7.5, 64, (120, 31.4, 16.6, 1.9))],
)
def test_state_by_zero_stage(billions, ranks, expected_gb):
    found = [
        model_state_bytes(billions * 1e9, zero_stage=stage, shards=ranks).total / 1e9
        for stage in range(4)
    ]
    assert found == pytest.approx(expected_gb, abs=0.05)


def test_gradients_in_fp32_take_18_bytes_per_parameter():
    assert model_state_bytes(1e9, fp32_gradients=True).total == 18e9


def test_an_unknown_stage_is_refused():
    with pytest.raises(ValueError, match="ZeRO stage 4"):
        model_state_bytes(1, zero_stage=4)


def korthikanti(*, tensor=1, sequence_parallel=False, recomputation="none"):
    """Formula sheet: bytes per token of a GPT-3 block with S = 2048, H = 12288 and a = 96."""
    scores = 5 * 96 * 2048 / 12288 if recomputation == "none" else 0.0
    if sequence_parallel:
        return 12288 / tensor * (34 + scores)
    return 12288 * (10 + 24 / tensor + scores / tensor)


def test_activations_of_gpt3():
    token = activation_bytes_per_token(GPT3, 2048)
    assert 96 * 2048 * token / 1e9 == pytest.approx(275.4, abs=0.05)


def test_full_recomputation_keeps_the_input_of_a_block():
    assert activation_bytes_per_token(GPT3, 2048, recomputation="full") == 2 * 12288


@pytest.mark.parametrize("recomputation", ["none", "selective"])
@given(tensor=st.sampled_from([1, 2, 4, 8]), parallel=st.booleans())
def test_the_formula_of_any_shape_is_korthikantis_for_a_gpt(recomputation, tensor, parallel):
    how = {"tensor": tensor, "sequence_parallel": parallel, "recomputation": recomputation}
    assert activation_bytes_per_token(GPT3, 2048, **how) == pytest.approx(korthikanti(**how))
