"""What each reader takes at most, and how a file from an unknown source is opened.

Whoever reads a kind of file declares its :class:`Bound` where it reads: ``Source.bound``,
``Document.bound``, or a constant ``BOUND``. The page ``docs/reference/limits.md`` and
``tests/contracts/test_bounds.py`` find them there.
"""

from __future__ import annotations

import errno
import io
import math
import os
import re
import select
import stat
from typing import Any, BinaryIO, Literal, TypeVar, cast

import msgspec

__all__ = [
    "NOT_A_FILE",
    "Bound",
    "GzipLimit",
    "NotAFileError",
    "Seekable",
    "TooLargeError",
    "UnpackedTooLargeError",
    "decode_json",
    "expanded",
    "num_parts",
    "open_plain",
    "read_plain",
    "within",
    "wrong_number",
]


T = TypeVar("T")


class Bound(msgspec.Struct, frozen=True, kw_only=True):
    """What one reader takes at most.

    Args:
        reads: What it reads, for people: ``a saved report``.
        num_bytes: Largest file, unpacked where it may be gzipped.
        rows: Most rows, events or records that are kept; None where the size bounds them.
        names: Most distinct names, ranks or columns that are kept; None where the size bounds them.
        depth: How deeply its parts may be nested; None where nesting has no meaning.
        beyond: What happens to more: ``refused`` with an error, ``skipped`` with a note in the
            report, or ``made again`` from the trace.
        seconds_per_mb: CPU time for a million bytes, unpacked, on a machine of today; one broken
            input in a thousand may come near.
    """

    reads: str
    num_bytes: int
    rows: int | None = None
    names: int | None = None
    depth: int | None = None
    beyond: Literal["refused", "skipped", "made again"]
    seconds_per_mb: float = 0.5


def wrong_number(value: object, *, most: int = 2**64 - 1) -> str:
    """A number that nothing can be computed with, in a parsed document; empty if there is none.

    Python's own parser makes infinity of ``1e999``, and takes ``NaN``; msgspec takes neither.

    Args:
        value: Tables, lists and plain values.
        most: Largest integer; the smallest is that of 64 bits.
    """
    waiting = [value]
    while waiting:
        found = waiting.pop()
        if isinstance(found, int) and not -(2**63) <= found <= most:
            return "a whole number of more than 64 bits"
        if isinstance(found, float) and not math.isfinite(found):
            return f"the number {found}"
        if isinstance(found, dict):
            waiting += found.values()
        elif isinstance(found, list):
            waiting += found
    return ""


_MANY_DIGITS = re.compile(rb"-\d{19}|(?<![.\d])\d{20}")
"""No number beyond 64 bits is shorter; times since the epoch are."""


def decode_json(data: bytes, kind: type[T]) -> T:
    """What a file of ours holds; its whole numbers fit 64 bits, which arithmetic relies on.

    Raises:
        ValueError: If a number does not, or the text is not JSON of this kind (msgspec's errors are
            of this type).
    """
    found = msgspec.json.decode(data, type=kind)
    if _MANY_DIGITS.search(data) is not None:  # as good as never
        wrong = wrong_number(msgspec.json.decode(data))
        if wrong:
            raise ValueError(wrong)
    return found


class _RefusedError(OSError):
    def __str__(self) -> str:
        """The reason alone: whoever shows it names the file."""
        return self.strerror or ""


class TooLargeError(_RefusedError):
    """A file is larger than its kind can be."""


class NotAFileError(_RefusedError):
    """Something is a pipe, a device or a socket, which cannot be read as a file."""


class UnpackedTooLargeError(EOFError):
    """A compressed file unpacks to far more, or far less, than any file of its kind."""


# Opening files ------------------------------------------------------------------------------------

NOT_A_FILE = "a pipe or a device"

_SILENT_S = 60.0
"""How long a pipe may be silent: ``<(command)`` of a shell is one."""

_PIPE_BYTES = 1 << 16


class _Plain(io.FileIO):
    """A regular file up to the size it had when it was opened: what is added later is not read."""

    def __init__(self, number: int, size: int) -> None:
        super().__init__(number, "rb")
        self._size = size

    def readinto(self, buffer: Any) -> int | None:
        """Fill ``buffer``, at most up to the size."""
        view = memoryview(buffer)
        return super().readinto(view[: self._left(len(view))])

    def read(self, size: int | None = -1) -> Any:
        """At most ``size`` bytes, at most up to the size of the file."""
        return super().read(self._left(self._size if size is None or size < 0 else size))

    def readall(self) -> bytes:
        """What is left."""
        return b"".join(iter(lambda: self.read(1 << 20), b""))

    def _left(self, wanted: int) -> int:
        return max(0, min(wanted, self._size - self.tell()))


def expanded(path: str) -> str:
    """The path with the home directory of a user for ``~`` or ``~name``, as shells have it.

    A path that begins with an unknown name stays as it is: it may be a file's.
    """
    return os.path.expanduser(path)  # noqa: PTH111 - as Path's, which raises then


def open_plain(path: str | os.PathLike[str]) -> BinaryIO:
    """A regular file, to be read up to the size that it has now.

    Raises:
        NotAFileError: If it is a pipe, a device or a socket: opening one may wait without end.
        OSError: If it cannot be opened, or is a folder.
    """
    return _plain(_opened(path), path)


def read_plain(path: str | os.PathLike[str], most: int) -> bytes:
    """All of a file, or of a pipe that has a writer.

    Args:
        path: The file.
        most: Bytes; a larger one is refused.

    Raises:
        TooLargeError: If it has more.
        NotAFileError: If it is a device, a socket, or a pipe that is silent for a minute.
        OSError: If it cannot be read, or is a folder.
    """
    number = _opened(path)
    if stat.S_ISFIFO(os.fstat(number).st_mode):
        with io.FileIO(number, "rb"):
            data = _from_pipe(number, most, path)
    else:
        with _plain(number, path) as stream:
            data = stream.read(most + 1)
    return within(data, most, os.fspath(path))


def within(data: bytes, most: int, name: str) -> bytes:
    """The bytes of a file.

    Raises:
        TooLargeError: If they are more than ``most``.
    """
    if len(data) > most:
        raise TooLargeError(errno.EFBIG, f"more than {most:,} bytes", name)
    return data


def _opened(path: str | os.PathLike[str]) -> int:
    """The open file; a pipe without a writer would make a usual ``open`` wait for one."""
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
    try:
        number = os.open(path, flags | getattr(os, "O_BINARY", 0))
    except OSError as error:
        if error.errno in (errno.ENXIO, errno.ENODEV):  # a socket, or a device that is not there
            raise NotAFileError(errno.EINVAL, NOT_A_FILE, os.fspath(path)) from error
        raise
    if stat.S_ISDIR(os.fstat(number).st_mode):
        os.close(number)
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    return number


def _plain(number: int, path: str | os.PathLike[str]) -> BinaryIO:
    found = os.fstat(number)
    if not stat.S_ISREG(found.st_mode):
        os.close(number)
        raise NotAFileError(errno.EINVAL, NOT_A_FILE, os.fspath(path))
    return cast("BinaryIO", io.BufferedReader(_Plain(number, found.st_size)))


def _from_pipe(number: int, most: int, path: str | os.PathLike[str]) -> bytes:
    """What is written to a pipe, up to a byte more than ``most``; its end is that of its writer."""
    data = bytearray()
    while len(data) <= most:
        try:
            block = os.read(number, _PIPE_BYTES)
        except BlockingIOError:  # there is a writer, who has written nothing yet
            if select.select([number], [], [], _SILENT_S)[0]:
                continue
            why = f"a pipe to which nothing was written for {_SILENT_S:g} s"
            raise NotAFileError(errno.EINVAL, why, os.fspath(path)) from None
        if not block:
            break
        data += block
    if not data:
        raise NotAFileError(errno.EINVAL, "a pipe to which nothing was written", os.fspath(path))
    return bytes(data)


def num_parts(data: bytes) -> int:
    """At least as many values as JSON holds: what they take is known before they are made.

    An empty list is two bytes of a file, and sixty-four of memory.
    """
    return 1 + sum(data.count(sign) for sign in (b",", b"[", b"{"))


class Seekable(io.RawIOBase):
    """What raw files that can be read from any place share: the place itself."""

    def __init__(self) -> None:
        self._at = 0

    def readable(self) -> bool:
        """Yes."""
        return True

    def seekable(self) -> bool:
        """Yes."""
        return True

    def tell(self) -> int:
        """The place."""
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Go to a place, at least the start.

        Raises:
            OSError: If the size must be known for it, and is not.
        """
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at}
        self._at = max(0, (base[whence] if whence in base else self._size()) + offset)
        return self._at

    def _size(self) -> int:
        """Bytes in all; asked for only on a seek from the end."""
        raise NotImplementedError


# Compressed files ---------------------------------------------------------------------------------


class GzipLimit(msgspec.Struct):
    """Watches how much comes out of a gzip file for how much goes in.

    Logs and traces shrink to a hundredth at best: their times and numbers differ from line to
    line. Of more, and of thousands of empty members, an archive is made on purpose.

    Args:
        ratio: Bytes that come out of one that goes in, at most.
        slack_bytes: Bytes that may come out of any file.
        packed: Bytes that went in.
        unpacked: Bytes that came out.
    """

    ratio: int = 100
    slack_bytes: int = 1 << 26
    packed: int = 0
    unpacked: int = 0

    @property
    def problem(self) -> str:
        """What is wrong, as the start of a sentence; empty while nothing is."""
        if self.unpacked > self.slack_bytes and self.unpacked > self.ratio * self.packed:
            return f"it unpacks to more than {self.ratio} times its size, as no recording does"
        if self.packed > _MOST_FOR_NOTHING + 2 * self.unpacked:
            return "it is a compressed file that holds next to nothing"
        return ""


_MOST_FOR_NOTHING = 1 << 20
