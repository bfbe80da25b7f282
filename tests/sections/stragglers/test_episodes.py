"""Who is slow in a table of ranks and steps: sets, in turn, from a step on, in some steps."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distprof.sections.stragglers.slowness import Limits, find_episodes, find_noisy_node
from distprof.terms import StragglerPattern

LIMITS = Limits(lasting_ns=20.0, cell_ns=60.0, again_ns=60.0)
HOSTS = Limits(lasting_ns=20.0, cell_ns=120.0, again_ns=10.0)


def table(ranks=8, steps=10, noise=2.0, seed=0):
    return 1000 + np.random.default_rng(seed).normal(0, noise, (ranks, steps))


def found(values, group=None, limits=LIMITS):
    return list(find_episodes(values, group or range(len(values)), limits))


@pytest.mark.parametrize("slow", [(3,), (0, 5), (4, 5, 6, 7), (0, 2, 4, 6)])
def test_a_set_of_up_to_half_of_the_ranks_is_one_episode(slow):
    values = table()
    values[list(slow)] += 100
    (episode,) = found(values)
    assert episode.positions == slow
    assert episode.pattern is StragglerPattern.PERSISTENT
    assert episode.per_step_ns == pytest.approx(102, abs=4)


def test_one_fast_rank_does_not_make_the_others_slow():
    values = table()
    values[2] -= 100
    assert found(values) == []


def test_slowness_from_a_step_on_has_its_first_step():
    values = table()
    values[1, 4:] += 80
    (episode,) = found(values)
    assert (episode.positions, episode.since) == ((1,), 4)
    assert episode.steps == (4, 5, 6, 7, 8, 9)


def test_one_or_two_steps_of_one_rank_are_transient():
    values = table()
    values[6, [2, 7]] += 150
    (episode,) = found(values)
    assert episode.pattern is StragglerPattern.TRANSIENT
    assert (episode.positions, episode.steps) == ((6,), (2, 7))


def test_another_rank_in_each_step_rotates():
    values = table()
    for step in range(10):
        values[step % 8, step] += 150
    (episode,) = found(values)
    assert episode.pattern is StragglerPattern.ROTATING
    assert episode.positions == tuple(range(8))


def test_two_ranks_that_are_slow_by_unlike_times_are_both_found():
    values = table()
    values[1] += 60
    values[4] += 90
    (episode,) = found(values)
    assert episode.positions == (1, 4)


@given(st.integers(2, 16), st.integers(3, 12), st.integers(0, 10_000))
def test_noise_alone_names_nobody(ranks, steps, seed):
    assert found(table(ranks, steps, noise=3.0, seed=seed)) == []


@given(st.integers(0, 10_000), st.permutations(range(6)))
def test_renumbering_ranks_renumbers_episodes(seed, order):
    values = table(6, 8, seed=seed)
    values[[1, 3]] += 100
    (before,) = found(values)
    (after,) = found(values[list(order)])
    assert sorted(order[position] for position in after.positions) == list(before.positions)


@pytest.mark.parametrize("steps", [(1, 4, 8), (0, 2, 4, 6, 8)])
def test_stalls_that_are_small_alone_count_together(steps):
    """A host that sleeps again and again, of which its lead hides more or less."""
    values = table()
    values[5, list(steps)] += 90
    (episode,) = found(values, limits=HOSTS)
    assert episode.positions == (5,)
    assert set(episode.steps) >= set(steps)


def test_all_stalls_of_a_rank_that_is_named_belong_to_it():
    values = table()
    values[5, [1, 6]] += [150, 40]
    (episode,) = found(values, limits=HOSTS)
    assert (episode.positions, episode.steps) == ((5,), (1, 6))


@pytest.mark.parametrize("stalls", [{1: 100}, {1: 40, 6: 40}])
def test_a_small_stall_or_two_are_not_worth_a_word(stalls):
    values = table()
    values[5, list(stalls)] += list(stalls.values())
    assert found(values, limits=HOSTS) == []


def stalls(ranks, mean_ns, seed):
    """Ranks that stall in each step for as long as chance decides, and as many that never do."""
    dice = np.random.default_rng(seed)
    return np.concatenate((dice.exponential(mean_ns, (ranks, 12)), np.zeros((ranks, 12))))


@pytest.mark.parametrize("seed", range(20))
def test_stalls_of_chance_length_on_all_ranks_of_a_node_are_those_of_the_node(seed):
    found = find_noisy_node(stalls(4, 1000, seed), [(0, 1, 2, 3), (4, 5, 6, 7)], 200)
    assert found is not None
    assert tuple(found.positions) == (0, 1, 2, 3)


@pytest.mark.parametrize("seed", range(20))
def test_stalls_of_one_rank_or_of_all_are_of_no_node(seed):
    nodes = [(0, 1, 2, 3), (4, 5, 6, 7)]
    one = stalls(4, 1000, seed)
    one[1:] = 0
    everywhere = np.random.default_rng(seed).exponential(1000, (8, 12))
    assert find_noisy_node(one, nodes, 200) is None
    assert find_noisy_node(everywhere, nodes, 200) is None
