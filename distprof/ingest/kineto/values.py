"""Values of arguments, whose types differ between writers, to integers and text."""

from __future__ import annotations

from typing import Any

import msgspec

from distprof.ingest.kineto.repair import clean_text
from distprof.schema import ABSENT

__all__ = ["NO_STREAM", "as_int", "as_stream", "as_text"]

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
