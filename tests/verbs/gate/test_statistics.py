"""Rank tests against all orders counted one by one."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distprof.verbs.gate import aligned_ranks, least_pairs, least_repeats, mann_whitney

few = st.lists(st.integers(0, 6).map(float), min_size=1, max_size=5)


@settings(max_examples=60, deadline=None)
@given(first=few, second=few)
def test_mann_whitney_counts_every_choice_ties_included(first, second):
    values = np.array([*first, *second])
    ranks = [(values < v).sum() + (values <= v).sum() for v in values]
    seen = sum(ranks[len(first) :])
    sums = [sum(each) for each in itertools.combinations(ranks, len(second))]
    assert mann_whitney(first, second) == pytest.approx(sum(s >= seen for s in sums) / len(sums))


def test_mann_whitney_by_hand():
    assert mann_whitney([1, 2, 3], [4, 5, 6]) == pytest.approx(1 / 20)
    assert mann_whitney([4, 5, 6], [1, 2, 3]) == 1
    assert mann_whitney([], [1]) == 1
    assert mann_whitney([1, 1], [1, 1]) == 1


def test_many_values_are_approximated_and_join_the_exact_ones():
    random = np.random.default_rng(0)
    first, second = random.normal(0, 1, 30), random.normal(0.4, 1, 30)
    exact = mann_whitney(first, second)
    near = mann_whitney([*first, -9], [*second, -8])
    assert near == pytest.approx(exact, abs=0.003)
    assert mann_whitney([1.0] * 40, [1.0] * 40) == 1


def test_aligned_ranks_by_hand():
    low, high = np.arange(8.0), np.arange(8.0) + 100
    assert aligned_ranks(low, high) == pytest.approx(1 / 256)
    assert aligned_ranks(high, low) == 1
    assert aligned_ranks([], []) == 1


def test_one_struck_run_of_the_baseline_does_not_outvote_nine_pairs():
    before = np.array([100.0, 101, 99, 100, 140, 101, 100, 99, 100, 101])
    after = np.array([105.0, 106, 104, 105, 105, 106, 105, 104, 105, 106])
    assert aligned_ranks(before, after) <= 0.01


def test_drift_larger_than_the_change_does_not_hide_it():
    drift = np.cumsum(np.full(12, 3.0))
    wiggle = np.tile([0.2, -0.2, 0.1], 4)
    assert aligned_ranks(100 + drift, 105 + drift + wiggle) <= 0.01


def test_exchanging_pairs_at_random_gives_each_level_no_more_often_than_it_says():
    random = np.random.default_rng(1)
    ps = [aligned_ranks(*random.standard_t(2, (2, 9))) for _ in range(1_000)]
    for level in (0.01, 0.05, 0.2):
        assert np.mean(np.array(ps) <= level) <= level + 3 * np.sqrt(level / 1_000)


def test_sixty_pairs_and_more_are_approximated():
    random = np.random.default_rng(2)
    base = random.normal(0, 1, 80)
    assert aligned_ranks(base, base + 1) < 1e-6
    assert aligned_ranks(base, base) == pytest.approx(1, abs=0.6)


def test_repeats_that_a_level_takes_at_least():
    assert least_pairs(0.01) == 7  # 1/128
    assert least_repeats(0.01) == 5  # 1/252
    assert least_repeats(0.05) == 3  # 1/20
    assert least_repeats(0.05, fixed=20) == 1  # 1/21
    assert least_repeats(0.01, fixed=1) == 99
