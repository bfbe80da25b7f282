"""Examples of which a part is in every run, and all are in ``tasks.py nightly``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

__all__ = ["drawn", "some"]


def drawn(seeds: Iterable[int], *, always: int) -> list[Any]:
    """Values for ``parametrize``: the first ``always`` seeds, and the others nightly."""
    return [
        seed if position < always else pytest.param(seed, marks=pytest.mark.nightly)
        for position, seed in enumerate(seeds)
    ]


def some(values: Iterable[Any], *, always: Callable[[Any], bool]) -> list[Any]:
    """Values for ``parametrize``: those for which ``always`` holds, and the others nightly."""
    return [
        value if always(value) else pytest.param(value, marks=pytest.mark.nightly)
        for value in values
    ]
