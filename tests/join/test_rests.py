"""How long a step lasts after the peers arrive at a collective, from the mean of several steps."""

from __future__ import annotations

import numpy as np
import pytest

from distprof.join.gpu_waits import _MOST_GROUPS_KEPT, LEAST_PEERS, Rests

STEP = 100.0
TRANSFER = 2.0


def durations(*waits: tuple[float, ...]) -> np.ndarray:
    """Of each member, its waits in the parts, and the transfer."""
    return np.array(waits) + TRANSFER


def test_one_step_by_hand():
    """Rank 0 arrives last at both: after 30 ms, and 60 ms later. Then the step takes 6 ms more."""
    took = durations((0, 0), (10, 40), (10, 40))
    until = Rests(40).peers_until("g", took, took, STEP)
    # the first ends 42 ms before the step does: the second takes its members up to 42 ms
    assert until[0].tolist() == [STEP - 42 - 12, STEP - 42]
    assert until[1].tolist() == pytest.approx([STEP - 42 - 7, STEP - 22])


def test_the_mean_of_several_steps_counts_without_the_longest():
    rests = Rests(3)
    found = [
        rests.peers_until("g", durations((0,), (wait,)), durations((0,), (wait,)), STEP)[0, 0]
        for wait in (10, 30, 20, 20, 20)
    ]
    assert found == [STEP - 12, STEP - 12, STEP - 17, STEP - 22, STEP - 22]


def test_groups_do_not_mix_and_other_operations_begin_again():
    rests = Rests(40)
    one, two = durations((0, 0), (10, 10)), durations((0,), (30,))
    rests.peers_until("a", one, one, STEP)
    assert rests.peers_until("b", two, two, STEP)[0, 0] == STEP - 32
    assert rests.peers_until("a", two, two, STEP)[0, 0] == STEP - 32


def test_a_large_group_has_one_bound_for_all_members():
    took = durations(*((float(rank),) for rank in range(LEAST_PEERS)))
    assert Rests(40).peers_until("g", took, took, STEP).shape == (1, 1)


def test_a_short_part_counts_as_a_fifth_of_the_step():
    took = durations((0,), (95,))
    assert Rests(40).peers_until("g", took, took, STEP)[0, 0] == STEP / 5


def test_names_of_groups_that_come_and_go_do_not_fill_the_memory():
    rests, took = Rests(2), durations((0,), (1,))
    for number in range(_MOST_GROUPS_KEPT + 100):
        rests.peers_until(number, took, took, STEP)
    assert len(rests._recent) == _MOST_GROUPS_KEPT
