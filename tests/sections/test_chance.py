"""Student's t test against the tables in every textbook."""

import numpy as np
import pytest

from distprof.sections.own_time import chance_of_mean


def values_with_t(t: float, samples: int) -> np.ndarray:
    """Samples whose mean is t times its standard error."""
    raw = np.arange(samples, dtype=np.float64)
    unit = (raw - raw.mean()) / raw.std(ddof=1)
    return (unit + t / np.sqrt(samples))[None]


@pytest.mark.parametrize(
    ("t", "freedom", "chance"),
    [(6.314, 1 + 1, 0.0121), (2.920, 2, 0.05), (31.60, 2, 0.0005), (2.262, 9, 0.025),
     (4.297, 9, 0.001), (1.833, 9, 0.05)],
)  # fmt: skip
def test_known_quantiles(t, freedom, chance):
    assert chance_of_mean(values_with_t(t, freedom + 1))[0] == pytest.approx(chance, rel=0.01)


def test_a_mean_that_is_not_positive_is_no_excess():
    assert chance_of_mean(np.array([[-1.0, -1.1, -0.9], [0.0, 0.0, 0.0]])).tolist() == [1.0, 1.0]


def test_two_samples_tell_nothing():
    assert chance_of_mean(np.array([[5.0, 5.0]])).tolist() == [1.0]


def test_the_same_excess_each_time_is_no_chance():
    assert chance_of_mean(np.array([[5.0, 5.0, 5.0]]))[0] < 1e-9


def test_of_pure_noise_about_so_many_rows_look_like_more_as_the_chance_says():
    noise = np.random.default_rng(1).normal(size=(20_000, 10))
    found = chance_of_mean(noise)
    for chance in (0.1, 0.01):
        assert (found <= chance).mean() == pytest.approx(chance, rel=0.15)
