"""Dicts of one shape, thousands in a row, recognised at once instead of by each instruction.

The recorder writes each collective as a dict with the same keys in the same order. From the first
of them a regular expression is made that matches those that follow; what it does not match is left
to the interpreter, which stays the one that says what a pickle means.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

__all__ = ["Template", "Values", "template_of"]

_SCALAR = rb"(?>h.|[N\x88\x89]|K.|M..|J....|\x8a\x08.{8}|j....)"
_LIST = rb"\](?:\((?:" + _SCALAR + rb"|\](?:\(" + _SCALAR + rb"*+e)?)*+e)?"
_VALUE = rb"(" + _SCALAR + rb"(?:" + _SCALAR + rb"\x86)?|" + _LIST + rb")"
_KEY = re.compile(rb"h.|j....", re.DOTALL)
_ONE_VALUE = re.compile(_VALUE, re.DOTALL)

_from_bytes = int.from_bytes
MOST_KEYS = 64
LONGEST = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """The shape of a dict.

    Args:
        match: Of a compiled expression; a group for each value.
        keys: The keys, in order.
    """

    match: Callable[[bytes, int], re.Match[bytes] | None]
    keys: tuple[Any, ...]


class Values(dict[bytes, Any]):
    """Instructions that make one value, to that value; found out once for each spelling."""

    def __init__(self, evaluate: Callable[[bytes], Any]) -> None:
        super().__init__()
        self._evaluate = evaluate

    def __missing__(self, spelling: bytes) -> Any:
        first = spelling[0]
        if first == 0x8A and len(spelling) == 10:  # LONG1: a time, seldom the same twice
            return _from_bytes(spelling[2:], "little", signed=True)
        if first == 0x4D and len(spelling) == 3:  # BININT2
            value: Any = _from_bytes(spelling[1:], "little")
        elif first == 0x4A and len(spelling) == 5:  # BININT
            value = _from_bytes(spelling[1:], "little", signed=True)
        else:
            value = self._evaluate(spelling)
        self[spelling] = value
        return value


def template_of(spelling: bytes, keys: tuple[Any, ...]) -> Template | None:
    """The shape of a dict that was just read; None where it has parts of other kinds.

    Args:
        spelling: Its instructions, from EMPTY_DICT to SETITEMS.
        keys: Its keys.
    """
    if not spelling.startswith(b"}(") or len(keys) > MOST_KEYS or len(spelling) > LONGEST:
        return None
    at, pattern = 2, [rb"\("]  # EMPTY_DICT itself is behind us when the template is tried
    for _ in keys:
        key = _KEY.match(spelling, at)
        value = _ONE_VALUE.match(spelling, key.end()) if key else None
        if key is None or value is None:
            return None
        pattern += [re.escape(key[0]), _VALUE]
        at = value.end()
    if spelling[at:] != b"u":
        return None
    compiled = re.compile(b"".join(pattern) + b"u", re.DOTALL)
    return Template(match=compiled.match, keys=keys)
