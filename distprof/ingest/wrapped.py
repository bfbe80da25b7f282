"""What pages, terminals, shells and the runtimes of containers put around the lines of a text.

All readers of text see lines without it: a prefix that every line has (a quotation, the date of a
container's runtime, the name of a pod), a common indentation, colours, entities of HTML, the
encoding of PowerShell. Lines stay what they are, so that they are counted as the file has them.
"""

from __future__ import annotations

import codecs
import io
import re
from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from itertools import pairwise
from typing import Any, BinaryIO, cast

import msgspec

from distprof.bounds import byte_patterns_beside, table_beside

_Change = Callable[[bytes], bytes]

SNIFFED_BYTES = 1 << 16
"""How much of a file shows what its lines are wrapped in."""

_BLOCK_BYTES = 1 << 18
_MAX_LINE = 1 << 17  # of a line without end
_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_ROUNDS = 4  # of one prefix behind another
_NARROWEST, _WIDEST = 50, 400  # terminals that break lines
_FEWEST = 3  # lines that are no chance
_MOST, _USUAL = 0.75, 0.9  # shares of all lines

INNER = b"\x1f"
"""Stands before a line end within a text, so that lines are counted as the file has them."""

_TABLE = ("distprof.ingest.output", "read_bytes.toml")
_HOW = byte_patterns_beside(*_TABLE)
_LONGEST_LABEL = 120


def begins_object(start: bytes) -> bool:
    """Whether this may begin JSON, an object or a list of them; trainers print other quotes."""
    return _HOW["object"].match(start) is not None


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


def without_wrapping(
    stream: BinaryIO, start: bytes, *, keeps_labels: bool, keeps_ranks: bool
) -> BinaryIO:
    """A stream of the lines themselves, as far as its ``start`` shows what they are wrapped in.

    ``keeps_labels`` keeps the dates of containers' runtimes and the names before each line, and
    ``keeps_ranks`` the rank that a launcher prints before all of them.
    """
    made = _made(start, keeps_labels, keeps_ranks)
    if made is None:
        return stream
    return cast("BinaryIO", io.BufferedReader(_Unwrapped(stream, made), _BLOCK_BYTES))


def lines_of(data: bytes) -> bytes:
    """The lines themselves of a file that was read whole."""
    made = _made(data[:SNIFFED_BYTES], False, False)
    return data if made is None else made()(data)


def _made(start: bytes, keeps_labels: bool, keeps_ranks: bool) -> Callable[[], _Change] | None:
    """What makes a change of blocks, for each reading of the file; None if it changes nothing."""
    is_wide = start[:2] in _UTF_16
    text = start.decode("utf-16", "replace").encode() if is_wide else start
    is_other = b"\0" in text[:4096] and not _HOW["holed"].fullmatch(text)
    is_other |= begins_object(text) and unwrapped(text) == text
    steps = () if is_other else _steps(text, keeps_labels, keeps_ranks)
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
def _steps(start: bytes, keeps_labels: bool, keeps_ranks: bool) -> tuple[_Change, ...]:
    """What to do with each block, in order."""
    steps: list[_Change] = []
    if begins_object(start):
        steps += (unwrapped, partial(_HOW["structure"].sub, b""))
    if b"\x1b" in start or _HOW["reset"].search(start):
        steps.append(uncoloured)
    for step in steps:
        start = step(start)
    for row in table_beside(*_TABLE)["wrapping"]:
        part, by = re.compile(row["replaces"].encode()), row.get("by", "").encode()
        shows = re.compile(row.get("shows", row["replaces"]).encode())
        if row.get("sign", "").encode() in start and shows.search(start):
            steps.append(cast("_Change", partial(part.sub, by)))
            start = steps[-1](start)
    for _ in range(_ROUNDS):
        lines = [line for line in start.split(b"\n") if line.strip()]
        prefix = _prefix(lines, keeps_labels, keeps_ranks)
        if not prefix:
            break
        steps.append(partial(re.compile(rb"(?m)^(?:%b)" % prefix).sub, b""))
        start = steps[-1](start)
    if width := _width(start.split(b"\n")):
        whole = rb"(?m)^([^\n]{%d})\n(?=[^\n])(?!%b)" % (width, _HOW["new_record"].pattern)
        steps.append(partial(re.compile(whole).sub, rb"\1"))
    is_padded = _is_usual(lambda line: line[-1:].isspace(), lines)
    return (*steps, partial(_HOW["padded"].sub, b"")) if lines and is_padded else tuple(steps)


def _prefix(lines: Sequence[bytes], keeps_labels: bool, keeps_ranks: bool) -> bytes:
    """An expression for what nearly every line begins with; empty if there is none."""
    if len(lines) < 2:
        return b""
    quoted, dated = _HOW["quoted"], _HOW["dated"]
    if sum(quoted.match(line) is not None for line in lines) >= max(2, _MOST * len(lines)):
        return quoted.pattern
    is_dated = not keeps_labels and all(map(dated.match, lines[:_FEWEST]))
    if is_dated and _is_usual(dated.match, lines):
        return dated.pattern
    numbers = [int(one[0]) for one in map(_HOW["numbered"].match, lines) if one]
    if len(lines) == len(numbers) >= _FEWEST and numbers == [*range(numbers[0], numbers[-1] + 1)]:
        return _HOW["numbered"].pattern
    if len(lines) >= _FEWEST and not keeps_labels and (label := _label(lines)):
        return label
    ranked = _HOW["ranked"].match(lines[0])
    if ranked and len(lines) >= _FEWEST and not keeps_ranks:
        label = re.escape(ranked[0])
        behind = {line[len(ranked[0]) :][:1] for line in lines if line.startswith(ranked[0])}
        if _is_usual(re.compile(label).match, lines):
            return label + b" ?" * (behind <= {b"", b" "})
    indentation = min((line[: -len(line.lstrip())] for line in lines), key=len)
    first = lines[0].removeprefix(indentation)
    is_none = first[:1].isspace() or _HOW["indented"].match(first)
    is_common = not is_none and all(line.startswith(indentation) for line in lines)
    return re.escape(indentation) if is_common else b""


def _label(lines: Sequence[bytes]) -> bytes:
    """An expression for what precedes lines of which some show that a program began them behind it.

    Its numbers may differ: times, and numbers of lines. Names of launchers need not be shown.
    """
    for end in [one.end() for one in _HOW["delimiter"].finditer(lines[1][:_LONGEST_LABEL])][::-1]:
        label = lines[1][:end]
        if _HOW["content"].search(label):
            continue
        parts = map(re.escape, _HOW["number"].split(label.rstrip(b" ")))
        found = re.compile(rb" *\d+".join(parts) + b" ?" * label.endswith(b" "))
        begun = _HOW["begun_timed" if _HOW["clock"].search(label) else "begun"]
        if _is_usual(found.match, lines) and any(
            begun.match(line, one.end()) for line in lines if (one := found.match(line))
        ):
            return found.pattern
    named = _HOW["label"].match(lines[1])
    label = re.escape(named[0].rstrip()) + b" ?" if named else b""
    return label if label and _is_usual(re.compile(label).match, lines) else b""


def _width(lines: Sequence[bytes]) -> int:
    """The width at which a terminal broke long lines; 0 if none did."""
    width = max(map(len, lines))
    if any(b"NativeCommandError" in line for line in lines):  # PowerShell breaks only errors
        lengths = Counter(len(line) for line in lines if len(line) >= _NARROWEST)
        width = lengths.most_common(1)[0][0] if lengths else width
    full = [pair for pair in pairwise(lines) if len(pair[0]) == width and pair[1].strip()]
    broken = [_begun(below) for line, below in full if _is_broken(line, below)]
    is_wide = _NARROWEST <= width <= _WIDEST and len(full) < _USUAL * len(lines)
    is_longer = sum(len(below) == width for _, below in full) >= _FEWEST
    are_others = is_longer or 2 * len({*broken}) > len(broken)  # else a program prints pairs
    return width if is_wide and are_others and len(broken) >= max(_FEWEST, len(full) / 2) else 0


def _is_broken(line: bytes, following: bytes) -> bool:
    """Whether a line may end within a word that the following one ends: rows of tables do not."""
    is_table = min(line.count(b"  "), following.count(b"  ")) > _FEWEST
    is_word = (line[-1:] + following[:1]).isalnum()
    return is_word and not is_table and _begun(line) != _begun(following)


def _begun(line: bytes) -> bytes:
    return _HOW["digits"].sub(b"0", line[:12])


def _is_usual(fits: Callable[[bytes], object], lines: Sequence[bytes]) -> bool:
    return sum(bool(fits(line)) for line in lines) >= _USUAL * len(lines)


def untagged(text: str) -> str:
    """Text without the tags of HTML around it: cells of its tables between tabs."""
    text = re.sub(r"(?i)</?br?\b ?/?>", " ", text)
    text = re.sub(r"(?i)</t[dh]>\s{0,40}<t[dh]\b[^<>]{0,99}>", "\t", text)
    return re.sub(r"(?i)</?(?:t(?:able|body|head|[rdh])|pre)\b[^<>]{0,99}>", "\n", text)


def uncoloured(text: bytes) -> bytes:
    """Text without escape sequences and colours."""
    text = _HOW["escapes"].sub(b"", text) if b"\x1b" in text else text
    return _HOW["colours"].sub(b"", text) if _HOW["reset"].search(text) else text


def unwrapped(block: bytes) -> bytes:
    """A block without colours and the JSON objects into which runtimes of containers put each line.

    Services that collect logs write a list of such objects, with a line for each of their keys.
    """
    if (b"{" in block[:16] or b'": "' in block) and _HOW["objects"].search(block):
        block = b"".join(map(_text_of, block.splitlines(keepends=True)))
    return uncoloured(block)


def _text_of(line: bytes) -> bytes:
    """The text in a JSON object; other lines as they are."""
    plain = line.strip().rstrip(b",")
    named = table_beside(*_TABLE)["parts"]
    try:
        record = msgspec.json.decode(b"{%b}" % plain if _HOW["key"].match(plain) else plain)
        record = {"line": record} if isinstance(record, str) else record
        outer = (record[key] for key in named["OUTER"] if isinstance(record.get(key), dict))
        record = next(outer, record)
        texts = [record[name] for name in named["TEXTS"] if isinstance(record.get(name), str)]
    except (msgspec.DecodeError, AttributeError, RecursionError):
        return line
    if not texts or b'loss":' in plain:
        return line
    lines = "\n".join(texts).encode("utf-8", "replace").rstrip().splitlines()
    return (INNER + b"\n").join(lines) + b"\n"
