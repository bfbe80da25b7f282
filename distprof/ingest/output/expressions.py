"""The table of expressions: which lines of a job's output matter, and what they yield.

``expressions.toml`` has one row per wording. A line is matched only if it contains one of the row's
signs, so most lines never reach a regular expression: :class:`Signs` finds all signs of all rows in
one pass over a block.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from importlib import resources
from operator import itemgetter
from typing import Generic, Protocol, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from distprof.bounds import table_beside

SHORTEST_SIGN = 7
"""A sign this long covers one aligned word of four bytes, wherever it begins."""

_BITS = 20
_FACTOR = 2_654_435_761  # Knuth's multiplicative hash


class Expression(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One row of the table."""

    name: str  # Name of the wording.
    yields: str  # What the line is about.
    signs: tuple[str, ...]  # Literals, of which each line of this wording contains one.
    pattern: str  # Regular expression whose named groups are captured, with bounded repetition.
    example: str  # A line, or several, of this wording.
    # What the pattern captures from the example.
    fields: dict[str, str] = msgspec.field(default_factory=dict)
    source: str = ""  # Programs and versions that print it.
    before: int = 0  # Lines before the sign that belong to the record; 0 for single lines.
    after: int = 0  # Lines after the sign that belong to the record; 0 for single lines.
    wraps: bool = False  # Whether terminals break its line, and parts of it are on the next ones.
    says: str = ""  # What a verdict says of it, with captured fields in braces.
    advice: str = ""  # What to do about it, if ``says`` is not empty.

    def search(self, text: str) -> dict[str, str] | None:
        """What the expression captures from a text; None if the text is of another wording."""
        found = _compiled(self.pattern).search(text)
        if found is None:
            return None
        return {name: value.strip() for name, value in found.groupdict().items() if value}


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.DOTALL)


class Advice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What to do about an error."""

    fits: str  # Regular expression that the text of an error contains.
    text: str  # The advice.
    says: str = ""  # What a verdict says of it before the message; empty for the message alone.


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    expression: tuple[Expression, ...]
    advice: dict[str, tuple[Advice, ...]]  # By the kind of error.


@cache
def _table() -> _Table:
    return msgspec.convert(table_beside(__package__, "expressions.toml"), _Table)


def expressions() -> tuple[Expression, ...]:
    """All rows of the table."""
    return _table().expression


def class_of(about: str, text: str) -> Advice | None:
    """The first row of a kind of errors that fits, if any."""
    rows = _table().advice.get(about, ())
    return next((row for row in rows if re.search(row.fits, text)), None)


def advice_on(about: str, text: str) -> tuple[str, ...]:
    """What to do about an error, if a row of its kind fits."""
    row = class_of(about, text)
    return (row.text,) if row else ()


@cache
def signs() -> Signs[Expression]:
    """The search for the signs of all rows."""
    return Signs(expressions())


class _HasSigns(Protocol):
    @property
    def signs(self) -> tuple[str, ...]:
        """Literals, of which each line of this wording contains one."""
        ...


R = TypeVar("R", bound=_HasSigns)


class Signs(Generic[R]):
    """Finds all signs in one pass: tables of the hashes of parts of them.

    The cost per byte does not depend on the number of rows, and that of a place only on whether a
    sign is there: a first table has the aligned words of four bytes, a second one seven bytes.
    """

    def __init__(self, rows: tuple[R, ...]) -> None:
        # Bit n: the word may be n bytes behind the first of a sign's seven bytes.
        self._words = np.zeros(1 << _BITS, np.uint8)
        self._parts = np.zeros(1 << _BITS, np.bool_)
        # Where each sign begins before its part, and the rows that it is a sign of.
        self._of_part: dict[bytes, dict[bytes, tuple[int, list[tuple[int, R]]]]] = {}
        signs = ((text.encode(), row) for row in rows for text in row.signs)
        for number, (sign, row) in enumerate(signs):
            self._add(number, sign, row)

    def _add(self, number: int, sign: bytes, row: R) -> None:
        start = min(range(len(sign) - SHORTEST_SIGN + 1), key=lambda at: _frequency(sign, at))
        part = sign[start : start + SHORTEST_SIGN]
        words = np.ndarray(4, "<u4", part, strides=(1,))
        np.bitwise_or.at(self._words, _hashes(words), 1 << np.arange(4, dtype=np.uint8))
        self._parts[_hashes(words[:1], words[3:])] = True
        self._of_part.setdefault(part, {}).setdefault(sign, (start, []))[1].append((number, row))

    def find(self, block: bytes) -> Iterator[tuple[int, R]]:
        """Position of each sign in a block and its row: by aligned word, then as in the table."""
        words = np.ndarray(max(len(block) - 3, 0), "<u4", block, strides=(1,))
        begins = self._words.take(_hashes(words[::4]))
        aligned = np.flatnonzero(begins)
        begins = begins[aligned]
        places = np.concatenate(
            [4 * aligned[(begins >> back) & 1 == 1] - back for back in range(4)]
        )
        places = places[(places >= 0) & (places <= len(block) - SHORTEST_SIGN)]
        places = places[self._parts.take(_hashes(words[places], words[places + 3]))]
        found = [
            ((place + 3) // 4, number, place - start, row)
            for place in places.tolist()
            for sign, (start, rows) in self._of_part.get(
                block[place : place + SHORTEST_SIGN], {}
            ).items()
            if place >= start and block.startswith(sign, place - start)
            for number, row in rows
        ]
        found.sort(key=itemgetter(0, 1))
        for _, _, at, row in found:
            yield at, row


def _hashes(first: NDArray[np.uint32], second: NDArray[np.uint32] | int = 0) -> NDArray[np.uint32]:
    """Hashes of pairs of words."""
    return ((first + second * np.uint32(31)) * np.uint32(_FACTOR)) >> np.uint32(32 - _BITS)


@cache
def _ordinary() -> Counter[bytes]:
    """Words of text that most logs repeat: the words of signs that are searched for are rare."""
    text = resources.files(__package__).joinpath("ordinary.txt").read_bytes()
    return Counter(text[at : at + 4] for at in range(len(text) - 3))


def _frequency(sign: bytes, at: int) -> int:
    """How often the words from ``at`` on are in ordinary text."""
    return sum(_ordinary()[sign[start : start + 4]] for start in range(at, at + 4))
