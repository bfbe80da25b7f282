"""Our statistics, held against scipy's: ours stay at run time, scipy is only asked here."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest

from distprof.costs.fabric import _huber, _robust_line, _tukey
from distprof.costs.repeats import (
    Level,
    compare_pairs,
    compare_repeats,
    pseudo_median,
    student_quantile,
    winsorized,
)
from distprof.costs.scaling import _fieller, _least_squares, _Line
from distprof.sections.own_time import chance_of_mean
from distprof.verbs.gate import aligned_ranks, mann_whitney
from tests.optional import optional

stats = optional("scipy.stats")
optimize = optional("scipy.optimize")
special = optional("scipy.special")

SIZES = [(1, 1), (3, 3), (2, 7), (5, 4), (10, 10), (29, 31)]
COUNTS = (3, 5, 8, 12)
LEVELS = get_args(Level)
NORMAL = {90: 1.645, 95: 1.96, 98: 2.326}


@pytest.mark.parametrize(("count", "other"), SIZES)
def test_rank_sums_without_ties_are_exact(count: int, other: int) -> None:
    random = np.random.default_rng(count)
    first, second = random.normal(size=count), random.normal(0.4, 1, other)
    expected = stats.mannwhitneyu(second, first, alternative="greater", method="exact").pvalue
    assert mann_whitney(first, second) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("seed", range(6))
def test_rank_sums_with_ties_count_every_permutation(seed: int) -> None:
    random = np.random.default_rng(seed)
    first, second = random.integers(0, 4, 5), random.integers(0, 5, 4)
    ranks = stats.rankdata(np.concatenate([first, second]))
    expected = stats.permutation_test(
        (ranks[5:], ranks[:5]), lambda x, _: x.sum(), alternative="greater", n_resamples=np.inf
    ).pvalue
    assert mann_whitney(first, second) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("has_ties", [False, True])
def test_rank_sums_of_many_repeats_are_normal(has_ties: bool) -> None:
    random = np.random.default_rng(7)
    first, second = random.normal(size=40), random.normal(0.3, 1, 50)
    if has_ties:
        first, second = first.round(), second.round()
    expected = stats.mannwhitneyu(second, first, alternative="greater", method="asymptotic").pvalue
    assert mann_whitney(first, second) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("seed", range(6))
def test_aligned_ranks_count_every_exchange_of_a_pair(seed: int) -> None:
    random = np.random.default_rng(seed)
    first = random.normal(size=5)
    second = first + random.normal(0.3, 1, 5)
    means = (first + second) / 2
    around = np.array([np.median(means[max(i - 2, 0) : i + 3]) for i in range(5)])
    ranks = stats.rankdata(np.concatenate([first - around, second - around]))
    expected = stats.permutation_test(
        (ranks[5:], ranks[:5]),
        lambda x, y: (x - y).sum(),
        permutation_type="samples",
        alternative="greater",
        n_resamples=np.inf,
    ).pvalue
    assert aligned_ranks(first, second) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("freedom", [*range(1, 11), 11, 15, 30, 100, 10_000])
def test_quantiles_of_student(level: Level, freedom: int) -> None:
    expected = stats.t.ppf(0.5 + level / 200, freedom)
    tolerance = 3e-4 if freedom <= 10 else 0.01
    assert student_quantile(freedom, level) == pytest.approx(expected, rel=tolerance)


@pytest.mark.parametrize("samples", [3, 4, 10, 100])
def test_the_chance_of_a_mean_is_students(samples: int) -> None:
    rows = np.random.default_rng(samples).normal(0.3, 1, (20, samples))
    expected = stats.ttest_1samp(rows, 0, axis=1, alternative="greater").pvalue
    found = chance_of_mean(rows)
    is_above = rows.mean(axis=1) > 0
    assert found[is_above] == pytest.approx(expected[is_above], rel=1e-4)
    assert (found[~is_above] == 1).all()


@pytest.mark.parametrize("count", COUNTS)
def test_the_centre_is_the_median_of_walsh_averages(count: int) -> None:
    """The point where the signed-rank statistic of what is left balances."""
    values = np.random.default_rng(count).normal(3, 1, count)
    left = values - pseudo_median(values)
    above = stats.rankdata(np.abs(left))[left > 0].sum()
    assert above == pytest.approx(count * (count + 1) / 4, abs=1)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("count", [12, 20])
def test_the_interval_of_pairs_is_the_percentile_bootstrap_widened(
    count: int, level: Level
) -> None:
    random = np.random.default_rng(count)
    change = winsorized(random.normal(1, 1, count))
    ours = compare_pairs(np.zeros(count), change, level=level)
    plain = stats.bootstrap(
        (change,),
        lambda values, axis=-1: pseudo_median(values),
        confidence_level=level / 100,
        method="percentile",
        n_resamples=20_000,
        vectorized=True,
        rng=random,
    ).confidence_interval
    wide = np.sqrt(count / (count - 1)) * student_quantile(count - 1, level) / NORMAL[level]
    reach = [ours.value + wide * (end - ours.value) for end in plain]
    width = reach[1] - reach[0]
    assert [ours.low, ours.high] == pytest.approx(reach, abs=0.06 * width)


@pytest.mark.parametrize("level", LEVELS)
def test_the_interval_of_two_sides_has_welchs_freedom(level: Level) -> None:
    random = np.random.default_rng(11)
    first, second = random.normal(0, 1, 6), random.normal(2, 3, 6)
    ours = compare_repeats(first, second, level=level)
    plain = stats.bootstrap(
        (first, second),
        lambda a, b, axis=-1: pseudo_median(b) - pseudo_median(a),
        confidence_level=level / 100,
        method="percentile",
        n_resamples=20_000,
        vectorized=True,
        rng=random,
    ).confidence_interval
    freedom = stats.ttest_ind(first, second, equal_var=False).df
    wide = np.sqrt(6 / 5) * student_quantile(freedom, level) / NORMAL[level]
    reach = [ours.value + wide * (end - ours.value) for end in plain]
    width = reach[1] - reach[0]
    assert [ours.low, ours.high] == pytest.approx(reach, abs=0.06 * width)


def scaling_times(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Time per unit of work of the Universal Scalability Law, with 3 % noise, and its design."""
    ranks = np.repeat([1.0, 2, 4, 8, 16], 3)
    design = np.stack([1 / ranks, 1 - 1 / ranks, ranks - 1], axis=1)
    noise = np.random.default_rng(seed).normal(1, 0.03, len(ranks))
    return design, design @ np.array([1.0, 0.1, 0.01]) * noise


@pytest.mark.parametrize("seed", range(5))
def test_relative_least_squares_with_their_covariance(seed: int) -> None:
    design, observed = scaling_times(seed)
    line = _least_squares(design, observed)
    found, covariance = optimize.curve_fit(
        lambda _, *by: design @ np.array(by),
        np.arange(len(observed)),
        observed,
        p0=np.ones(3),
        sigma=design @ line.coefficients,
    )
    assert line.coefficients == pytest.approx(found, rel=1e-5)
    assert line.covariance == pytest.approx(covariance, rel=1e-4, abs=1e-12)
    assert line.freedom == len(observed) - 3


@pytest.mark.parametrize("seed", range(5))
def test_fiellers_ends_are_where_the_t_test_of_the_ratio_turns(seed: int) -> None:
    line: _Line = _least_squares(*scaling_times(seed))
    above, below = np.array([0.0, 1, 0]), np.array([1.0, 0, 0])
    low, high = _fieller(line, above, below)

    def beyond(ratio: float) -> float:
        by = above - ratio * below
        deviation = np.sqrt(by @ line.covariance @ by)
        return abs(by @ line.coefficients) / deviation - student_quantile(line.freedom)

    value = line.coefficients[1] / line.coefficients[0]
    assert low == pytest.approx(optimize.brentq(beyond, value - 1, value), abs=1e-9)
    assert high == pytest.approx(optimize.brentq(beyond, value, value + 1), abs=1e-9)


def test_weights_of_outliers_are_the_derivatives_of_their_losses() -> None:
    far = np.linspace(0, 8, 81)
    by_huber = optimize.approx_fprime(far, lambda x: special.huber(1.345, x).sum())
    by_tukey = optimize.approx_fprime(far, lambda x: _biweight(x, 4.685))
    assert by_huber == pytest.approx(_huber(far) * far, abs=1e-5)
    assert by_tukey == pytest.approx(_tukey(far) * far, abs=1e-5)


def _biweight(far: np.ndarray, end: float) -> float:
    inside = np.clip(1 - (far / end) ** 2, 0, None)
    return float((end**2 / 6 * (1 - inside**3)).sum())


@pytest.mark.parametrize("seed", range(5))
def test_the_robust_line_solves_the_weighted_problem_that_it_ends_with(seed: int) -> None:
    random = np.random.default_rng(seed)
    size = 2.0 ** np.arange(6, 31)
    time = (20_000 + 0.02 * size) * random.normal(1, 0.02, len(size))
    time[[5, 14]] *= 3  # struck by something
    line = _robust_line(size, time)
    fitted = line.start + line.slope * size
    wrong = time / fitted - 1
    weight = _tukey(np.abs(wrong) / (1.4826 * np.median(np.abs(wrong))))
    assert (weight[[5, 14]] == 0).all()
    kept = weight > 0
    found, _ = optimize.curve_fit(
        lambda x, start, slope: start + slope * x,
        size[kept],
        time[kept],
        p0=(1e4, 0.01),
        sigma=(fitted / np.sqrt(weight.clip(1e-12)))[kept],
    )
    assert [line.start, line.slope] == pytest.approx(found, rel=1e-3)
    plain = stats.siegelslopes(time[size > 2**24], size[size > 2**24])
    assert line.slope == pytest.approx(plain.slope, rel=0.05)
