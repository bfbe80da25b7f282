"""Which optimizer's steps count."""

from __future__ import annotations

from distprof_probes.attach.step_clock import PATIENCE, StepClock
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
