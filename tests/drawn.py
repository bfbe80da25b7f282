"""Examples that are drawn: a part of them in every run, all of them in ``tasks.py nightly``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

__all__ = ["drawn"]


def drawn(seeds: Iterable[int], *, always: int) -> list[Any]:
    """Values for ``parametrize``: the first ``always`` seeds, and the others nightly."""
    return [
        seed if position < always else pytest.param(seed, marks=pytest.mark.nightly)
        for position, seed in enumerate(seeds)
    ]
