"""The keys of a trace beside its events."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from distprof.ingest.kineto.repair import repair_event

__all__ = ["parse_metadata"]

_KEY = re.compile(r'[{,]\s*"([^"\\\n]*)"\s*:\s*')
_EVENTS = "traceEvents"


def parse_metadata(head: bytes, tail: bytes) -> tuple[Mapping[str, Any], bool]:
    """Top-level keys but ``traceEvents``, and whether their text was complete.

    Args:
        head: Text up to the array of events; empty for a bare list, which has no metadata.
        tail: Text after the array.
    """
    if not head:
        return {}, not tail.strip()
    whole = b"%b[]%b" % (head, tail)
    try:
        parsed = json.loads(whole)
        complete = True
    except (ValueError, RecursionError):
        parsed = repair_event(whole)
        complete = parsed is not None
    if not isinstance(parsed, dict):
        parsed = {**_keys_of(head), **_keys_of(b"{" + tail)}
    parsed.pop(_EVENTS, None)
    return parsed, complete


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
