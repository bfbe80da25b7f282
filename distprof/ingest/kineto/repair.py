"""Mend the text of one event that is no valid JSON.

What real traces contain: quotes that were not escaped (a range named ``forward "x"``), ``nan`` and
``inf`` printed as numbers, raw control characters, single backslashes of Windows paths, bytes that
are not UTF-8, and halves of surrogate pairs. A mended event is counted, never silently accepted.
"""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec

from distprof.schema import ABSENT

__all__ = ["NO_STREAM", "as_int", "as_stream", "as_text", "clean_text", "repair_event"]

_NOT_A_NUMBER = re.compile(r"(?<=[:\[,\s])[-+]?(?:nan|inf|infinity)(?=\s*[,}\]])", re.IGNORECASE)
_LONE_BACKSLASH = re.compile(r'\\(?:(["\\/bfnrt]|u[0-9a-fA-F]{4})|)')
_CLOSES_KEY = re.compile(r"\s*:")
_CLOSES_VALUE = re.compile(r'\s*(?:\}|,\s*"[^"\n]*"\s*:)')
_CLOSES_ITEM = re.compile(r"\s*[\],]")
_LONGEST = 1 << 20


def repair_event(text: bytes) -> dict[str, Any] | None:
    """The event that ``text`` was meant to be, or None.

    Args:
        text: What stands between two event boundaries.
    """
    if len(text) > _LONGEST:
        return None
    decoded = text.decode("utf-8", "replace")
    for mend in (_as_is, _mend_numbers, _mend_quotes):
        decoded = mend(decoded)
        event = _load(decoded)
        if event is not None:
            return event
    return None


def clean_text(text: str) -> str:
    """``text`` without halves of surrogate pairs, which no table can hold."""
    return text.encode("utf-8", "replace").decode("utf-8") if not text.isascii() else text


def _load(text: str) -> dict[str, Any] | None:
    try:
        event = json.loads(text, strict=False)
    except (ValueError, RecursionError):
        return None
    return event if isinstance(event, dict) else None


def _as_is(text: str) -> str:
    return text


def _mend_numbers(text: str) -> str:
    return _LONE_BACKSLASH.sub(_keep_escape, _NOT_A_NUMBER.sub("null", text))


def _keep_escape(match: re.Match[str]) -> str:
    return match[0] if match[1] else "\\\\"


def _mend_quotes(text: str) -> str:
    """Escape quotes inside strings: a quote ends a string only where JSON can go on after it."""
    out: list[str] = []
    opened: list[str] = []
    position = 0
    expects_key = False
    while position < len(text):
        char = text[position]
        if char == '"':
            closes = _CLOSES_KEY if expects_key else _closing(opened)
            end = _end_of_string(text, position + 1, closes)
            out.append('"' + _escape_quotes(text[position + 1 : end]) + '"')
            position = end + 1
            continue
        if char in "{[":
            opened.append(char)
        elif char in "}]" and opened:
            opened.pop()
        if char in "{,:[":
            expects_key = char in "{," and bool(opened) and opened[-1] == "{"
        out.append(char)
        position += 1
    return "".join(out)


def _closing(opened: list[str]) -> re.Pattern[str]:
    return _CLOSES_ITEM if opened and opened[-1] == "[" else _CLOSES_VALUE


def _end_of_string(text: str, start: int, closes: re.Pattern[str]) -> int:
    position = start
    while (position := text.find('"', position)) >= 0:
        backslashes = position - len(text[start:position].rstrip("\\")) - start
        if backslashes % 2 == 0 and closes.match(text, position + 1):
            return position
        position += 1
    return len(text)


def _escape_quotes(inner: str) -> str:
    return re.sub(r'(\\.)|"', lambda match: match[1] or '\\"', inner, flags=re.DOTALL)


# Values ------------------------------------------------------------------------------------------

_LARGEST = 2**63 - 1
NO_STREAM = 2**32 - 1
"""How an unsigned writer prints stream -1."""


def as_int(value: Any) -> int:
    """An int64; ABSENT for what is no decimal integer or does not fit."""
    if isinstance(value, str):
        try:
            value = int(value) if len(value) < 20 else ABSENT
        except ValueError:
            return ABSENT
    elif isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        return ABSENT
    return value if -_LARGEST <= value <= _LARGEST else ABSENT


def as_stream(value: Any) -> int:
    """A stream number; ABSENT for 2**32 - 1, for pointers such as ``0x0`` and for text."""
    stream = as_int(value)
    return ABSENT if stream == NO_STREAM or stream < 0 else stream


def as_text(value: Any) -> str:
    """A string as it is, other values as compact JSON, empty for None."""
    if value is None:
        return ""
    if isinstance(value, str):
        return clean_text(value)
    try:
        return msgspec.json.encode(value).decode()
    except (msgspec.MsgspecError, ValueError, TypeError, OverflowError, RecursionError):
        return clean_text(str(value)[:1000])
