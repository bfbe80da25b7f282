"""Find the events of a file: windows of whole events, and the text around them.

A cut between two events is guessed from the text that separates them and verified by parsing: a
prefix closed with ``]`` is a JSON array only if the cut was between two elements. No tokeniser is
needed, and any layout works.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TypeVar

import msgspec

from distprof.errors import InputError
from distprof.ingest.kineto.events import STEP_PREFIX
from distprof.ingest.kineto.source import ByteSource
from distprof.kernel import kernel

_LARGEST_FIRST_EVENT = 1 << 14
_SAMPLE = 1 << 18
_SEPARATED = re.compile(rb"\}\s*,\s*\{")
_NEXT_EVENT = re.compile(r'\s*,\s*\{(?:\s*")?')


class Boundary(msgspec.Struct, frozen=True):
    """The text from the end of one event to the first key of the next: a hint, never relied on."""

    text: bytes  # Begins with ``}`` and holds one ``,`` and one ``{``.

    @property
    def comma(self) -> int:
        """Position of the comma in the text."""
        return self.text.index(b",")

    @property
    def opening(self) -> int:
        """Where the next event begins in the text."""
        return self.text.index(b"{")

    @property
    def has_line_break(self) -> bool:
        """Whether events are on separate lines, so no string can hold this text."""
        return b"\n" in self.text

    @property
    def indent(self) -> bytes:
        """Line break and spaces before an event's brace; empty if the file has no line breaks."""
        before = self.text[: self.opening]
        return before[before.rindex(b"\n") :] if self.has_line_break else b""

    def event_around(self, data: bytes | bytearray, place: int, stop: int) -> tuple[int, int]:
        """Start and end of the event at ``place``, in an array that ``stop`` closes."""
        start = data.rfind(self.text, 0, place)
        end = data.find(self.text, place, stop)
        return 1 if start < 0 else start + self.opening, stop - 1 if end < 0 else end + 1

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
    def learn(array: bytes | memoryview, otherwise: Boundary | None = None) -> Boundary:
        """The text between the first two events, else the most frequent text like a boundary."""
        text = str(array[1:_LARGEST_FIRST_EVENT], "latin-1")  # one character per byte
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


# Windows of whole events --------------------------------------------------------------------------

WINDOW_BYTES = 2 << 20  # decoded at once: small enough that the result stays in the CPU cache
SEARCHED_WINDOW_BYTES = 4 << 20  # searched for a few rows: each window costs more than its text
LARGEST_EVENT_BYTES = 64 << 20  # a longer event is skipped, so memory stays bounded
LARGEST_METADATA_BYTES = 64 << 20  # more is refused before the events, and not read after them
_FIRST_READ = 1 << 16
_BLOCK = 1 << 18  # larger blocks are newly mapped memory each time, which is slower
_LARGEST_LAST_EVENT = 16 << 20
_MOST_CANDIDATES = 32
_EVENTS_KEY = re.compile(rb'"traceEvents"\s*:\s*(?=\S)')
_END = re.compile(rb'\}\s*,?\s*(\])(?=\s*(?:,\s*(?:"|\Z)|\}\s*\Z|\Z))')
_EMPTY = re.compile(rb"\[\s*(\])")
_BETWEEN = b" \t\r\n,"
_T = TypeVar("_T")
Take = Callable[[bytearray, int, int], bool]
"""``take(data, stop, offset)``: accept ``data[:stop]``, a JSON array at byte ``offset``
of the file, or accept nothing and return False if it is not one."""

# Like :data:`Take` for a text that is known to be damaged: accept what is recoverable.
Salvage = Callable[[bytearray, int, int], None]


class Framer:
    """Walks through the events of one file; ``searched`` windows are searched for a few rows."""

    def __init__(self, source: ByteSource, name: str, *, searched: bool = False) -> None:
        self._usual = SEARCHED_WINDOW_BYTES if searched else WINDOW_BYTES
        self.boundary: Boundary | None = None  # learned from two events, again if it fails
        self.tail = b""  # text after the events
        self.ended = False  # whether the end of the array was found
        self.lost_bytes = 0  # after the last complete event, if the array has no end
        self.truncated_at = 0  # where these begin
        self.num_giants = 0  # events skipped for their size
        self._source = source
        self._exhausted = False
        self._wanted = self._usual
        self.head, self._data = self._find_events(name)  # no head before a bare list of events
        self._size = len(self._data)
        self._next = bytearray()  # the window after this one
        self.offset = len(self.head)  # byte of the file at which the current window begins

    def run(
        self, take: Take, salvage: Salvage, is_enough: Callable[[], bool] = lambda: False
    ) -> None:
        """Hand out events window by window, until there are no more or ``is_enough`` says so."""
        while not self._ends_or_advances(take, salvage) and not is_enough():
            pass

    def _ends_or_advances(self, take: Take, salvage: Salvage) -> bool:
        self._fill()
        if self.boundary is None:
            self.boundary = Boundary.learn(memoryview(self._data)[: self._size])
        if self._exhausted:
            if not self._take_end(take, salvage):
                self._take_truncated(take, salvage)
            return True
        comma = self._last_comma()
        if comma < 0:
            if self._take_end(take, salvage):
                return True
            if self._size < LARGEST_EVENT_BYTES:
                self._wanted = 2 * self._size
                self.boundary = Boundary.learn(memoryview(self._data)[: self._size], self.boundary)
            else:
                self.num_giants += 1
                self._skip_event()
            return False
        if reads_ahead := self._source.is_long:
            self._begin_next(comma)
        if not self._take_until(comma, take):
            if self._take_end(take, salvage):
                return True
            self._take_until(comma, salvage)
        if reads_ahead:
            self._go_to_next(comma)
        else:
            self._drop(comma)
        return False

    def _find_events(self, name: str) -> tuple[bytes, bytearray]:
        """The text before the array of events, and everything read from its bracket on."""
        data = bytearray()
        while True:
            # Read as much again each time, because each search starts from the beginning.
            size, wanted = len(data), 2 * len(data)
            while block := self._source.read(_BLOCK if size else _FIRST_READ):
                data += block
                if len(data) >= wanted:
                    break
            text = data.lstrip(_BETWEEN[:4])
            if text[:1] == b"[":
                return b"", text
            if text and text[:1] != b"{":
                raise _not_a_trace(name, f"it begins with {bytes(text[:20])!r}")
            if match := _EVENTS_KEY.search(data):
                if data[match.end() : match.end() + 1] != b"[":
                    raise _not_a_trace(name, "traceEvents is not a list")
                return bytes(data[: match.end()]), data[match.end() :]
            if not block or len(data) > LARGEST_METADATA_BYTES:
                raise _no_events(name, data, self._source.damage)

    def _fill(self) -> None:
        """Read until the window is full."""
        if self._size >= self._wanted or self._exhausted:
            return
        if len(self._data) < self._wanted:
            self._data = self._data.ljust(self._wanted, b" ")
        count = self._source.read_into(memoryview(self._data)[self._size : self._wanted])
        self._size += count
        self._exhausted = self._size < self._wanted

    def _begin_next(self, comma: int) -> None:
        """Begin the next window with the text from ``comma`` on, and read on in the background.

        Two windows take turns, because newly mapped memory is slow.
        """
        rest = self._size - comma
        size = max(self._usual, rest)
        if len(self._next) < size:
            self._next = bytearray(size)
        with memoryview(self._data) as window:  # a bytearray would copy the text twice
            self._next[:rest] = window[comma : self._size]
        self._next[0] = ord("[")
        self._source.begin_reading(memoryview(self._next)[rest:size])

    def _go_to_next(self, comma: int) -> None:
        rest = self._size - comma
        count = self._source.finish_reading()
        self._data, self._next = self._next, self._data
        self._size = rest + count
        self._exhausted = self._size < self._usual
        self.offset += comma
        self._wanted = self._usual

    def _last_comma(self) -> int:
        assert self.boundary is not None
        cut = self._data.rfind(self.boundary.text, 0, self._size)
        return cut + self.boundary.comma if cut > 0 else -1

    def _take_until(self, stop: int, take: Callable[[bytearray, int, int], _T]) -> _T:
        """Close the array at ``stop`` temporarily and hand it out."""
        kept = self._data[stop]
        self._data[stop] = ord("]")
        try:
            return take(self._data, stop + 1, self.offset)
        finally:
            self._data[stop] = kept

    def _drop(self, comma: int) -> None:
        """Forget the text before ``comma``, which opens the next array."""
        rest = self._data[comma : self._size]
        rest[0] = ord("[")
        self._size = len(rest)
        self._data[: self._size] = rest
        self.offset += comma
        self._wanted = self._usual

    def _skip_event(self) -> None:
        assert self.boundary is not None
        self._wanted = self._usual
        while not self._exhausted:
            kept = self._data[max(0, self._size - len(self.boundary.text)) : self._size]
            self.offset += self._size - len(kept)
            self._data, self._size = kept, len(kept)
            self._fill()
            found = self._data.find(self.boundary.text, 0, self._size)
            if found >= 0:
                self._drop(found + self.boundary.comma)
                return
        self._data, self._size = bytearray(b"["), 1

    def _take_end(self, take: Take, salvage: Salvage) -> bool:
        """Hand out the last events if the array ends in this window."""
        if match := _EMPTY.match(self._data, 0, self._size):
            self._finish(match.end())
            return True
        for stop, end in self._candidates():
            if self._take_until(stop, take):
                self._finish(end)
                return True
        # Metadata may also hold text that looks like an end.
        for stop, end in sorted(self._candidates()):
            if self._is_credible(stop, end):
                self._take_until(stop, salvage)
                self._finish(end)
                return True
        return False

    def _candidates(self) -> Iterator[tuple[int, int]]:
        """Where the array may end, likeliest first: end of the last event and end of the array."""
        last = max(0, self._last_comma() - 1)
        for low, high in ((last, self._size), (0, last)):
            for count, match in enumerate(_END.finditer(self._data, low, high)):
                if count == _MOST_CANDIDATES:
                    break
                yield match.start() + 1, match.end(1)

    def _is_credible(self, stop: int, end: int) -> bool:
        """Whether an end is plausible that parsing cannot verify, as the events are damaged."""
        rest = self._data[end : self._size]
        if self._exhausted and not self.head:
            return not rest.strip()
        if self._exhausted:
            try:
                json.loads(b'{"":0' + rest)
            except (ValueError, RecursionError):
                return False
            return True
        assert self.boundary is not None
        indent = self.boundary.indent
        return bool(indent) and self._data.endswith(indent, 0, stop - 1)

    def _finish(self, end: int) -> None:
        tail = self._data[end : self._size]
        while len(tail) < LARGEST_METADATA_BYTES and (block := self._source.read(_BLOCK)):
            tail += block
        self.tail = bytes(tail)
        self.offset += end
        self.ended = True

    def _take_truncated(self, take: Take, salvage: Salvage) -> None:
        """Hand out every complete event of a window in which the file ends early."""
        if (comma := self._last_comma()) >= 0:
            if not self._take_until(comma, take):
                self._take_until(comma, salvage)
            self._drop(comma)
        rest = self._data[1 : self._size]
        end = _end_of_event(rest)
        if end:
            last = bytearray(b"[%b]" % bytes(rest[:end]))
            if not take(last, len(last), self.offset):
                salvage(last, len(last), self.offset)
        self.tail = bytes(rest[end:])
        self.lost_bytes = len(self.tail.strip(_BETWEEN))
        self.truncated_at = self.offset + 1 + end


def _end_of_event(text: bytearray) -> int:
    """Where the event at the start of ``text`` ends, 0 if it is incomplete."""
    if len(text) > _LARGEST_LAST_EVENT:
        return 0
    decoded = text.decode("latin-1")
    start = len(decoded) - len(decoded.lstrip())
    try:
        event, end = json.JSONDecoder().raw_decode(decoded, start)
    except (ValueError, RecursionError):
        return 0
    return end if isinstance(event, dict) else 0


def _not_a_trace(name: str, found: str) -> InputError:
    return InputError(
        name,
        expected="a PyTorch profiler trace: a JSON object with a list `traceEvents`",
        found=found,
        fix="name a file that export_chrome_trace or tensorboard_trace_handler wrote",
    )


def _no_events(name: str, data: bytearray, damage: str | None) -> InputError:
    if damage:
        return _not_a_trace(name, f"{damage}, before any event")
    try:
        parsed = json.loads(data)
    except (ValueError, RecursionError):
        return _not_a_trace(name, f"{len(data)} bytes without traceEvents")
    keys = ", ".join(sorted(map(repr, parsed))[:5]) if isinstance(parsed, dict) else "not an object"
    return _not_a_trace(name, f"JSON without traceEvents ({keys or 'empty object'})")


# Device rows only: search for them, then decode the hits ------------------------------------------

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
