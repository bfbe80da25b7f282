"""The transformer: its size, its weights, and that a token sees only the past."""

from __future__ import annotations

import pytest
import torch
from distprof_runs.options import ModelOptions
from distprof_runs.workloads.model import Transformer, initialise, loss_of

SMALL = ModelOptions(
    layers=3, hidden=32, heads=4, kv_heads=2, ffn=48, sequence=8, vocabulary=40
).resolved()


def num_parameters(preset: str) -> int:
    with torch.device("meta"):
        model = Transformer(ModelOptions(preset=preset).resolved())
    return sum(weight.numel() for weight in model.parameters())


@pytest.mark.parametrize(
    ("preset", "expected"),
    [
        # embedding and output 2·1024·256, 4 blocks of 4·256² + 3·256·1024 + 2·256, last norm 256
        ("tiny", 524_288 + 4 * (262_144 + 786_432 + 512) + 256),
        ("7b", 6_738_415_616),  # as published for Llama 2 7B
        ("13b", 13_015_864_320),  # Llama 2 13B
        ("70b", 70_553_706_496),  # Llama 3 70B
    ],
)
def test_number_of_parameters(preset: str, expected: int) -> None:
    assert num_parameters(preset) == expected


def weights(model: Transformer) -> dict[str, torch.Tensor]:
    return {name: weight.detach().clone() for name, weight in model.named_parameters()}


def test_a_part_gets_the_weights_that_the_whole_has() -> None:
    whole, part = Transformer(SMALL), Transformer(SMALL, first=1, count=2)
    initialise(whole, 7)
    initialise(part, 7)
    expected = weights(whole)
    assert set(weights(part)) < set(expected)
    assert "blocks.2.attention.wq.weight" in weights(part)
    for name, weight in weights(part).items():
        assert torch.equal(weight, expected[name]), name


def test_weights_depend_on_seed_and_name() -> None:
    model = Transformer(SMALL)
    initialise(model, 0)
    first = weights(model)
    initialise(model, 1)
    second = weights(model)
    name = "blocks.0.attention.wq.weight"
    assert not torch.equal(first[name], second[name])
    assert not torch.equal(first[name], first["blocks.1.attention.wq.weight"])
    assert torch.equal(first["norm.weight"], torch.ones(32))
    assert first["blocks.0.feed_forward.w2.weight"].std().item() == pytest.approx(48**-0.5, rel=0.1)


def test_stages_one_after_another_are_the_whole_model() -> None:
    whole = Transformer(SMALL)
    stages = [Transformer(SMALL, count=1), Transformer(SMALL, first=1, count=2)]
    for model in (whole, *stages):
        initialise(model, 3)
    tokens = torch.arange(8)[None]
    assert torch.equal(stages[1](stages[0](tokens)), whole(tokens))


def test_a_token_sees_only_those_before_it() -> None:
    model = Transformer(SMALL)
    initialise(model, 0)
    tokens = torch.arange(8)[None]
    changed = tokens.clone()
    changed[0, 5] = 39
    before, after = model(tokens), model(changed)
    assert torch.allclose(before[0, :5], after[0, :5], atol=1e-6)
    assert not torch.allclose(before[0, 5:], after[0, 5:], atol=1e-3)


def test_loss_of_equal_logits_is_the_logarithm_of_the_vocabulary() -> None:
    loss = loss_of(torch.zeros(2, 8, 40), torch.zeros(2, 8, dtype=torch.int64))
    assert loss.item() == pytest.approx(3.6889, abs=1e-4)  # ln 40
