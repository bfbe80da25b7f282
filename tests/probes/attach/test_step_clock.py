"""Which optimizer's steps count."""

from __future__ import annotations

import pytest
from distprof_probes.attach.step_clock import PATIENCE, StepClock, stepped_by
from hypothesis import given
from hypothesis import strategies as st


class Adam:
    """Stands for an optimizer."""


class Muon:
    """Another."""


def _step(clock: StepClock, *optimizers: object) -> int:
    """Step them one after the other; how many of these end a step of the training."""
    ticks = 0
    for optimizer in optimizers:
        clock.begins(optimizer)
        ticks += clock.ticks(optimizer)
    return ticks


def test_of_two_optimizers_the_first_seen_counts_and_the_other_is_counted() -> None:
    clock, first, second = StepClock(), Adam(), Muon()
    assert sum(_step(clock, first, second) for _ in range(10)) == 10
    assert clock.num_others == {"Muon": 10}
    assert clock.notes == []


def test_a_wrapper_that_steps_around_another_counts_once() -> None:
    """ZeroRedundancyOptimizer: its own step begins first and ends last."""
    clock, outer, inner = StepClock(), Muon(), Adam()
    ticks = []
    for _ in range(3):
        clock.begins(outer)
        clock.begins(inner)
        ticks.append(clock.ticks(inner))
        ticks.append(clock.ticks(outer))
    assert ticks == [False, True] * 3


def test_the_clock_passes_on_when_its_optimizer_is_gone() -> None:
    clock, second = StepClock(), Muon()
    first = Adam()
    assert _step(clock, first) == 1
    del first
    assert _step(clock, second, second) == 2
    assert "is gone" in clock.notes[0]
    assert "Muon" in clock.notes[0]


def test_the_clock_passes_on_when_its_optimizer_stands_still() -> None:
    """A discriminator trained alone first, the generator from then on."""
    clock, first, second = StepClock(), Adam(), Muon()
    _step(clock, first)
    ticks = [_step(clock, second) for _ in range(PATIENCE + 10)]
    assert ticks == [0] * (PATIENCE - 1) + [1] * 11
    assert clock.num_others == {"Muon": PATIENCE}


@given(st.lists(st.integers(0, 3), min_size=1, max_size=200))
def test_every_step_is_a_tick_or_counted_as_anothers(order: list[int]) -> None:
    clock, optimizers = StepClock(), [Adam(), Muon(), Adam(), Muon()]
    ticks = sum(_step(clock, optimizers[index]) for index in order)
    handed_over = len(clock.notes)
    assert ticks + clock.num_others.total() == len(order) + handed_over


def _update(clock: StepClock, optimizer: object, groups: int) -> list[bool]:
    """An update as ZeRO makes it: a call for each group; where the clock ticked, owed one first."""
    ticked = [clock.new_gradients()]
    for group in range(groups):
        assert not clock.begins(optimizer, [group])
        ticked.append(clock.ticks(optimizer))
    return ticked


def test_calls_for_each_parameter_group_are_one_update_that_ends_with_the_last() -> None:
    """The first update cannot know yet how many calls there will be."""
    clock, optimizer = StepClock(), Adam()
    ticked = [_update(clock, optimizer, groups=3) for _ in range(5)]
    assert ticked == [[False, True, False, False]] + [[False, False, False, True]] * 4


def test_an_update_with_fewer_calls_than_the_one_before_is_not_lost() -> None:
    clock, optimizer = StepClock(), Adam()
    ticks = [sum(_update(clock, optimizer, groups)) for groups in (2, 2, 1, 2, 2, 3, 1, 1)]
    assert ticks == [1, 1, 0, 2, 1, 1, 0, 2]
    assert not clock.new_gradients()


def test_without_a_view_of_the_gradients_the_same_parameters_begin_an_update() -> None:
    clock, optimizer, ticks = StepClock(), Adam(), 0
    for group in [0, 1] * 10:
        ticks += clock.begins(optimizer, [group])
        ticks += clock.ticks(optimizer)
    assert ticks == 10


@given(st.lists(st.integers(1, 5), min_size=1, max_size=50))
def test_each_update_is_one_step_however_many_calls_it_takes(calls: list[int]) -> None:
    clock, optimizer = StepClock(), Adam()
    ticks = sum(sum(_update(clock, optimizer, groups)) for groups in calls)
    assert ticks + clock.new_gradients() == len(calls)


def test_what_is_stepped_is_marked_by_the_first_tensors_with_gradients() -> None:
    torch = pytest.importorskip("torch")
    tensors = [torch.nn.Parameter(torch.zeros(2)) for _ in range(4)]
    groups = [{"params": tensors[:2]}, {"params": []}, {"params": tensors[2:]}]
    optimizer = type("Optimizer", (), {"param_groups": groups})()
    assert stepped_by(optimizer) == [id(tensors[0]), id(tensors[2])]
    tensors[1].grad = torch.zeros(2)
    assert stepped_by(optimizer) == [id(tensors[1])]
    assert stepped_by(object()) == []
