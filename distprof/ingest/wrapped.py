"""What pages, terminals, shells and the runtimes of containers put around the lines of a text.

All readers of text see lines without it: a prefix that every line has (a quotation, the date of a
container's runtime, the name of a pod), a common indentation, colours, entities of HTML, the
encoding of PowerShell. Lines stay what they are, so that they are counted as the file has them.
"""

from __future__ import annotations

import codecs
import io
import re
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any, BinaryIO, cast

import msgspec

_Change = Callable[[bytes], bytes]

SNIFFED_BYTES = 1 << 16
"""How much of a file shows what its lines are wrapped in."""

_BLOCK_BYTES = 1 << 18
_MAX_LINE = 1 << 17  # of a line without end
_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_ROUNDS = 4  # of one prefix behind another
_FEWEST, _USUAL = 3, 0.9  # Lines with a label that are no chance, and share of all that have one.

_TEXTS = ["log", "message", "msg", "event", "textPayload", "line"]
_THEN = ["exception", "exc_info", "traceback"]
_KEYS = rb'"(?:%b)": ?"' % "|".join(_TEXTS).encode()
_OBJECTS = re.compile(rb'(?m)^[ \t]{0,20}(?:\{\s{0,8}(?:"[^\n]{0,2000}?)?)?' + _KEYS)
INNER = b"\x1f"
"""Stands before a line end within a text, so that lines are counted as the file has them."""

_DOCKER = re.compile(rb'\{"log": ?"')  # each line, by its driver json-file
_ENTITIES = {b"&quot;": b'"', b"&lt;": b"<", b"&gt;": b">", b"&#39;": b"'", b"&#x27;": b"'",
             b"&amp;": b"&"}  # fmt: skip
_SPACES = b"\xc2\xa0"
_ESCAPES = re.compile(
    rb"\x1b(?:\[[0-9;?]{0,40}[ -/]{0,8}[@-~]|\][^\x07\x1b]{0,500}(?:\x07|\x1b\\)|[@-Z\\-_])"
)
_COLOURS = re.compile(
    rb"(?:\^\[|\\(?:x1b|033|e|u001b)|\xef\xbf\xbd|\xe2\x90\x9b)?\[\d{1,3}(?:;\d{1,3}){0,4}m", re.I
)
"""Colours whose escape character a page or a program made visible or dropped."""

_RESET = re.compile(rb"\[0?m(?![ ]?\d)")  # unlike 0 minutes

_QUOTED = (re.compile(rb">(?!>>) ?"),)
_TIMES = tuple(map(re.compile, (
    rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3,9}(?:Z|[+-]\d\d:?\d\d) (?:std(?:out|err) [FP] )?",
    rb"[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d [\w.-]{1,64} (?!kernel)[\w.-]{1,64}(?:\[\d{1,9}\])?: ",
)))  # fmt: skip
"""Dates by runtimes of containers and by the journal, which precede what a program printed."""

_LABELS = tuple(map(re.compile, (
    rb"\[pod/[\w./-]{1,200}\] ",
    rb"[a-z][a-z0-9-]{2,60}-(?:\d{1,4}|[a-z0-9]{5}) [a-z][a-z0-9-]{1,40} ",
    rb"[a-z]\w{0,60}-[\w.-]{0,60}\d {1,40}\| ",
    rb"\([A-Za-z][\w.()]{0,80} pid=\d{1,10}(?:, ip=[\w.:]{1,45})?\) ",
    rb"(?!(?:rank|gpu|cuda|step|epoch|iter|local|task|run)[-_]?\d)"
    rb"[a-z]{2}[\w.-]{0,60}\d[\w.-]{0,60}: ",
)))  # fmt: skip
"""What kubectl, stern, Docker Compose, Ray and pdsh call the process or the machine of a line."""

_FRAME = re.compile(rb'File "|at |#\d|/|\S+ \([^()]{1,200}:\d+\)')  # indented by itself
_FENCE = re.compile(rb"(?m)^```\w{0,20}[ \t]*$")
_FENCED = re.compile(rb"\s*```\w{0,20}[ \t]*\n(?:(?!```)[^\n]*\n)*```\s*")
_PADDED = re.compile(rb"(?m)(?<![ \t])[ \t]+$")


_OBJECT = re.compile(rb'\s*(?:\[\s*)?\{\s*(?:["}]|$)')


def begins_object(start: bytes) -> bool:
    """Whether this may begin JSON, an object or a list of them; trainers print other quotes."""
    return _OBJECT.match(start) is not None


class _Unwrapped(io.RawIOBase):
    """The text of a stream, without what it is wrapped in; it can only be read from its start."""

    def __init__(self, stream: BinaryIO, made: Callable[[], _Change]) -> None:
        self._stream, self._made = stream, made
        self.seek(0)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        if offset or whence:
            raise io.UnsupportedOperation("only a seek to the start is possible")
        self._rest, self._ready, self._change = b"", b"", self._made()
        return self._stream.seek(0)

    def readinto(self, buffer: Any) -> int:
        """Fill ``buffer`` from blocks of whole lines."""
        read = getattr(self._stream, "read1", self._stream.read)
        block = b" "
        while not self._ready and block:
            block = read(_BLOCK_BYTES)
            text = self._rest + block
            is_long = not block or len(text) > _MAX_LINE
            end = text.rfind(b"\n") + 1 or (len(text) if is_long else 0)
            end = end if block else len(text)
            self._ready, self._rest = self._change(text[:end]), text[end:]
        size = min(len(memoryview(buffer)), len(self._ready))
        buffer[:size], self._ready = self._ready[:size], self._ready[size:]
        return size


def without_wrapping(stream: BinaryIO, start: bytes, *, keeps_labels: bool) -> BinaryIO:
    """A stream of the lines themselves, as far as its ``start`` shows what they are wrapped in.

    ``keeps_labels`` keeps the dates of containers' runtimes and the names before each line.
    """
    made = _made(start, keeps_labels=keeps_labels)
    if made is None:
        return stream
    return cast("BinaryIO", io.BufferedReader(_Unwrapped(stream, made), _BLOCK_BYTES))


def lines_of(data: bytes) -> bytes:
    """The lines themselves of a file that was read whole."""
    made = _made(data[:SNIFFED_BYTES], keeps_labels=False)
    return data if made is None else made()(data)


def _made(start: bytes, *, keeps_labels: bool) -> Callable[[], _Change] | None:
    """What makes a change of blocks, for each reading of the file; None if it changes nothing."""
    is_wide = start[:2] in _UTF_16
    text = start.decode("utf-16", "replace").encode() if is_wide else start
    is_other = b"\0" in text[:4096] or (begins_object(text) and not _DOCKER.match(text))
    steps = () if is_other else _steps(text, keeps_labels=keeps_labels)
    if not (is_wide or steps or start.startswith(codecs.BOM_UTF8)):
        return None

    def made() -> _Change:
        decode = codecs.getincrementaldecoder("utf-16")("replace").decode

        def change(text: bytes) -> bytes:
            text = decode(text).encode("utf-8", "replace") if is_wide else text
            text = text.removeprefix(codecs.BOM_UTF8)
            for step in steps:
                text = step(text)
            return text

        return change

    return made


@lru_cache(16)  # several readers look at the start of each file
def _steps(start: bytes, *, keeps_labels: bool) -> tuple[_Change, ...]:
    """What to do with each block, in order."""
    steps: list[_Change] = [unwrapped] if _DOCKER.match(start) else []
    if b"&" in start and any(entity in start for entity in _ENTITIES):
        steps.append(without_entities)
    if _SPACES in start:
        steps.append(lambda text: text.replace(_SPACES, b" "))
    if b"\x1b" in start or _RESET.search(start):
        steps.append(uncoloured)
    if b"\r\n" in start:
        steps.append(lambda text: text.replace(b"\r\n", b"\n"))
    if _FENCED.fullmatch(start):
        steps.append(partial(_FENCE.sub, b""))
    for step in steps:
        start = step(start)
    for _ in range(_ROUNDS):
        lines = [line for line in start.split(b"\n") if line.strip()]
        prefix = _prefix(lines, keeps_labels=keeps_labels)
        if not prefix:
            break
        steps.append(partial(re.compile(rb"(?m)^(?:%b)" % prefix).sub, b""))
        start = steps[-1](start)
    is_padded = _is_usual(lambda line: line[-1:].isspace(), lines)
    return (*steps, partial(_PADDED.sub, b"")) if lines and is_padded else tuple(steps)


def _prefix(lines: Sequence[bytes], *, keeps_labels: bool) -> bytes:
    """An expression for what nearly every line begins with; empty if there is none."""
    if len(lines) < 2:
        return b""
    for pattern in _QUOTED if keeps_labels else (*_QUOTED, *_TIMES):
        if all(map(pattern.match, lines[:_FEWEST])) and _is_usual(pattern.match, lines):
            return pattern.pattern
    labels = _LABELS if len(lines) >= _FEWEST and not keeps_labels else ()
    found = next(filter(None, (pattern.match(lines[1]) for pattern in labels)), None)
    label = found[0].rstrip() if found else b""
    if label and _is_usual(lambda line: line.startswith(label), lines):
        return re.escape(label) + b" ?"
    indentation = min((line[: -len(line.lstrip())] for line in lines), key=len)
    first = lines[0].removeprefix(indentation)
    is_none = first[:1].isspace() or _FRAME.match(first)
    is_common = not is_none and all(line.startswith(indentation) for line in lines)
    return re.escape(indentation) if is_common else b""


def _is_usual(fits: Callable[[bytes], object], lines: Sequence[bytes]) -> bool:
    return sum(bool(fits(line)) for line in lines) >= _USUAL * len(lines)


def without_entities(text: bytes) -> bytes:
    """Text from the source of a page."""
    for entity, character in _ENTITIES.items() if b"&" in text else ():
        text = text.replace(entity, character)
    return text


def untagged(text: str) -> str:
    """Text without the tags of HTML around it: cells of its tables between tabs."""
    text = re.sub(r"(?i)</?br?\b ?/?>", " ", text)
    text = re.sub(r"(?i)</t[dh]>\s{0,40}<t[dh]\b[^<>]{0,99}>", "\t", text)
    return re.sub(r"(?i)</?(?:t(?:able|body|head|[rdh])|pre)\b[^<>]{0,99}>", "\n", text)


def uncoloured(text: bytes) -> bytes:
    """Text without escape sequences and colours."""
    text = _ESCAPES.sub(b"", text) if b"\x1b" in text else text
    return _COLOURS.sub(b"", text) if _RESET.search(text) else text


def unwrapped(block: bytes) -> bytes:
    """A block without colours and the JSON objects into which runtimes of containers put each line.

    Services that collect logs write a list of such objects, with a line for each of their keys.
    """
    block = without_entities(block)
    if (b"{" in block[:16] or b'": "' in block) and _OBJECTS.search(block):
        block = b"".join(map(_text_of, block.splitlines(keepends=True)))
    return uncoloured(block)


def _text_of(line: bytes) -> bytes:
    """The text in a JSON object; other lines as they are."""
    plain = line.strip()
    plain = b"{%b}" % plain.rstrip(b",") if plain.startswith(b'"') else plain
    try:
        record = msgspec.json.decode(plain)
        record = record.get("jsonPayload") or record
        texts = [record[name] for name in _TEXTS + _THEN if isinstance(record.get(name), str)]
    except (msgspec.DecodeError, AttributeError, RecursionError):
        return line
    if not texts or "loss" in record:
        return line
    lines = "\n".join(texts).encode("utf-8", "replace").rstrip().splitlines()
    return (INNER + b"\n").join(lines) + b"\n"
