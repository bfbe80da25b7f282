"""Runs of equal rows in sorted columns."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from distprof.schema import Int64Array

__all__ = ["changes", "number_in_run"]


def changes(*keys: NDArray[np.integer]) -> NDArray[np.bool_]:
    """Where a row differs from the one before it."""
    changed = np.ones(len(keys[0]), dtype=np.bool_)
    changed[1:] = np.any([key[1:] != key[:-1] for key in keys], axis=0)
    return changed


def number_in_run(*keys: NDArray[np.integer]) -> Int64Array:
    """0, 1, 2, … within each run of equal rows."""
    row = np.arange(len(keys[0]))
    changed = changes(*keys)
    return (row - np.maximum.accumulate(np.where(changed, row, 0))).astype(np.int64)
