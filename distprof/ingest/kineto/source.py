"""Bytes of a trace, from a path or an open file, gzipped or not, damaged or not."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from distprof.bounds import GzipLimit, open_plain
from distprof.errors import InputError
from distprof.kernel import threads_help

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_GzipFile: type[gzip.GzipFile]
_deflate: Any
try:
    from isal import isal_zlib as _deflate
    from isal.igzip import IGzipFile as _GzipFile
except ImportError:  # no wheel for this machine: the standard library is 2.5 times slower
    _GzipFile, _deflate = gzip.GzipFile, zlib

_GZIP_MAGIC = b"\x1f\x8b"
_BOM = b"\xef\xbb\xbf"
_NO_MEMBER = "Not a gzipped file"  # what gzip says of bytes after a member
_GZIP_WINDOW = 31  # zlib's way to ask for a gzip header and trailer
_COMPRESSED_BLOCK = 1 << 15
_LONG = 16 << 20  # unpacked bytes above which a separate thread pays off
_SALVAGE_BLOCK = 1 << 14  # at most 16 MB out of one block
_SALVAGE_LIMIT = 1 << 25
_OTHER_FORMATS = {
    b"PK\x03\x04": "a zip archive",
    b"\x28\xb5\x2f\xfd": "a zstd file",
    b"\xfd7zXZ": "an xz file",
    b"BZh": "a bzip2 file",
    b"\x80\x04": "a pickle",
    b"PAR1": "a Parquet file",
    b"\x7fELF": "a program",
    b"SQLite format 3": "an SQLite database, which distprof reads as .sqlite from a local disk",
}
_GZIP_ERRORS: tuple[type[Exception], ...] = (_deflate.error, gzip.BadGzipFile, EOFError)


_watchers: list[Callable[[int], None]] = []


@contextmanager
def watched(watcher: Callable[[int], None]) -> Iterator[None]:
    """Report how many bytes are read, as stored, while this process reads a large file."""
    _watchers.append(watcher)
    try:
        yield
    finally:
        _watchers.remove(watcher)


class _Packed(io.RawIOBase):
    """The stored bytes of a gzipped input; ``read`` returns none at the end."""

    def __init__(self, read: Callable[[int], bytes]) -> None:
        self._read = read

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        with memoryview(buffer) as room:
            block = self._read(len(room))
            room[: len(block)] = block
        return len(block)


class ByteSource:
    """A forward reader of uncompressed bytes that never fails on damaged compression."""

    def __init__(self, stream_or_path: str | Path | BinaryIO, name: str) -> None:
        self._owned = isinstance(stream_or_path, (str, Path))
        self._file: BinaryIO
        if isinstance(stream_or_path, (str, Path)):
            self._file = _open(Path(stream_or_path), name)
        else:
            self._file = stream_or_path
        self._name = name
        self.damage: str | None = None  # what ended the input early, as the start of a sentence
        self._unreported = 0
        self._may_read_ahead = threads_help()
        self._thread: ThreadPoolExecutor | None = None
        self._room: memoryview | None = None  # which begin_reading fills
        self._coming: Future[int] | None = None
        self._unpacker: gzip.GzipFile | None = None
        try:
            self._begin()
        except BaseException:
            self._close()
            raise

    def _begin(self) -> None:
        try:
            self._start = self._file.tell() if self._file.seekable() else None
        except (OSError, AttributeError):
            self._start = None
        head = self._file.read(_COMPRESSED_BLOCK)
        self.compressed = head.startswith(_GZIP_MAGIC)
        self._pending = head
        if self.compressed:
            self._unpacker = _GzipFile(fileobj=_Packed(self._read_packed))
        self._emitted = 0
        self._limit = GzipLimit()
        self._ended = False
        for magic, kind in _OTHER_FORMATS.items():
            if head.startswith(magic):
                raise InputError(
                    self._name,
                    expected="a PyTorch profiler trace, as plain or gzipped JSON",
                    found=kind,
                    fix="unpack or convert it first",
                )
        self._left = b""  # bytes that were unpacked and not read yet
        self._left = self._without_bom()

    def __enter__(self) -> ByteSource:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def _close(self) -> None:
        if self._thread is not None:
            self._thread.shutdown(wait=True, cancel_futures=True)
        self._unpacker = None  # it refers back to this source, and holds half a megabyte
        if self._owned:
            self._file.close()

    def read(self, size: int) -> bytes:
        """Up to ``size`` bytes, and at least one until the input ends."""
        if self._coming is not None and self._room is not None:
            room = self._room
            self._left = bytes(room[: self.finish_reading()]) + self._left
        self._room = None
        block = self._read(size)
        self._report()
        return block

    def read_into(self, room: memoryview) -> int:
        """Fill ``room``; return the number of bytes, fewer only at the end of the input."""
        return self._fill(room, self._report)

    @property
    def is_long(self) -> bool:
        """Whether reading ahead in a thread pays off."""
        return self._emitted > _LONG and self._may_read_ahead

    def begin_reading(self, room: memoryview) -> None:
        """Fill ``room`` in a thread while the caller works.

        It belongs to this source until :meth:`finish_reading`, or :meth:`read`, which then returns
        its bytes.
        """
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "distprof-unpack")
        self._room, self._coming = room, self._thread.submit(self._fill, room)

    def finish_reading(self) -> int:
        """Wait until the room is full; return the number of bytes, as :meth:`read_into` does."""
        assert self._coming is not None
        count = self._coming.result()
        self._room = self._coming = None
        self._report()
        return count

    def _fill(self, room: memoryview, report: Callable[[], None] | None = None) -> int:
        """Fill ``room``, and report each piece; a thread leaves that to the caller."""
        count = 0
        while count < len(room) and (more := self._read_some(room[count:])):
            count += more
            if report is not None:
                report()
        return count

    def _read_some(self, room: memoryview) -> int:
        """At least one byte into ``room`` until the input ends."""
        if self._unpacker is not None and not (self._left or self._ended):
            return self._unpack(self._unpacker, room)
        block = self._read(len(room))
        room[: len(block)] = block
        return len(block)

    def _report(self) -> None:
        """Tell watchers how much was read, always in the caller's thread."""
        count, self._unreported = self._unreported, 0
        if count:
            for watcher in _watchers:
                watcher(count)

    def _read(self, size: int) -> bytes:
        if self._left:
            block, self._left = self._left[:size], self._left[size:]
            return block
        if self._ended:
            return b""
        if self._unpacker is None:
            return self._read_stored(size)
        room = bytearray(size)
        count = self._unpack(self._unpacker, memoryview(room))
        return bytes(memoryview(room)[:count])

    def _read_stored(self, size: int) -> bytes:
        block, self._pending = self._pending[:size], self._pending[size:]
        if block:
            return block
        try:
            block = self._file.read(size)
        except OSError as error:
            self.damage = f"reading failed ({error.strerror or error})"
            return b""
        self._unreported += len(block)
        return block

    def _without_bom(self) -> bytes:
        first = b""
        while len(first) < len(_BOM) and (block := self._read(_COMPRESSED_BLOCK)):
            first += block
        if not first:
            raise InputError(
                self._name,
                expected="a PyTorch profiler trace (JSON)",
                found=f"no data: {self.damage or 'the file is empty'}",
                fix="record it again; a job that ends while writing leaves an empty file",
            )
        return first.removeprefix(_BOM)

    def _unpack(self, unpacker: gzip.GzipFile, room: memoryview) -> int:
        """Next bytes of one or more gzip members."""
        if problem := self._limit.problem:
            self._end(problem)
            return 0
        try:
            # before Python 3.14, GzipFile.readinto1 unpacks into new memory; its buffer does not
            count: int = getattr(unpacker, "_buffer", unpacker).readinto1(room)
        except _GZIP_ERRORS as error:
            damage = f"the compressed data is damaged ({error})"
            if isinstance(error, EOFError):
                damage = "the compressed data ends early"
            elif self._emitted and str(error).startswith(_NO_MEMBER):
                damage = "bytes that are not gzip follow the compressed data"
            self._end(self._limit.problem or damage)
            self._left = self._salvage()
            return self._read_some(room) if self._left else 0
        self._emitted += count
        self._limit.unpacked = self._emitted
        self._ended = not count
        return count

    def _read_packed(self, size: int) -> bytes:
        """Stored bytes; none after a limit is reached."""
        if self._limit.problem:
            return b""
        block = self._read_stored(size)
        self._limit.packed += len(block)
        return block

    def _end(self, damage: str) -> None:
        self._ended = True
        self.damage = self.damage or damage

    def _salvage(self) -> bytes:
        """Output of the damaged block, decoded again from the start in small steps.

        The decoder loses the output of the call that fails. Only seekable files can be read again.
        """
        if self._start is None:
            return b""
        try:
            self._file.seek(self._start)
        except OSError:
            return b""
        return _inflate_until_error(self._file, skip=self._emitted)


def _inflate_until_error(file: BinaryIO, *, skip: int) -> bytes:
    """All output after the first ``skip`` bytes, up to the damage, at most about 32 MB."""
    decoder = zlib.decompressobj(wbits=_GZIP_WINDOW)
    kept = bytearray()
    seen = 0
    block = b""
    while len(kept) < _SALVAGE_LIMIT and (block := block or file.read(_SALVAGE_BLOCK)):
        before = decoder.copy()
        try:
            out = decoder.decompress(block)
        except zlib.error:
            kept += _bytewise(before, block)[max(0, skip - seen) :]
            break
        kept += out[max(0, skip - seen) :]
        seen += len(out)
        block = decoder.unused_data
        if decoder.eof:
            decoder = zlib.decompressobj(wbits=_GZIP_WINDOW)
    return bytes(kept)


def _bytewise(decoder: Any, block: bytes) -> bytes:
    out = bytearray()
    try:
        for index in range(len(block)):
            out += decoder.decompress(block[index : index + 1])
    except zlib.error:
        pass
    return bytes(out)


def _open(path: Path, name: str) -> BinaryIO:
    try:
        return open_plain(path)
    except OSError as error:
        found, fix = f"a file that cannot be opened: {error.strerror}", ""
        if isinstance(error, IsADirectoryError):
            found, fix = "a directory", "name one file inside it"
        elif isinstance(error, FileNotFoundError):
            found, fix = "no file with this name", "check the path"
        expected = "a PyTorch profiler trace (.json or .json.gz)"
        raise InputError(name, expected=expected, found=found, fix=fix) from error
