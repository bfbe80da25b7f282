"""Bytes of files that are read, on this machine or behind an fsspec URL. All are untrusted.

Files of a run directory are read whole, up to a size limit. Logs, gzipped or not, are read in
blocks that end at line ends, so memory stays bounded whatever a line or an archive holds.
"""

from __future__ import annotations

import gzip
import io
import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, TypeVar, cast

import msgspec

from distprof.bounds import (
    Bound,
    GzipLimit,
    UnpackedTooLargeError,
    expanded,
    num_parts,
    open_plain,
    within,
)
from distprof.errors import InputError, UsageError
from distprof.ingest.wrapped import SNIFFED_BYTES, begins_object, unwrapped, without_wrapping
from distprof.remote import ask

_T = TypeVar("_T")
Refuse = Callable[[str, str], NoReturn]  # with a source, and what was found in it


class Folder(msgspec.Struct, frozen=True):
    """A folder by its path or URL. Picklable, so another process can read it."""

    path: str  # Local path or fsspec URL.

    @property
    def is_local(self) -> bool:
        """Whether it is on this machine."""
        return "://" not in self.path

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rstrip("/").rpartition("/")[2]

    def child(self, name: str) -> Folder:
        """A folder or file inside."""
        return Folder(f"{self.path.rstrip('/')}/{name}")

    def names(self) -> list[str]:
        """Names of what is inside, ascending; empty if it is not a folder or cannot be read."""
        try:
            if self.is_local:
                return sorted(entry.name for entry in Path(self.path).iterdir())
            found = ask(self.path, lambda system, path: system.ls(path, False))
            return sorted(str(name).rstrip("/").rpartition("/")[2] for name in found)
        except (OSError, ValueError):
            return []

    def folders(self) -> list[str]:
        """Names of the folders inside, ascending; empty if it is not a folder or cannot be read."""
        try:
            if self.is_local:
                return sorted(entry.name for entry in Path(self.path).iterdir() if entry.is_dir())
            found = ask(self.path, lambda system, path: system.ls(path, True))
            inside = (str(info["name"]) for info in found if info["type"] == "directory")
            return sorted(name.rstrip("/").rpartition("/")[2] for name in inside)
        except (OSError, ValueError):
            return []

    def size(self, name: str) -> int | None:
        """Size of the regular file ``name`` in bytes; None if there is none."""
        try:
            if self.is_local:
                path = Path(self.path, name)
                return path.stat().st_size if path.is_file() else None
            info = ask(self.child(name).path, lambda system, path: system.info(path))
            return int(info["size"]) if info.get("type") == "file" else None
        except (OSError, ValueError, TypeError, KeyError):
            return None

    @contextmanager
    def open(self, name: str) -> Iterator[BinaryIO]:
        """Open the file ``name`` for reading."""
        if self.size(name) is None:  # opening a pipe would wait for its writer
            raise FileNotFoundError(2, "no file with this name", name)
        if self.is_local:
            with open_plain(Path(self.path, name)) as stream:
                yield stream
            return
        with ask(self.child(name).path, lambda system, path: system.open(path, "rb")) as stream:
            yield stream

    def read(self, name: str, limit: int) -> bytes:
        """Read all of the file ``name``."""
        with self.open(name) as stream:
            data = stream.read(limit + 1)
        return within(data, limit, name)


# Logs ---------------------------------------------------------------------------------------------

# Exceptions that reading damaged bytes may raise.
DAMAGE = (OSError, EOFError, zlib.error, ValueError)
BLOCK_BYTES = 1 << 20
MAX_LINE_BYTES = 1 << 17
MAX_BYTES = 1 << 38  # limit after unpacking: a small gzip file can hold more than a day's work


_INSTALLED = {"site-packages", "dist-packages", "node_modules"}
_TRACES = (".json", ".json.gz")
NOT_LOGS = (*_TRACES, ".jsonl", ".csv", ".parquet", ".sqlite", ".pkl", ".tar", ".zip", ".py")


def walked(root: Path) -> Iterator[tuple[str, list[str], list[str]]]:
    """Each folder from a root on, its folders and its files, as :func:`os.walk` has them.

    Hidden ones, installed packages and virtual environments are left out: their demo traces and
    texts are of no job of the user.
    """
    for parent, folders, names in os.walk(root):
        is_environment = "pyvenv.cfg" in names
        inside = () if is_environment else sorted({*folders} - _INSTALLED)
        folders[:] = [name for name in inside if not name.startswith(".")]
        if not is_environment:
            yield parent, folders, sorted(names)


def paths_of_logs(source: str, most: int) -> list[str]:
    """The source itself, or all files in a folder and its subfolders, sorted by path.

    A folder with a trace, or with more than ``most`` files, is not a folder of logs: the result is
    empty. OSError if the folder cannot be read.
    """
    if "://" in source or not Path(expanded(source)).is_dir():
        return [source]
    files: list[str] = []
    for parent, _, names in walked(Path(expanded(source))):
        for name in names:
            if name.lower().endswith(_TRACES) or len(files) >= most:
                return []
            files.append(str(Path(parent, name)))
    return sorted(files)


def any_log(source: str, most: int, is_log: Callable[[str], bool]) -> bool:
    """Whether a file, or a file in a folder of logs, is of a kind; never raises for others."""
    try:
        return any(map(is_log, paths_of_logs(source, most)))
    except (OSError, ValueError, ImportError):
        return False


_MOST_FILES = 20_000  # as many as a folder of logs of any kind may hold
_SNIFFED_BYTES = 1 << 14


def holds_traces(source: str) -> bool:
    """Whether a source is a Chrome trace, or a folder that holds one or is no folder of logs."""
    try:
        paths = paths_of_logs(source, _MOST_FILES)
    except OSError:
        return False
    if paths != [source]:
        return not paths
    start = beginning(source, _SNIFFED_BYTES)
    return begins_object(start) and b'"traceEvents"' in start


@contextmanager
def opened(
    path: str, *, keeps_labels: bool = False, keeps_ranks: bool = True
) -> Iterator[BinaryIO]:
    """Open a file or URL and yield its bytes, unpacked; of a text, lines without wrapping.

    ``keeps_labels`` keeps the dates of containers' runtimes and the names before each line, and
    ``keeps_ranks`` the rank that a launcher prints before all of them.
    """
    parent, _, name = (path if "://" in path else expanded(path)).rpartition("/")
    folder = Folder(parent or ("/" if path.startswith("/") else "."))
    with folder.open(name) as stream:
        start = stream.read(2)
        stream.seek(0)
        if start == b"\x1f\x8b":
            stream = cast("BinaryIO", io.BufferedReader(_Unpacked(stream), BLOCK_BYTES >> 4))
        start, _ = read_some(stream, SNIFFED_BYTES)
        stream.seek(0)
        yield without_wrapping(stream, start, keeps_labels=keeps_labels, keeps_ranks=keeps_ranks)


_LOG_RATIO = 250  # a log that repeats a line compresses better than a trace
_LOG_SLACK_BYTES = 1 << 28


class _Packed:
    """Counts the bytes that go into an archive, and refuses endless empty members."""

    def __init__(self, stream: BinaryIO, limit: GzipLimit) -> None:
        self._stream, self._limit = stream, limit

    def read(self, size: int = -1) -> bytes:
        """Read from the archive, unless it has unpacked to next to nothing so far."""
        if self._limit.problem:
            raise UnpackedTooLargeError(self._limit.problem)
        data = self._stream.read(size)
        self._limit.packed += len(data)
        return data

    def seek(self, offset: int) -> int:
        """Go to the start: the archive is read again from there."""
        self._limit.packed = self._limit.unpacked = 0
        return self._stream.seek(offset)


class _Unpacked(io.RawIOBase):
    """The content of a gzip archive, as long as its size is in proportion to the archive."""

    def __init__(self, stream: BinaryIO) -> None:
        self._limit = GzipLimit(ratio=_LOG_RATIO, slack_bytes=_LOG_SLACK_BYTES)
        self._gzip = gzip.GzipFile(fileobj=cast("BinaryIO", _Packed(stream, self._limit)))

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True  # a seek reads the archive again

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._gzip.seek(offset, whence)

    def tell(self) -> int:
        return self._gzip.tell()

    def readinto(self, buffer: Any) -> int:
        """Fill ``buffer``, unless the archive unpacks to far more than logs do."""
        if self._limit.problem:
            raise UnpackedTooLargeError(self._limit.problem)
        data = self._gzip.read1(len(memoryview(buffer)))
        buffer[: len(data)] = data
        self._limit.unpacked += len(data)
        return len(data)


def read_some(stream: BinaryIO, size: int) -> tuple[bytes, str]:
    """Up to ``size`` bytes, those before any damage, and a description of the damage."""
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


def refusing(expected: str, fix: str) -> Refuse:
    """What refuses a source in which something else than ``expected`` was found."""

    def refuse(source: str, found: str) -> NoReturn:
        raise InputError(source, expected=expected, found=found, fix=fix)

    return refuse


def whole(source: str, most: int, refuse: Refuse) -> bytes:
    """All bytes of a file, unpacked; ``refuse`` is called if it is damaged or too large."""
    try:
        with opened(source, keeps_ranks=False) as stream:
            data, damage = read_some(stream, most + 1)
    except DAMAGE as error:
        refuse(source, " ".join(f"{type(error).__name__}: {error}".split())[:200])
    if damage or len(data) > most:
        refuse(source, damage or f"more than {most:,} bytes")
    return data


def decoded(
    source: str, bound: Bound, kind: type[_T], refuse: Refuse, parts_per_row: int = 1
) -> _T:
    """A JSON file within its bound, as ``kind``; ``refuse`` is called as by :func:`whole`."""
    data = whole(source, bound.num_bytes, refuse)
    if bound.rows is not None and num_parts(data) > bound.rows * parts_per_row:
        refuse(source, f"more than {bound.rows * parts_per_row:,} values")
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        refuse(source, " ".join(f"{error}".split())[:200])


def beginning(
    source: str, size: int, *, endings: tuple[str, ...] = (), keeps_labels: bool = False
) -> bytes:
    """The first bytes of a file, unpacked; empty if unreadable, or of another ending."""
    if endings and not source.lower().endswith(endings):
        return b""
    try:
        with opened(source, keeps_labels=keeps_labels, keeps_ranks=keeps_labels) as stream:
            return read_some(stream, size)[0]
    except (*DAMAGE, UsageError):  # of a protocol that distprof cannot read
        return b""


def readings(source: str) -> tuple[bool, ...]:
    """Both values of ``keeps_labels`` if a file has any: a program's own times come first."""
    starts = {beginning(source, SNIFFED_BYTES, keeps_labels=each) for each in (False, True)}
    return (False, True)[-len(starts) :]


class Blocks(msgspec.Struct):
    """Blocks of whole lines, or pieces of long ones; line ends (LF, CR LF, CR) become LF.

    They have the texts of containers' logs, of which each line is a JSON object.
    """

    stream: BinaryIO  # The source of the bytes.
    inner: bytes = b""  # Stands before a line end that was a CR: within a line of the file.
    num_lines: int = 0  # As editors count them: a bar of progress is one line.
    num_bytes: int = 0
    damage: str = ""

    def __iter__(self) -> Iterator[bytes]:
        rest = b""
        for block in self.pieces():
            end = block.rfind(b"\n") + 1
            if end:
                yield unwrapped(rest + block[:end])
                rest = block[end:]
            else:
                rest += block
            while len(rest) > MAX_LINE_BYTES:
                yield rest[:MAX_LINE_BYTES]
                rest = rest[MAX_LINE_BYTES:]
        if rest:
            yield unwrapped(rest)

    def pieces(self) -> Iterator[bytes]:
        """Blocks that may end within a line."""
        held, is_open = b"", False
        while self.num_bytes <= MAX_BYTES:
            block, self.damage = read_some(self.stream, BLOCK_BYTES)
            if not block:
                break
            self.num_bytes += len(block)
            self.num_lines += block.count(b"\n")
            is_open = not block.endswith(b"\n")
            if held or b"\r" in block:
                block = held + block
                held = block[-1:] if block.endswith(b"\r") else b""
                block = block[: len(block) - len(held)]
                block = block.replace(b"\r\n", b"\n").replace(b"\r", self.inner + b"\n")
            yield block
            if self.damage:
                break
        else:
            self.damage = f"it is larger than {MAX_BYTES:,} bytes"
        self.num_lines += is_open
        if held:
            yield self.inner + b"\n"
