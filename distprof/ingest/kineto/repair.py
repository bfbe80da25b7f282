"""Mend the text of one event that is no valid JSON.

What real traces contain: quotes that were not escaped (a range named ``forward "x"``), ``nan`` and
``inf`` printed as numbers, raw control characters, single backslashes of Windows paths, bytes that
are not UTF-8, and halves of surrogate pairs. A mended event is counted, never silently accepted.
"""

from __future__ import annotations

import json
import re
from typing import Any

__all__ = ["clean_text", "repair_event"]

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
