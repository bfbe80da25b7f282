"""Whether one run's steps are longer than the other's, or chance explains it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distprof.verbs.compare.measure import compare_steps, median_interval

TIMES = st.lists(st.integers(1, 10**12), min_size=1, max_size=60)


def test_five_steps_have_no_interval_and_six_have_their_extremes():
    assert median_interval([5, 1, 4, 2, 3]) is None
    assert median_interval([6, 5, 1, 4, 2, 3]) == (1, 6)


def test_ten_steps_leave_out_one_on_each_side():
    # P(at most 1 of 10 below the median) = 11 / 1024 = 1.07 %, at most 2: 5.5 %
    assert median_interval(range(1, 11)) == (2, 9)


@pytest.mark.parametrize("count", [6, 9, 25, 120, 401, 1_000])
def test_the_interval_holds_the_median_in_95_of_100_cases(count):
    rng = np.random.default_rng(count)
    samples = rng.lognormal(sigma=0.4, size=(2_000, count)) * 1e6  # its median is 1e6
    bounds = [median_interval(row.astype(np.int64).tolist()) for row in samples]
    held = np.mean([low <= 1_000_000 <= high for low, high in bounds])
    assert held >= 0.94


def test_what_is_alike_is_not_called_slower():
    rng = np.random.default_rng(1)
    first, second = (rng.normal(1e8, 3e6, 40).astype(int).tolist() for _ in range(2))
    assert compare_steps(first, second).trend == "alike"


def test_ten_percent_more_is_slower_and_less_is_faster():
    rng = np.random.default_rng(2)
    first = rng.normal(1e8, 3e6, 40).astype(int).tolist()
    second = rng.normal(1.1e8, 3e6, 40).astype(int).tolist()
    change = compare_steps(first, second)
    assert change.trend == "slower"
    assert change.change_ratio == pytest.approx(0.1, abs=0.02)
    assert compare_steps(second, first).trend == "faster"


def test_six_steps_with_an_outlier_each_still_show_18_percent():
    """The intervals of six values are their extremes, which one slow step each makes overlap."""
    first, second = [100, 101, 99, 100, 102, 150], [82, 83, 81, 82, 84, 120]
    assert compare_steps(first, second).trend == "faster"
    assert compare_steps(second, first).trend == "slower"
    assert compare_steps(first, second).p_value == pytest.approx(2 * 19 / 924)


def test_three_steps_a_side_cannot_rule_out_chance():
    assert compare_steps([100, 101, 102], [200, 201, 202]).trend == "unknown"


def test_equal_runs_are_called_different_in_one_case_of_twenty():
    """5 % of 600 draws, give or take two standard deviations."""
    rng = np.random.default_rng(5)
    draws = rng.lognormal(sigma=0.2, size=(600, 2, 8)) * 1e8
    told = [compare_steps(*pair.astype(int).tolist()).trend for pair in draws]
    assert 0.03 <= sum(trend != "alike" for trend in told) / len(told) <= 0.07


def test_medians_and_ranks_that_disagree_show_no_trend():
    """Most values of the second run are larger, its median is smaller."""
    first = [10, 10, 10, 10, 11, 11, 11, 11, 11]
    second = [9, 9, 9, 9, 9, 90, 90, 90, 90]
    assert compare_steps(first, second).trend == "alike"


def test_without_steps_nothing_is_said():
    change = compare_steps([], [3, 4])
    assert change.trend == "unknown"
    assert change.change_ns is None
    assert change.first_ns is None
    assert change.second_ns == 3


@given(TIMES)
def test_a_run_is_never_slower_than_itself(times):
    assert compare_steps(times, times).trend in ("alike", "unknown")
    assert compare_steps(times, times).change_ns == 0


@given(TIMES, TIMES)
def test_turned_round_the_change_is_turned_round(first, second):
    forth, back = compare_steps(first, second), compare_steps(second, first)
    assert forth.change_ns == -back.change_ns
    assert {forth.trend, back.trend} in ({"slower", "faster"}, {"alike"}, {"unknown"})
