"""What can be had of a window that is no JSON array."""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from distprof.ingest.kineto.decode import DecodeState, EventColumns, decode_events, decode_texts
from distprof.ingest.kineto.events import DECODE_OBJECT

__all__ = ["salvage_events"]

_GROUP = 256
_MOST_PIECES = 4
"""An event may hold up to this many pieces when the boundary also occurs inside events."""

_STARTS = re.compile(rb'\{\s*"(?:ph|cat|name"\s*:\s*"[^"]*"\s*,\s*"(?:ph|cat))"\s*:')
_BETWEEN = b" \t\r\n,"


def salvage_events(data: bytearray, stop: int, state: DecodeState) -> Iterator[EventColumns]:
    """Columns of the events in a damaged ``data[:stop]``, which is closed like an array.

    Groups of events between boundaries are decoded as they are; only in a group that fails is each
    event tried by itself, then mended or given up.
    """
    texts = state.boundary.split(bytes(data[:stop]))
    between = state.boundary.text[1 : state.boundary.opening]
    for first in range(0, len(texts), _GROUP):
        group = texts[first : first + _GROUP]
        array = b"[%b]" % between.join(group)
        try:
            yield decode_events(array, len(array), state)
        except (msgspec.DecodeError, RecursionError):
            yield decode_texts(list(_events(group, between)), state)


def _events(texts: list[bytes], between: bytes) -> Iterator[bytes]:
    """One text per event: texts of one event joined, broken ones cut where events begin."""
    position = 0
    while position < len(texts):
        for count in range(1, _MOST_PIECES + 1):
            text = between.join(texts[position : position + count])
            if _is_object(text):
                yield text
                position += count
                break
        else:
            yield from _cut_at_starts(texts[position])
            position += 1


def _cut_at_starts(text: bytes) -> Iterator[bytes]:
    starts = [match.start() for match in _STARTS.finditer(text)]
    if not starts:
        if text.strip(_BETWEEN):
            yield text
        return
    for start, end in zip([0, *starts[1:]], [*starts[1:], len(text)], strict=True):
        yield text[start:end].strip(_BETWEEN)


def _is_object(text: bytes) -> bool:
    try:
        DECODE_OBJECT(text)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True
