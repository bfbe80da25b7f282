"""Blocks that sleep: which half of a step sleeps for how long. No test here sleeps."""

from __future__ import annotations

import pytest
import torch
from distprof_runs.options import ModelOptions, TrainingOptions
from distprof_runs.workloads.model import Transformer, initialise
from distprof_runs.workloads.sleep import SleepBlock, Sleeper, add_sleep, make_blocks_sleep

SMALL = ModelOptions(
    layers=2, hidden=16, heads=2, kv_heads=2, ffn=16, sequence=4, vocabulary=8
).resolved()
TIMES = TrainingOptions(compute="sleep", forward_ms=5.0, backward_ms=12.0)


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Milliseconds, in order."""
    times: list[float] = []

    def remember(sleeper: Sleeper, milliseconds: float, device: torch.device) -> None:
        times.append(milliseconds * sleeper.slowdown)

    monkeypatch.setattr(Sleeper, "sleep", remember)
    return times


def block() -> SleepBlock:
    made = SleepBlock(16, TIMES)
    initialise(made, 0)
    return made


def hidden(*, needs_gradient: bool = True) -> torch.Tensor:
    return torch.ones(1, 4, 16, requires_grad=needs_gradient)


def test_a_whole_step_sleeps_forward_and_both_halves_of_backward(slept: list[float]) -> None:
    out = block()(hidden(), torch.arange(4))
    assert slept == [5.0]
    out.sum().backward()
    assert slept == [5.0, 6.0, 6.0]


def test_the_input_gradient_alone_sleeps_one_half(slept: list[float]) -> None:
    x = hidden()
    out = block()(x, torch.arange(4))
    torch.autograd.grad(out.sum(), x)
    assert slept == [5.0, 6.0]


def test_the_weight_gradient_alone_sleeps_one_half(slept: list[float]) -> None:
    sleeping = block()
    out = sleeping(hidden(), torch.arange(4))
    torch.autograd.grad(out.sum(), sleeping.weight)
    assert slept == [5.0, 6.0]


def test_a_slowdown_stretches_all_sleeps(slept: list[float]) -> None:
    sleeping = block()
    sleeping.sleeper.slowdown = 1.5
    sleeping(hidden(), torch.arange(4)).sum().backward()
    assert slept == [7.5, 9.0, 9.0]


def test_the_result_is_no_view(slept: list[float]) -> None:
    """Zero-bubble schedules detach a stage's output in place, which a view does not allow."""
    assert not block()(hidden(), torch.arange(4))._is_view()


def test_blocks_are_replaced_and_gradients_reach_everything(slept: list[float]) -> None:
    model = Transformer(SMALL)
    make_blocks_sleep(model, TIMES)
    initialise(model, 0)
    model(torch.zeros(1, 4, dtype=torch.int64)).sum().backward()
    assert all(isinstance(item, SleepBlock) for item in model.blocks.values())
    assert all(weight.grad is not None for weight in model.parameters())
    assert sum(slept) == 2 * (5.0 + 12.0)


def test_nothing_is_replaced_when_computing_for_real() -> None:
    model = Transformer(SMALL)
    make_blocks_sleep(model, TrainingOptions())
    add_sleep(model, TrainingOptions())
    assert not any(isinstance(item, SleepBlock) for item in model.blocks.values())
    assert not any(item._forward_pre_hooks for item in model.blocks.values())


def test_added_sleep_leaves_the_result_as_it_is(slept: list[float]) -> None:
    model = Transformer(SMALL)
    initialise(model, 0)
    tokens = torch.arange(4)[None]
    expected = model(tokens)
    add_sleep(model, TIMES)
    got = model(tokens)
    got.sum().backward()
    assert torch.equal(got, expected)
    assert slept == [5.0, 5.0, 12.0, 12.0]
