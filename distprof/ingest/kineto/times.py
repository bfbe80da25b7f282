"""Trace times to exact int64 nanoseconds.

Kineto writes microseconds with three decimals. A double holds them exactly enough below 2**43 us,
which times relative to ``baseTimeNanoseconds`` never reach; absolute times with decimals do, and
are converted from their text.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import ROUND_HALF_EVEN, Decimal, InvalidOperation
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distprof.schema import Int64Array
from distprof.units import NS_PER_US

__all__ = ["INVALID_NS", "LARGEST_NS", "micros_to_ns", "needs_text", "text_to_ns", "texts_to_ns"]

EXACT_BELOW_US = 2.0**43
"""From here on neighbouring doubles are 2 ns apart."""

LARGEST_NS = 4 * 10**18
"""Times beyond this (the year 2096) are nonsense; a base of the same size can still be added."""

INVALID_NS = np.iinfo(np.int64).min
"""Stands for a time that could not be read."""

_DECIMALS = 3


def micros_to_ns(micros: NDArray[np.float64]) -> Int64Array:
    """Microseconds as doubles to int64 ns; :data:`INVALID_NS` where not finite or absurd.

    ``rint(us * 1000)`` would be off by 1 ns on a quarter of the events of a real trace.
    """
    usable = np.abs(micros) < LARGEST_NS / NS_PER_US  # False for NaN
    if not usable.all():
        micros = np.where(usable, micros, 0.0)
    whole = np.floor(micros)
    ns: Int64Array = whole.astype(np.int64) * NS_PER_US
    ns += np.rint((micros - whole) * NS_PER_US).astype(np.int64)
    if not usable.all():
        ns[~usable] = INVALID_NS
    return ns


def needs_text(micros: NDArray[np.float64]) -> bool:
    """Whether these times are too large for their decimals to survive in a double."""
    large = np.abs(micros) >= EXACT_BELOW_US
    return bool(large.any()) and bool((micros[large] != np.floor(micros[large])).any())


def texts_to_ns(texts: Sequence[Any]) -> Int64Array:
    """JSON number texts (bytes-like, in microseconds) to int64 ns, exactly."""
    lengths = np.array([len(memoryview(text)) for text in texts], np.int64)
    ns = np.empty(len(texts), np.int64)
    for length in np.unique(lengths).tolist():
        rows = np.flatnonzero(lengths == length)
        group = [texts[row] for row in rows.tolist()]
        ns[rows] = _equally_long_to_ns(group, length)
    return ns


def text_to_ns(text: str) -> int:
    """One number in microseconds as text to ns, rounded half to even below a nanosecond."""
    try:
        ns = int((Decimal(text) * NS_PER_US).to_integral_value(ROUND_HALF_EVEN))
    except (InvalidOperation, ValueError, OverflowError):
        return int(INVALID_NS)
    return ns if abs(ns) < LARGEST_NS else int(INVALID_NS)


def _equally_long_to_ns(group: Sequence[Any], length: int) -> Int64Array:
    digits = np.frombuffer(b"".join(group), np.uint8).reshape(len(group), length)
    point = length - _DECIMALS - 1
    if 0 < point < 16 and (digits[:, point] == ord(".")).all():
        figures = np.delete(digits, point, axis=1) - np.uint8(ord("0"))
        if (figures < 10).all():
            powers = 10 ** np.arange(length - 2, -1, -1, dtype=np.int64)
            exact: Int64Array = figures.astype(np.int64) @ powers
            return exact
    return np.array([text_to_ns(str(memoryview(text), "ascii")) for text in group], np.int64)
