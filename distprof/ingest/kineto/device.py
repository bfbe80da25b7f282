"""Device rows only: search for them, then decode the hits."""

from __future__ import annotations

from distprof.ingest.kineto.boundary import Boundary
from distprof.ingest.kineto.words import STEP_PREFIX

__all__ = ["DeviceSearch"]

_CATEGORIES = (b'"cat": "kernel"', b'"cat": "gpu_')
_STEP = f'"name": "{STEP_PREFIX}'.encode()
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
        self._between = boundary.text[1 : boundary.opening]

    def select(self, data: bytearray, stop: int) -> bytes | None:
        """The hits in ``data[:stop]`` as a JSON array, None when the layout is unexpected.

        An array that holds every device row, and perhaps others; not proved to be valid JSON.
        """
        spans: dict[int, int] = {}
        for needle in _CATEGORIES:
            self._search(data, stop, needle, spans)
        if not spans and not self._is_expected(data, stop):
            self.usable = False
        if not self.usable:
            return None
        self._search(data, stop, _STEP, spans)
        view = memoryview(data)
        hits: list[bytes | memoryview] = [view[start : spans[start]] for start in sorted(spans)]
        if not hits:
            return b"[]"
        hits[0] = b"[" + bytes(hits[0])
        hits[-1] = bytes(hits[-1]) + b"]"
        return self._between.join(hits)

    def _search(self, data: bytearray, stop: int, needle: bytes, spans: dict[int, int]) -> None:
        """Enter start and end of each event that holds ``needle``."""
        boundary = self.boundary.text
        inner = self.boundary.opening
        find, rfind = data.find, data.rfind
        hit = find(needle, 0, stop)
        while hit >= 0:
            start = rfind(boundary, 0, hit)
            start = start + inner if start >= 0 else 1
            end = find(boundary, hit, stop)
            end = end + 1 if end >= 0 else stop - 1
            spans[start] = end
            hit = find(needle, end, stop)

    @staticmethod
    def _is_expected(data: bytearray, stop: int) -> bool:
        """Whether a window without hits is spelt as this search expects."""
        category = data.find(_CATEGORY, 0, stop)
        if category >= 0 and not data.startswith(_SPACED, category):
            return False
        return all(data.find(word, 0, stop) < 0 for word in _LEGACY)
