"""The table of expressions: which lines of a job's output matter, and what they yield.

``expressions.toml`` has one row per wording. A line is matched only if it contains one of the row's
signs, so most lines never reach a regular expression: :class:`Signs` finds all signs of all rows in
one pass over a block.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib import resources
from typing import Generic, Protocol, TypeVar

import msgspec
import numpy as np

SHORTEST_SIGN = 7
"""A sign this long covers one aligned word of four bytes, wherever it begins."""

_ORDINARY = (
    b"2024-01-01 12:00:00,123 - root - INFO - step: 10 loss: 7.9 memory: 12.3GiB(15%) tps: 7,411 "
    b"host-1:123:123 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/IPC comm 0x1 nRanks 08 rank "
    b"iteration 20/1000 | elapsed time per iteration (ms): 1354.9 | lm loss: 1.2 | local_rank: 0 "
    b"INFO:torch.distributed:/usr/lib/python3/dist-packages/train.py:12: UserWarning: model data "
    b"nranks 8 cudaDev 0 process group backend cuda device GPU Epoch 1: 45%|##| 12/99 [00:01<00:09 "
)
"""Text as most logs repeat it: the words of a sign that are searched for should not be in it."""

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

    def search(self, text: str) -> dict[str, str] | None:
        """What the expression captures from a text; None if the text is of another wording."""
        found = _compiled(self.pattern).search(text)
        if found is None:
            return None
        return {name: value.strip() for name, value in found.groupdict().items() if value}


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.DOTALL)


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    expression: tuple[Expression, ...]


@cache
def expressions() -> tuple[Expression, ...]:
    """All rows of the table."""
    text = resources.files(__package__).joinpath("expressions.toml").read_text("utf-8")
    return msgspec.convert(tomllib.loads(text), _Table).expression


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
    """Finds all signs in one pass: a table of the hashes of their aligned words.

    The cost per byte does not depend on the number of rows.

    Args:
        rows: Rows of the table.
    """

    def __init__(self, rows: tuple[R, ...]) -> None:
        self._known = np.zeros(1 << _BITS, np.bool_)
        self._of_word: dict[int, dict[int, dict[bytes, list[R]]]] = {}
        for row in rows:
            for text in row.signs:
                self._add(text.encode(), row)
        self._tests = {
            word: tuple((offset, tuple(known)) for offset, known in at.items())
            for word, at in self._of_word.items()
        }

    def _add(self, sign: bytes, row: R) -> None:
        start = min(range(len(sign) - SHORTEST_SIGN + 1), key=lambda at: _frequency(sign, at))
        for offset in range(start, start + 4):
            word = int.from_bytes(sign[offset : offset + 4], "little")
            self._known[(word * _FACTOR & 0xFFFFFFFF) >> (32 - _BITS)] = True
            at = self._of_word.setdefault(word, {}).setdefault(offset, {})
            at.setdefault(sign, []).append(row)

    def find(self, block: bytes) -> Iterator[tuple[int, R]]:
        """Position of each sign in a block, ascending, and its row."""
        words = np.frombuffer(block, "<u4", count=len(block) // 4)
        hashes = (words * np.uint32(_FACTOR)) >> np.uint32(32 - _BITS)
        places = np.flatnonzero(self._known.take(hashes))
        tests = self._tests
        for place, word in zip(places.tolist(), words[places].tolist(), strict=True):
            for offset, known in tests.get(word, ()):
                at = 4 * place - offset
                if block.startswith(known, at) and at >= 0:
                    for sign, rows in self._of_word[word][offset].items():
                        if block.startswith(sign, at):
                            yield from ((at, row) for row in rows)


def _frequency(sign: bytes, at: int) -> int:
    """How many of the words from ``at`` on are in ordinary text."""
    return sum(sign[start : start + 4] in _ORDINARY for start in range(at, at + 4))
