"""FLOP of a token: by hand, and against what recomputation adds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distprof.costs.transformer import TrainedModel
from distprof.sections.efficiency.models import preset


def trained(name="llama2-7b", **fields):
    shape = preset(name)
    usual = {
        "name": name,
        "source": "test",
        "parameters": shape.parameters,
        "active_parameters": shape.active_parameters,
        "shape": shape,
        "sequence": 4096,
    }
    return TrainedModel(**{**usual, **fields})


def test_llama_7b_by_hand():
    """6 · (6.738 B − 131 M looked up) + 12 · 32 · 4096 · 4096 / 2 for causal attention."""
    flop = 6 * (6_738_415_616 - 32000 * 4096) + 12 * 32 * 4096 * 4096 / 2
    assert trained().flop_per_token == pytest.approx(flop, rel=1e-12)


def test_without_a_sequence_attention_is_left_out():
    without = trained(sequence=None).flop_per_token
    assert trained().flop_per_token - without == pytest.approx(6 * 32 * 4096 * 4096)


def test_parameters_alone_give_six_of_each():
    """Formula sheet: 6N per token, 8N with full recomputation."""
    model = trained(shape=None, parameters=7e9, active_parameters=7e9)
    assert model.flop_per_token == 42e9
    again = trained(shape=None, parameters=7e9, active_parameters=7e9, recomputation="full")
    assert again.computed_flop_per_token == pytest.approx(56e9)


def test_experts_count_as_far_as_a_token_passes_them():
    model = trained("mixtral-8x7b")
    assert model.flop_per_token < 6.5 * model.active_parameters < 2 * model.parameters


def test_full_recomputation_repeats_blocks_and_not_the_head():
    model = trained(recomputation="full")
    head = 6 * 32000 * 4096
    blocks = model.flop_per_token - head
    assert model.computed_flop_per_token == pytest.approx(head + 4 / 3 * blocks)


@given(
    st.sampled_from(("llama2-7b", "gpt3-175b", "mixtral-8x7b", "deepseek-v3")),
    st.integers(1, 1 << 17),
)
def test_more_recomputation_computes_more_and_needs_the_same(name, sequence):
    models = [
        trained(name, sequence=sequence, recomputation=how) for how in ("none", "selective", "full")
    ]
    computed = [model.computed_flop_per_token for model in models]
    assert len({model.flop_per_token for model in models}) == 1
    assert computed[0] == pytest.approx(models[0].flop_per_token)
    assert computed == sorted(computed)
    assert computed[2] <= 4 / 3 * computed[0] * (1 + 1e-12)


def test_full_recomputation_is_the_published_count_of_megatron():
    """Narayanan et al. 2021: 96·l·h²(1 + S/6h + V/16lh) a token, here with causal attention."""
    layers, hidden, vocabulary, sequence = 96, 12288, 50257, 2048
    published = 96 * layers * hidden**2
    published *= 1 + sequence / (12 * hidden) + vocabulary / (16 * layers * hidden)
    model = trained("gpt3-175b", sequence=sequence, recomputation="full")
    assert model.computed_flop_per_token == pytest.approx(published, rel=2e-3)
