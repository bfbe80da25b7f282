"""Bytes of logs: files or URLs, gzipped or not, in blocks that end where lines end.

Memory stays bounded whatever a line or an archive holds.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

from distprof.errors import UsageError
from distprof.ingest.job.files import Folder

__all__ = ["DAMAGE", "Blocks", "beginning", "opened", "read_some"]

DAMAGE = (OSError, EOFError, zlib.error, ValueError)
"""What reading damaged bytes may raise."""

BLOCK_BYTES = 1 << 20
MAX_LINE_BYTES = 1 << 17
MAX_BYTES = 1 << 38
"""Unpacked; a small file of gzip can hold more than a day's work."""


@contextmanager
def opened(path: str) -> Iterator[BinaryIO]:
    """The bytes of a file or URL, unpacked.

    Args:
        path: Path or fsspec URL.
    """
    parent, _, name = (path if "://" in path else str(Path(path).expanduser())).rpartition("/")
    folder = Folder(parent or ("/" if path.startswith("/") else "."))
    with folder.open(name) as stream:
        start = stream.read(2)
        stream.seek(0)
        if start == b"\x1f\x8b":
            with gzip.GzipFile(fileobj=stream) as unpacked:
                yield cast("BinaryIO", unpacked)
        else:
            yield stream


def read_some(stream: BinaryIO, size: int) -> tuple[bytes, str]:
    """Bytes up to a size, the end, or damage, and what the damage is.

    An archive that is cut gives what comes before the cut, which one large read would lose.

    Args:
        stream: Where bytes come from.
        size: As many, unless there are fewer.
    """
    parts: list[bytes] = []
    left = size
    read = getattr(stream, "read1", stream.read)
    while left > 0:
        try:
            part = read(left)
        except DAMAGE as error:
            return b"".join(parts), " ".join(f"{error}".split()) or type(error).__name__
        if not part:
            break
        parts.append(part)
        left -= len(part)
    return b"".join(parts), ""


def beginning(source: str, size: int, *, endings: tuple[str, ...] = ()) -> bytes:
    """The first bytes of a file, to tell its kind; empty where it cannot be read. Never raises.

    Args:
        source: Path or fsspec URL of a file, gzipped or not.
        size: As many bytes, unless there are fewer.
        endings: Of names that may be of the kind; a file of another name is not opened.
    """
    if endings and not source.lower().endswith(endings):
        return b""
    try:
        with opened(source) as stream:
            return read_some(stream, size)[0]
    except (*DAMAGE, UsageError):  # of a protocol that nothing here reads
        return b""


@dataclass(slots=True)
class Blocks:
    """Blocks of whole lines; ends of lines are LF, CR LF or CR, and LF in what comes out.

    A line longer than :data:`MAX_LINE_BYTES` comes in pieces.

    Args:
        stream: Where bytes come from.
    """

    stream: BinaryIO
    num_lines: int = 0
    num_bytes: int = 0
    damage: str = ""

    def __iter__(self) -> Iterator[bytes]:
        rest = b""
        for block in self._raw():
            end = block.rfind(b"\n") + 1
            if end:
                self.num_lines += block.count(b"\n")
                yield rest + block[:end]
                rest = block[end:]
            else:
                rest += block
            while len(rest) > MAX_LINE_BYTES:
                yield rest[:MAX_LINE_BYTES]
                rest = rest[MAX_LINE_BYTES:]
        if rest:
            self.num_lines += 1
            yield rest

    def _raw(self) -> Iterator[bytes]:
        held = b""
        while self.num_bytes <= MAX_BYTES:
            block, self.damage = read_some(self.stream, BLOCK_BYTES)
            if not block:
                break
            self.num_bytes += len(block)
            if held or b"\r" in block:
                block = held + block
                held = block[-1:] if block.endswith(b"\r") else b""
                block = block[: len(block) - len(held)]
                block = block.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
            yield block
            if self.damage:
                break
        else:
            self.damage = f"it has more than {MAX_BYTES:,} bytes"
        if held:
            yield b"\n"
