"""Ratios, ridges and MFU: the check values of the formula sheet."""

from __future__ import annotations

import pytest

from distprof.costs import transformer as roofline


@pytest.mark.parametrize(
    ("batch", "expected"), [(1, 3072), (4, 12288), (16, 49152), (64, 196608), (256, 786432)]
)
def test_intensity_of_data_parallelism(batch, expected):
    assert roofline.data_parallel_intensity(175e9, batch * 2048) == expected


def test_ridge_and_bounds():
    assert roofline.ridge(989e12, 50e9) == 19780
    assert roofline.bound_with_overlap(5000, 10000) == 0.5
    assert roofline.bound_with_overlap(20000, 10000) == 1
    assert roofline.bound_without_overlap(10000, 10000) == 0.5
    assert roofline.critical_batch(16, 5000, 10000) == 32


def test_200_ms_of_communication_beside_1000_ms():
    """The bounds are t_comp / (t_comp + t_comm) and t_comp / max of both."""
    assert 1000 / roofline.bound_without_overlap(5, 1) == pytest.approx(1200)
    assert 1000 / roofline.bound_with_overlap(5, 1) == pytest.approx(1000)


@pytest.mark.parametrize(
    ("position", "name"),
    [
        (0.19, "severely communication-bound"), (0.2, "communication-bound"),
        (0.8, "near the ridge"), (1.2, "near the ridge"), (1.21, "compute-bound"),
    ],
)  # fmt: skip
def test_regimes(position, name):
    assert roofline.regime(position, 1.0) == name


def test_mfu_divides_by_all_gpus_dense_peak():
    assert roofline.flop_utilisation(989e12, 2.0, 1, 989e12) == 0.5
    with pytest.raises(ValueError, match="0 GPUs"):
        roofline.flop_utilisation(1, 1, 0, 1)
