"""Dictionaries that give strings codes while a file is read."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from distprof.ingest.kineto.words import (
    COMM_NAME,
    DEVICE_KINDS,
    KEPT_OPERATOR_NAME,
    PYTHON_FRAME,
    STEP_PREFIX,
    normalise,
)
from distprof.schema import Coded

__all__ = ["DROPPED", "HOST", "SymbolTable", "Symbols", "compact"]

Scalar = TypeVar("Scalar", np.int8, np.bool_)

HOST = -1
DROPPED = -2


class Symbols(dict[Any, int]):
    """Codes of keys, given out in order of first appearance.

    ``symbols[key]`` is a dict look-up when the key is known, which is what makes it fast. Keys with
    the same text share a code.

    Args:
        text: How a key is written.
    """

    def __init__(self, text: Callable[[Any], str] = str) -> None:
        super().__init__()
        self._text = text
        self._codes: dict[str, int] = {}

    def __missing__(self, key: Any) -> int:
        code = self._codes.setdefault(self._text(key), len(self._codes))
        self[key] = code
        return code

    @property
    def num_texts(self) -> int:
        """Number of distinct texts."""
        return len(self._codes)

    @property
    def texts(self) -> list[str]:
        """The texts, by code."""
        return list(self._codes)

    def texts_from(self, code: int) -> Iterator[str]:
        """The texts from ``code`` on."""
        return islice(self._codes, code, None)


class Verdicts(Generic[Scalar]):
    """A property of each symbol, worked out once per symbol.

    Args:
        symbols: The symbols, which may grow between calls.
        judge: Text to the property.
        dtype: What the property is stored as.
    """

    def __init__(self, symbols: Symbols, judge: Callable[[str], int], dtype: type[Scalar]) -> None:
        self._symbols = symbols
        self._judge = judge
        self._known: NDArray[Scalar] = np.empty(0, dtype)

    def of(self, codes: NDArray[np.int32]) -> NDArray[Scalar]:
        """The property of each coded row."""
        known = self._known
        if self._symbols.num_texts > len(known):
            new = [self._judge(text) for text in self._symbols.texts_from(len(known))]
            self._known = np.concatenate((known, np.array(new, known.dtype)))
        verdicts: NDArray[Scalar] = self._known[codes]
        return verdicts


class SymbolTable:
    """The dictionaries of one file."""

    def __init__(self) -> None:
        self.names = Symbols()
        self.categories = Symbols(normalise)
        self.threads = Symbols(lambda key: f"{key[0]}/{key[1]}")
        self.kinds = Verdicts(self.categories, _kind, np.int8)
        self.is_operator = Verdicts(self.categories, lambda word: word == "cpu_op", np.bool_)
        self.is_comm = Verdicts(self.names, _matches(COMM_NAME), np.bool_)
        self.is_kept = Verdicts(self.names, _matches(KEPT_OPERATOR_NAME), np.bool_)
        self.is_step = Verdicts(self.names, lambda name: name.startswith(STEP_PREFIX), np.bool_)


def _matches(pattern: re.Pattern[str]) -> Callable[[str], bool]:
    return lambda text: pattern.match(text) is not None


def compact(codes: NDArray[np.int32], texts: list[str]) -> Coded:
    """A column whose dictionary holds only the texts that occur, in code order."""
    used = np.zeros(len(texts), np.bool_)
    used[codes] = True
    remap = np.cumsum(used, dtype=np.int32) - np.int32(1)
    return Coded(remap[codes], tuple(texts[code] for code in np.flatnonzero(used).tolist()))


def _kind(word: str) -> int:
    if word == PYTHON_FRAME:
        return DROPPED
    return int(DEVICE_KINDS.get(word, HOST))
