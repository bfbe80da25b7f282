"""How likely chance alone makes a mean so large."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["chance_of_mean"]

_POINTS = 4_001


def chance_of_mean(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """One-sided Student's t test of each row: the chance of such a mean if the true one is 0.

    Args:
        values: Shape ``(rows, samples)``. Samples of a row are taken as independent and about
            normal; heavy tails make the test careful, since they widen the deviation.

    Returns:
        Shape ``(rows,)``; 1 for rows whose mean is not positive, or with fewer than three samples.

    Source:
        Student, "The probable error of a mean", Biometrika 6 (1908).
    """
    rows, samples = values.shape
    if samples < 3:
        return np.ones(rows)
    mean, error = values.mean(axis=1), values.std(axis=1, ddof=1) / np.sqrt(samples)
    with np.errstate(divide="ignore", invalid="ignore"):
        t = np.where(mean > 0, mean / error, 0.0)  # infinite without any deviation
    tail = _upper_tail(t, samples - 1)
    return np.where(mean > 0, tail, 1.0)


def _upper_tail(t: NDArray[np.float64], freedom: int) -> NDArray[np.float64]:
    """Area of Student's density beyond ``t``: with t = tan(a)·√freedom, cos(a)**(freedom - 1)."""
    start = np.arctan(t / np.sqrt(freedom))
    share = np.linspace(0.0, 1.0, _POINTS)
    angle = start[:, None] + (np.pi / 2 - start)[:, None] * share
    tail = np.trapezoid(np.cos(angle) ** (freedom - 1), angle, axis=1)
    whole = np.linspace(-np.pi / 2, np.pi / 2, _POINTS)
    area = np.trapezoid(np.cos(whole) ** (freedom - 1), whole)
    result: NDArray[np.float64] = np.clip(tail / area, 0.0, 1.0)
    return result
