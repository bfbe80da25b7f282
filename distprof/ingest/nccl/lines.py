"""Split the lines of a terminal or a file into the messages of each process.

NCCL writes ``host:pid:tid [device] NCCL INFO text`` (``… file.cc:12 NCCL WARN text``). Launchers
put prefixes before it, and if ranks share a pipe, a line may hold several messages.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from distprof.bounds import byte_patterns_beside
from distprof.ingest.files import Blocks
from distprof.ingest.wrapped import uncoloured

MAX_LINE_BYTES = 1 << 16

_MAX_CACHED = 1 << 16
_MAX_HEADER = 600
_HOW = byte_patterns_beside(__package__, "lines.toml")

Message = tuple[tuple[bytes, int] | None, bytes, bytes]
"""Process (host and id; None if the line names none), level (empty for a version), text."""


def assigned(text: bytes) -> dict[bytes, bytes]:
    """Variables of NCCL and their values, as scripts and commands set them; the last one counts."""
    return dict(
        pair
        for line in _HOW["commands"].finditer(_HOW["cures"].split(text, 1)[0])
        for pair in _HOW["assigned"].findall(line[0])
    )


class Lines(msgspec.Struct):
    """Lines of a stream, read in bounded memory; line ends are LF, CR LF or CR."""

    blocks: Blocks
    num_shortened: int = 0

    def __iter__(self) -> Iterator[list[bytes]]:
        """Lines by block; not those of blocks that do not mention NCCL."""
        rest = b""
        is_shortened = False  # the current line was too long: skip its end
        for block in self.blocks.pieces():
            if b"] INFO " in block:  # of NCCL before 2.3
                block = _HOW["old"].sub(rb"\g<0>NCCL ", block)
                block = _HOW["old_ring"].sub(rb"Ring 00 : \1[receive] ", block)
            lines = block.split(b"\n")
            if is_shortened and len(lines) == 1:
                continue
            if is_shortened:
                del lines[0]
                is_shortened = False
            else:
                lines[0] = rest + lines[0]
            rest = lines.pop()
            if len(rest) > MAX_LINE_BYTES:
                lines.append(rest)
                rest, is_shortened = b"", True
            if b"CCL " in block or (lines and b"CCL " in lines[0]):
                yield self._cut(lines)
        if rest:
            yield [rest]

    def _cut(self, lines: list[bytes]) -> list[bytes]:
        """The lines, with long lines cut to the limit."""
        if max(map(len, lines), default=0) > MAX_LINE_BYTES:
            self.num_shortened += sum(len(line) > MAX_LINE_BYTES for line in lines)
            return [line[:MAX_LINE_BYTES] for line in lines]
        return lines


class Splitter:
    """Splits lines into messages of processes; learns host names from clean lines."""

    def __init__(self) -> None:
        self._hosts: dict[int, bytes] = {}  # process id to the first host name seen
        self._cache: dict[bytes, tuple[tuple[bytes, int] | None, int]] = {}

    def know(self, host: bytes, pid: int) -> None:
        """Learn the host of a process."""
        self._hosts[pid] = host

    def split(self, line: bytes) -> Iterator[Message]:
        """The messages of one line, in order."""
        line = uncoloured(line)
        process: tuple[bytes, int] | None = None
        level, begin, end = b"", -1, 0
        for mark in _HOW["mark"].finditer(line):
            start = mark.start()
            before, header = self._process(line[max(end, start - _MAX_HEADER) : start])
            if begin >= 0:
                yield process, level, line[begin : start - header].strip()
            process, level = before, mark[1] or b""
            begin, end = (mark.end() if level else start), mark.end()
        if begin >= 0:
            yield process, level, line[begin:].strip()

    def _process(self, before: bytes) -> tuple[tuple[bytes, int] | None, int]:
        """The process named at the end of the text before a mark, and the length of its header."""
        found = self._cache.get(before)
        if found is None:
            if len(self._cache) > _MAX_CACHED:
                self._cache.clear()
            found = self._cache[before] = self._parse(before)
        return found

    def _parse(self, before: bytes) -> tuple[tuple[bytes, int] | None, int]:
        text = before.rstrip()
        if not text.endswith(b"]"):  # a warning has its source location in between
            text = text.rpartition(b" ")[0].rstrip()
        head, _, device = text.rpartition(b"[")
        words = head.split()
        if not device.endswith(b"]"):
            return None, 0
        parts = words[-1].rsplit(b":", 3)[-3:] if words else []
        if len(parts) < 3 or not (parts[1].isdigit() and parts[2].isdigit()):
            return None, len(device) + 2 if device[:-1].isdigit() else 0  # copied without the host
        name = _HOW["host"].search(parts[0])
        if name is None or len(parts[1]) > 10:
            return None, 0
        pid = int(parts[1])
        host = self._known(name[0], pid)
        start = before.rfind(b":".join((host, parts[1], parts[2])))
        return (host, pid), len(before) - max(start, 0)

    def _known(self, name: bytes, pid: int) -> bytes:
        """The host name without text that another process wrote directly before it."""
        first = self._hosts.setdefault(pid, name)
        if name.endswith(first):
            return first
        if first.endswith(name):  # other text preceded the first name
            self._hosts[pid] = name
        return name
