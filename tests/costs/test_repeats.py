"""Centres and intervals of a few repeats."""

import math

import numpy as np
import pytest

from distprof.costs.repeats import (
    compare_pairs,
    compare_repeats,
    pseudo_median,
    step_interval,
    student_quantile,
)
from tests.drawn import some


def test_the_centre_by_hand():
    assert pseudo_median([1.0, 2.0, 6.0]) == 2.75  # of 1, 1.5, 2, 3.5, 4, 6
    assert pseudo_median([5.0]) == 5
    assert pseudo_median([[1.0, 1.0], [2.0, 4.0]]).tolist() == [1, 3]


def test_one_outlier_hardly_moves_the_centre():
    calm = [1.0, 1.01, 0.99, 1.02, 0.98, 1.0]
    assert pseudo_median([*calm, 50.0]) == pytest.approx(1.0, abs=0.02)


def test_quantiles_of_student():
    assert student_quantile(1) == 12.706
    assert student_quantile(9.9) == 2.262
    assert student_quantile(0.5) == math.inf
    assert student_quantile(30) == pytest.approx(2.042, rel=0.01)
    assert student_quantile(1e9) == pytest.approx(1.96)


@pytest.mark.parametrize("count", some([3, 5, 10], always=lambda count: count < 10))
@pytest.mark.parametrize("is_paired", [True, False])
def test_intervals_of_few_repeats_hold_the_truth(count, is_paired):
    random = np.random.default_rng(count)
    compare = compare_pairs if is_paired else compare_repeats
    hits = 0
    for seed in range(300):
        first, second = random.normal(0, 1, count), random.normal(0.5, 1, count)
        interval = compare(first, second, seed=seed)
        hits += interval.low <= 0.5 <= interval.high
    assert hits / 300 >= 0.92


def test_what_pairs_share_cancels():
    drift = np.linspace(0, 10, 8)
    noise = np.array([0.1, -0.1, 0.05, 0.0, -0.05, 0.1, -0.1, 0.0])
    paired = compare_pairs(drift, drift + 1 + noise)
    alone = compare_repeats(drift, drift + 1 + noise)
    assert 0.8 < paired.low <= paired.value <= paired.high < 1.2
    assert alone.low < 0 < alone.high


def test_a_single_repeat_tells_nothing_of_the_spread():
    for interval in (compare_repeats([1.0], [2.0, 2.0]), compare_pairs([1.0], [2.0])):
        assert interval.value == 1
        assert (interval.low, interval.high) == (-math.inf, math.inf)


def test_without_any_spread_the_interval_is_the_value():
    interval = compare_repeats([3.0] * 4, [5.0] * 4)
    assert (interval.low, interval.value, interval.high) == (2, 2, 2)


def test_the_same_seed_gives_the_same_interval():
    random = np.random.default_rng(0)
    first, second = random.normal(size=6), random.normal(size=6)
    assert compare_repeats(first, second) == compare_repeats(first, second)


def test_steps_alike_their_neighbours_widen_the_interval_of_their_median():
    random = np.random.default_rng(4)
    free = random.normal(0, 1, 400)
    alike = np.repeat(random.normal(0, 1, 50), 8)
    width = [interval.high - interval.low for interval in map(step_interval, (free, alike))]
    assert width[1] > 1.4 * width[0]
    assert step_interval([1.0, 2.0]).low == -math.inf


def test_many_repeats_use_the_median():
    values = np.arange(101.0) ** 2
    assert pseudo_median(values) == 2500
