"""The keys of a trace beside its events."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from distprof.ingest.kineto.repair import repair_event

__all__ = ["parse_metadata"]

_KEY = re.compile(r'[{,]\s*"([^"\\\n]*)"\s*:\s*')
_BASE = re.compile(rb'"baseTimeNanoseconds"\s*:\s*(\d{1,19})(?=\s*[,}])')
_EVENTS = "traceEvents"


def parse_metadata(head: bytes, tail: bytes, *, ended: bool) -> tuple[Mapping[str, Any], bool]:
    """Top-level keys but ``traceEvents``, and whether their text was complete.

    Args:
        head: Text up to the array of events; empty for a bare list, which has no metadata.
        tail: Text after the array, or after the last complete event when the array has no end.
        ended: Whether the array has an end.
    """
    if not head:
        return {}, ended and not tail.strip()
    if not ended:
        return {**_events_left_out(_keys_of(head)), **_base_in(tail)}, False
    whole = b"%b[]%b" % (head, tail)
    try:
        parsed = json.loads(whole)
        complete = True
    except (ValueError, RecursionError):
        parsed = repair_event(whole)
        complete = parsed is not None
    if not isinstance(parsed, dict):
        parsed = {**_keys_of(head), **_keys_of(b"{" + tail)}
    return _events_left_out(parsed), complete


def _events_left_out(keys: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in keys.items() if key != _EVENTS}


def _base_in(damaged: bytes) -> dict[str, int]:
    """The base of all times, which no event holds, if it stands somewhere in a damaged end."""
    found = _BASE.search(damaged)
    return {"baseTimeNanoseconds": int(found[1])} if found else {}


def _keys_of(text: bytes) -> dict[str, Any]:
    """The keys at the top of a damaged object whose values can be read, in order."""
    decoded = text.decode("utf-8", "replace")
    decoder = json.JSONDecoder(strict=False)
    found: dict[str, Any] = {}
    position = 0
    while match := _KEY.search(decoded, position):
        position = match.end()
        try:
            found[match[1]], position = decoder.raw_decode(decoded, match.end())
        except (ValueError, RecursionError):
            continue
    return found
