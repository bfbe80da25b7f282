"""Device rows only: search for them, then decode the hits."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from distprof.ingest.kineto.damage import clean_keys, repair_event
from distprof.ingest.kineto.events import STEP_PREFIX
from distprof.ingest.kineto.framing import Boundary
from distprof.kernel import kernel

_CATEGORY_IS = b'cat": "'  # begins with a c, which is rarer than a quote and found faster
_ON_DEVICE = (b'kernel"', b"gpu_")
_CATEGORIES = re.compile(_CATEGORY_IS + b"(?:%b)" % b"|".join(_ON_DEVICE))
_STEP = f'"name": "{STEP_PREFIX}'.encode()
_STEP_END = _STEP[-1:]
_BEFORE_STEP_END = _STEP[-2]
_LEGACY = (b'"Kernel"', b'"Memcpy"', b'"Memset"', b'"concurrent_kernel"')
_CATEGORY = b'"cat"'
_SPACED = b'"cat": "'


class DeviceSearch:
    """Finds device rows and step marks in indented traces as Kineto writes them.

    Only a line break makes the text between two events unambiguous.
    """

    def __init__(self, boundary: Boundary) -> None:
        self.usable = boundary.has_line_break
        self.boundary = boundary
        self._edge = boundary.text
        self._opening = boundary.opening
        self._between = boundary.text[1 : boundary.opening]

    def select(self, data: bytearray, stop: int) -> bytes | None:
        """The hits in ``data[:stop]`` as a JSON array, None if the layout is unexpected.

        The array holds every device row, and perhaps others. It may be invalid JSON.
        """
        compiled = kernel()
        if compiled is not None:
            how = (self._edge, self._opening, _CATEGORY_IS, _ON_DEVICE, _STEP)
            array, num_device_rows = compiled.select(data, stop, *how)
        else:
            rows = spans = self._device_rows(data, stop)
            if steps := self._steps(data, stop):
                spans = sorted({*spans, *steps})  # marks on the device were found both ways
            view = memoryview(data)
            hits: list[bytes | memoryview] = [view[start:end] for start, end in spans]
            array, num_device_rows = b"[%b]" % self._between.join(hits), len(rows)
        if not num_device_rows and not self._is_expected(data, stop):
            self.usable = False
        return array if self.usable else None

    def _device_rows(self, data: bytearray, stop: int) -> list[tuple[int, int]]:
        """Start and end of each device row.

        The words share a beginning, so one pass of the pattern finds them all as fast as a plain
        search finds one. The search is written out because it runs once per row.
        """
        spans = []
        edge, opening = self._edge, self._opening
        find, rfind, search = data.find, data.rfind, _CATEGORIES.search
        match = search(data, 0, stop)
        while match:
            hit = match.start()
            start = rfind(edge, 0, hit)
            end = find(edge, hit, stop)
            end = end + 1 if end >= 0 else stop - 1
            spans.append((start + opening if start >= 0 else 1, end))
            match = search(data, end, stop)
        return spans

    def _steps(self, data: bytearray, stop: int) -> list[tuple[int, int]]:
        """Start and end of each step mark, found by the last byte of its beginning.

        One rare byte is found several times faster than a word.
        """
        spans = []
        hit = data.find(_STEP_END, 0, stop)
        while hit >= 0:
            if data[hit - 1] == _BEFORE_STEP_END and data.endswith(_STEP, 0, hit + 1):
                spans.append(self.boundary.event_around(data, hit, stop))
            hit = data.find(_STEP_END, hit + 1, stop)
        return spans

    @staticmethod
    def _is_expected(data: bytearray, stop: int) -> bool:
        """Whether a window without hits has the spelling that this search expects."""
        category = data.find(_CATEGORY, 0, stop)
        if category >= 0 and not data.startswith(_SPACED, category):
            return False
        compiled = kernel()
        if compiled is not None:  # most windows of a long trace hold only host events
            return not compiled.holds_any(data, stop, _LEGACY)
        return all(data.find(word, 0, stop) < 0 for word in _LEGACY)


# The keys of a trace other than its events -------------------------------------------------------

_KEY = re.compile(r'[{,]\s*"([^"\\\n]*)"\s*:\s*')
_BASE = re.compile(rb'"baseTimeNanoseconds"\s*:\s*(\d{1,19})(?=\s*[,}])')
_EVENTS = "traceEvents"
_MOST_DAMAGED = 16 << 20
_MOST_BROKEN = 16
"""Each unreadable value costs time in proportion to the text, so both are limited."""


def parse_metadata(head: bytes, tail: bytes, *, ended: bool) -> tuple[Mapping[str, Any], bool]:
    """Top-level keys except ``traceEvents``, and whether their text was complete.

    ``head`` is the text up to the array of events, empty for a bare list, which has no metadata;
    ``tail`` the text after the array, or after the last complete event if the array has not ended.
    """
    if not head:
        return {}, ended and not tail.strip()
    if not ended:
        # the base of all times may be somewhere in a damaged end; no event holds it
        base = _BASE.search(tail)
        found = {"baseTimeNanoseconds": int(base[1])} if base else {}
        return clean_keys({**_events_left_out(_keys_of(head)), **found}), False
    whole = b"%b[]%b" % (head, tail)
    try:
        parsed = json.loads(whole)
        complete = True
    except (ValueError, RecursionError):
        parsed = repair_event(whole)
        complete = parsed is not None
    if not isinstance(parsed, dict):
        parsed = {**_keys_of(head), **_keys_of(b"{" + tail)}
    return clean_keys(_events_left_out(parsed)), complete


def _events_left_out(keys: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in keys.items() if key != _EVENTS}


def _keys_of(text: bytes) -> dict[str, Any]:
    """The readable top-level keys of a damaged object, in order.

    Reading stops after 16 MiB of text or 16 broken values.
    """
    decoded = text[:_MOST_DAMAGED].decode("utf-8", "replace")
    decoder = json.JSONDecoder(strict=False)
    keys: dict[str, Any] = {}
    position = num_broken = 0
    while num_broken < _MOST_BROKEN and (match := _KEY.search(decoded, position)):
        position = match.end()
        try:
            keys[match[1]], position = decoder.raw_decode(decoded, match.end())
        except (ValueError, RecursionError):
            num_broken += 1
    return keys
