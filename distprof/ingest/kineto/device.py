"""Device rows only: search for them, then decode the hits."""

from __future__ import annotations

import re

from distprof.ingest.kineto.boundary import Boundary
from distprof.ingest.kineto.words import STEP_PREFIX

__all__ = ["DeviceSearch"]

_CATEGORIES = re.compile(rb'cat": "(?:kernel"|gpu_)')  # a c is rarer than a quote: found faster
_STEP = f'"name": "{STEP_PREFIX}'.encode()
_STEP_END = _STEP[-1:]
_BEFORE_STEP_END = _STEP[-2]
_LEGACY = (b'"Kernel"', b'"Memcpy"', b'"Memset"', b'"concurrent_kernel"')
_CATEGORY = b'"cat"'
_SPACED = b'"cat": "'


class DeviceSearch:
    """Finds device rows and step marks in indented traces as Kineto writes them.

    Args:
        boundary: What stands between two events. Only a line break makes it unmistakable.
    """

    def __init__(self, boundary: Boundary) -> None:
        self.usable = boundary.has_line_break
        self.boundary = boundary
        self._edge = boundary.text
        self._opening = boundary.opening
        self._between = boundary.text[1 : boundary.opening]

    def select(self, data: bytearray, stop: int) -> bytes | None:
        """The hits in ``data[:stop]`` as a JSON array, None when the layout is unexpected.

        An array that holds every device row, and perhaps others; not proved to be valid JSON.
        """
        spans = self._device_rows(data, stop)
        if not spans and not self._is_expected(data, stop):
            self.usable = False
        if not self.usable:
            return None
        if steps := self._steps(data, stop):
            spans = sorted({*spans, *steps})  # marks on the device were found both ways
        view = memoryview(data)
        hits: list[bytes | memoryview] = [view[start:end] for start, end in spans]
        if not hits:
            return b"[]"
        hits[0] = b"[" + bytes(hits[0])
        hits[-1] = bytes(hits[-1]) + b"]"
        return self._between.join(hits)

    def _device_rows(self, data: bytearray, stop: int) -> list[tuple[int, int]]:
        """Start and end of each device row.

        The words share a beginning, so that one pass of the pattern finds them all as fast as a
        plain search finds one. Written out, for it runs once per row.
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
        """Start and end of each step mark, found by the last byte of what it begins with.

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
        """Whether a window without hits is spelt as this search expects."""
        category = data.find(_CATEGORY, 0, stop)
        if category >= 0 and not data.startswith(_SPACED, category):
            return False
        return all(data.find(word, 0, stop) < 0 for word in _LEGACY)
