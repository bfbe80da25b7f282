"""What stands between two events of a file."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass

__all__ = ["Boundary"]

_SAMPLE = 1 << 18
_SEPARATED = re.compile(rb"\}\s*,\s*\{")
_NEXT_EVENT = re.compile(r'\s*,\s*\{(?:\s*")?')


@dataclass(frozen=True, slots=True)
class Boundary:
    """The text from the end of one event to the first key of the next: a hint, never relied on.

    A longer text is searched for faster.

    Args:
        text: Begins with ``}`` and holds one ``,`` and one ``{``.
    """

    text: bytes

    @property
    def comma(self) -> int:
        """Where the comma stands in the text."""
        return self.text.index(b",")

    @property
    def opening(self) -> int:
        """Where the next event begins in the text."""
        return self.text.index(b"{")

    @property
    def has_line_break(self) -> bool:
        """Whether the file puts events on lines of their own, so that no string can hold this."""
        return b"\n" in self.text

    @property
    def indent(self) -> bytes:
        """Line break and spaces before an event's brace; empty for files without line breaks."""
        before = self.text[: self.opening]
        return before[before.rindex(b"\n") :] if self.has_line_break else b""

    def event_around(self, data: bytes | bytearray, place: int, stop: int) -> tuple[int, int]:
        """Start and end of the event at ``place``, in an array that ``stop`` closes."""
        start = data.rfind(self.text, 0, place)
        end = data.find(self.text, place, stop)
        return (
            1 if start < 0 else start + self.opening,
            stop - 1 if end < 0 else end + 1,
        )

    def split(self, array: bytes) -> list[bytes]:
        """The texts between boundaries in a JSON array, braces kept."""
        pieces = array[1:-1].split(self.text)
        head = self.text[self.opening :]
        last = len(pieces) - 1
        return [
            (head if number else b"") + piece + (b"}" if number < last else b"")
            for number, piece in enumerate(pieces)
        ]

    @staticmethod
    def learn(array: bytes | bytearray, otherwise: Boundary | None = None) -> Boundary:
        """Look between the first two events, else for what looks like a boundary most often."""
        text = array[1:_SAMPLE].decode("latin-1")  # one character per byte
        start = len(text) - len(text.lstrip())
        try:
            _, end = json.JSONDecoder().raw_decode(text, start)
            if match := _NEXT_EVENT.match(text, end):
                return Boundary(b"}" + match[0].encode("latin-1"))
        except (ValueError, RecursionError):
            pass  # the first event is broken or large
        if found := Counter(_SEPARATED.findall(array[:_SAMPLE])):
            return Boundary(bytes(found.most_common(1)[0][0]))
        far = _SEPARATED.search(array)
        if far or otherwise is None:
            return Boundary(bytes(far[0]) if far else b"},{")
        return otherwise
