"""Ratios, ridges and MFU: the check values of the formula sheet."""

from __future__ import annotations

import pytest

from distprof.costs import transformer as roofline


def test_ridge_and_bounds():
    assert roofline.ridge(989e12, 50e9) == 19780
    assert roofline.bound_with_overlap(5000, 10000) == 0.5
    assert roofline.bound_with_overlap(20000, 10000) == 1
    assert roofline.critical_batch(16, 5000, 10000) == 32


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
