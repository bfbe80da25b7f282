"""Limits on the input of each reader, and safe opening of files from untrusted sources.

Each reader declares its :class:`Bound` next to its code: ``Source.bound``, ``Document.bound``, or
a constant ``BOUND``; ``docs/reference/limits.md`` is made from them.
"""

from __future__ import annotations

import errno
import io
import math
import os
import re
import select
import stat
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, AnyStr, BinaryIO, Literal, TypeVar, cast

import msgspec

T = TypeVar("T")


class Bound(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of one reader."""

    reads: str  # Readable description of its input, for example ``a saved report``.
    num_bytes: int  # Largest file, decompressed if it may be gzipped.
    # Most rows, events or records that are kept; None if the size bounds them.
    rows: int | None = None
    # Most distinct names, ranks or columns that are kept; None if the size bounds them.
    names: int | None = None
    depth: int | None = None  # Deepest nesting; None if nesting does not apply.
    # What happens above a limit: ``refused`` with an error, ``skipped`` with a note in the report,
    # or ``made again`` from the trace.
    beyond: Literal["refused", "skipped", "made again"]
    # CPU time per million decompressed bytes on a current machine. One malformed input in a
    # thousand may come close to it.
    seconds_per_mb: float = 0.5


def wrong_number(value: object, *, most: int = 2**64 - 1) -> str:
    """Describe an unusable number in a parsed document; empty if there is none.

    Python's parser turns ``1e999`` into infinity and accepts ``NaN``; msgspec accepts neither.
    Integers reach from -2**63 to ``most``.
    """
    pending = [value]
    while pending:
        found = pending.pop()
        if isinstance(found, int) and not -(2**63) <= found <= most:
            return "a whole number of more than 64 bits"
        if isinstance(found, float) and not math.isfinite(found):
            return f"the number {found}"
        if isinstance(found, dict):
            pending += found.values()
        elif isinstance(found, list):
            pending += found
    return ""


_MANY_DIGITS = re.compile(rb"-\d{19}|(?<![.\d])\d{20}")
"""Every integer above 64 bits has this many digits; times since the epoch have fewer."""


def decode_json(data: bytes, kind: type[T]) -> T:
    """Decode a file of distprof; ValueError if that fails, or an integer exceeds 64 bits."""
    found = msgspec.json.decode(data, type=kind)
    if _MANY_DIGITS.search(data) is not None:  # almost never
        wrong = wrong_number(msgspec.json.decode(data))
        if wrong:
            raise ValueError(wrong)
    return found


class _RefusedError(OSError):
    def __str__(self) -> str:
        """The reason alone: the caller names the file."""
        return self.strerror or ""


class TooLargeError(_RefusedError):
    """A file is larger than the limit of its kind."""


class NotAFileError(_RefusedError):
    """The path is a pipe, a device or a socket, which cannot be read as a file."""


class UnpackedTooLargeError(EOFError):
    """A compressed file decompresses to far more, or far less, than any file of its kind."""


# Opening files ------------------------------------------------------------------------------------

NOT_A_FILE = "a pipe or a device"
_SILENT_S = 60.0
"""How long to wait for data from a pipe, such as the shell's ``<(command)``."""

_PIPE_BYTES = 1 << 16


class _Plain(io.FileIO):
    """A regular file, read up to its size at opening; data appended later is ignored."""

    def __init__(self, number: int, size: int) -> None:
        super().__init__(number, "rb")
        self._size = size

    def readinto(self, buffer: Any) -> int | None:
        """Fill ``buffer``, up to the recorded size."""
        view = memoryview(buffer)
        return super().readinto(view[: self._left(len(view))])

    def read(self, size: int | None = -1) -> Any:
        """At most ``size`` bytes, up to the recorded size."""
        return super().read(self._left(self._size if size is None or size < 0 else size))

    def readall(self) -> bytes:
        """The remaining bytes."""
        return b"".join(iter(lambda: self.read(1 << 20), b""))

    def _left(self, wanted: int) -> int:
        return max(0, min(wanted, self._size - self.tell()))


def expanded(path: str) -> str:
    """The path with ``~`` or ``~name`` expanded to a home directory, as in shells.

    A path that begins with an unknown user stays unchanged: a file may have that name.
    """
    return os.path.expanduser(path)  # noqa: PTH111 - Path.expanduser raises for unknown users


def open_plain(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a regular file for reading up to its current size.

    Raises:
        NotAFileError: If it is a pipe, a device or a socket, which may block forever.
        OSError: If it cannot be opened, or is a folder.
    """
    return _plain(_opened(path), path)


def read_plain(path: str | os.PathLike[str], most: int) -> bytes:
    """Read a whole file of at most ``most`` bytes, or a pipe that has a writer.

    Raises:
        TooLargeError: If it is larger.
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
    """Return the bytes of a file; TooLargeError if there are more than ``most``."""
    if len(data) > most:
        raise TooLargeError(errno.EFBIG, f"more than {most:,} bytes", name)
    return data


def _opened(path: str | os.PathLike[str]) -> int:
    """Open a file without blocking on a pipe that has no writer."""
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
    try:
        number = os.open(path, flags | getattr(os, "O_BINARY", 0))
    except OSError as error:
        if error.errno in (errno.ENXIO, errno.ENODEV):  # a socket, or a missing device
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
    """Read a pipe until its writer closes it, or until more than ``most`` bytes have arrived."""
    data = bytearray()
    while len(data) <= most:
        try:
            block = os.read(number, _PIPE_BYTES)
        except BlockingIOError:  # the writer has written nothing yet
            if select.select([number], [], [], _SILENT_S)[0]:
                continue
            why = f"a pipe without data for {_SILENT_S:g} s"
            raise NotAFileError(errno.EINVAL, why, os.fspath(path)) from None
        if not block:
            break
        data += block
    if not data:
        raise NotAFileError(errno.EINVAL, "a pipe without data", os.fspath(path))
    return bytes(data)


def num_parts(data: bytes) -> int:
    """An upper bound on the values in a JSON text, to estimate their memory before decoding.

    An empty list takes 2 bytes in a file and 64 bytes in memory.
    """
    return 1 + sum(data.count(sign) for sign in (b",", b"[", b"{"))


class Seekable(io.RawIOBase):
    """Base of raw seekable files: it keeps the position."""

    def __init__(self) -> None:
        self._at = 0

    def readable(self) -> bool:
        """Yes."""
        return True

    def seekable(self) -> bool:
        """Yes."""
        return True

    def tell(self) -> int:
        """The position."""
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move to a position, clamped to the start; OSError if that needs an unknown size."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at}
        self._at = max(0, (base[whence] if whence in base else self._size()) + offset)
        return self._at

    def _size(self) -> int:
        """Total bytes; needed only for a seek from the end."""
        raise NotImplementedError


# Compressed files ---------------------------------------------------------------------------------


class GzipLimit(msgspec.Struct):
    """Watches the compression ratio of a gzip file.

    Logs and traces shrink to 1 % at best, because times and numbers differ from line to line. An
    archive with a higher ratio, or with thousands of empty members, was made on purpose.
    """

    ratio: int = 100  # Highest accepted ratio of decompressed to compressed bytes.
    slack_bytes: int = 1 << 26  # Decompressed bytes that any file may have.
    packed: int = 0  # Compressed bytes read.
    unpacked: int = 0  # Decompressed bytes produced.

    @property
    def problem(self) -> str:
        """What is wrong, as the start of a sentence; empty if nothing is."""
        if self.unpacked > self.slack_bytes and self.unpacked > self.ratio * self.packed:
            return f"it unpacks to more than {self.ratio} times its size, as no recording does"
        if self.packed > _MOST_FOR_NOTHING + 2 * self.unpacked:
            return "it is a compressed file that holds next to nothing"
        return ""


_MOST_FOR_NOTHING = 1 << 20


@cache
def table_beside(package: str, name: str) -> Mapping[str, Any]:
    """The TOML table next to the code of a package of distprof, read once."""
    import tomllib  # neither is needed within a training process
    from importlib import resources

    return tomllib.loads(resources.files(package).joinpath(name).read_text("utf-8"))


class Patterns(dict[str, re.Pattern[AnyStr]]):
    """Regular expressions by name; each is compiled when it is first used, most of them never."""

    def __init__(self, read: Callable[[], Mapping[str, AnyStr]]) -> None:
        super().__init__()
        self.texts: Callable[[], Mapping[str, AnyStr]] = cache(read)  # All of them, as texts.

    def __missing__(self, name: str) -> re.Pattern[AnyStr]:
        return self.setdefault(name, re.compile(self.texts()[name]))


def patterns_beside(package: str, name: str, **parts: str) -> Patterns[str]:
    """The regular expressions under ``patterns`` of such a table, by name.

    ``<NAME>`` in them stands for one of ``parts``, which the table adds to; a list is alternatives.
    """
    return Patterns(lambda: texts_beside(package, name, **parts))


def byte_patterns_beside(package: str, name: str, **parts: str) -> Patterns[bytes]:
    """The same for bytes."""
    return Patterns(
        lambda: {key: text.encode() for key, text in texts_beside(package, name, **parts).items()}
    )


def texts_beside(package: str, name: str, **parts: str) -> dict[str, str]:
    """The same as texts."""

    def whole_of(given: str | list[str]) -> str:
        text = given if isinstance(given, str) else "|".join(given)
        return re.sub(r"<([A-Z_]+)>", lambda named: parts[named[1]], text)

    table = table_beside(package, name)
    for part, given in table.get("parts", {}).items():  # a part may hold those above it
        parts[part] = whole_of(given)
    return {name: whole_of(given) for name, given in table["patterns"].items()}
