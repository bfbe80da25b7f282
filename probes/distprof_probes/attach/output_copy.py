"""Copies what a program prints into a file while it goes where it went before.

A stream that is a terminal stays one (a pseudo-terminal of the same size), and two streams that are
the same file share one copy, so that their order remains. The file holds the beginning and the end
of a long output. A process of its own copies, so the program outlives a capture that is killed: it
runs this file, which imports only the standard library for a quick start.
"""

from __future__ import annotations

import fcntl
import os
import select
import struct
import sys
import termios
import time
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from types import TracebackType

HEAD_BYTES = 64 << 20
TAIL_BYTES = 4 << 20
_READ_BYTES = 1 << 16
_LOOK_S = 0.2
_END_S = 2.0
"""Time after the end of the program in which processes that it left may still print."""


class OutputCopy:
    """Copies standard output and error of a program that is yet to start.

    As a context, it lasts until the program has ended and everything it printed is passed on.

    Args:
        path: The file, created or replaced; nothing is copied if that is impossible.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._streams: list[_Stream] = []
        self._copier = 0
        known: dict[tuple[int, int, int], _Stream] = {}
        with suppress(OSError):
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666))
            for number in (1, 2):
                with suppress(OSError):  # a stream that is closed stays so
                    place = os.fstat(number)
                    key = (place.st_dev, place.st_ino, place.st_rdev)
                    if key not in known:
                        known[key] = _Stream(number)
                    known[key].numbers.append(number)
        self._streams = list(known.values())

    @property
    def file_actions(self) -> list[tuple[int, int, int]]:
        """What ``os.posix_spawn`` must do, so that the program prints into the copies."""
        return [
            (os.POSIX_SPAWN_DUP2, stream.inner, number)
            for stream in self._streams
            for number in stream.numbers
        ]

    def started(self) -> None:
        """Begin to copy: the program has its ends of the streams."""
        if not self._streams:
            return
        for stream in self._streams:
            os.close(stream.inner)
            os.set_inheritable(stream.outer, True)
        streams = [f"{each.outer}:{each.numbers[0]}" for each in self._streams]
        command = [sys.executable, "-I", "-S", __file__, self._path, *streams]
        # It inherits the blocked signals: what ends the program does not end its copies.
        self._copier = os.posix_spawn(sys.executable, command, os.environ)
        for stream in self._streams:
            os.close(stream.outer)

    def __enter__(self) -> OutputCopy:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not self._copier:  # the program did not start
            for stream in self._streams:
                os.close(stream.inner)
                os.close(stream.outer)
            return
        limit = time.monotonic() + _END_S
        while os.waitpid(self._copier, os.WNOHANG)[0] == 0 and time.monotonic() < limit:
            time.sleep(0.005)


class _Stream:
    """One stream: the program prints into ``inner``, and ``outer`` is read."""

    def __init__(self, number: int) -> None:
        self.numbers: list[int] = []
        if not os.isatty(number):
            self.outer, self.inner = os.pipe()
            return
        self.outer, self.inner = os.openpty()
        modes = termios.tcgetattr(self.inner)
        modes[1] &= ~termios.OPOST  # the real terminal converts line ends
        termios.tcsetattr(self.inner, termios.TCSANOW, modes)
        _resize(self.outer, number)


# In the process that copies -----------------------------------------------------------------------


def _resize(outer: int, number: int) -> None:
    """Give a pseudo-terminal the size of the real one."""
    with suppress(OSError):
        size = fcntl.ioctl(number, termios.TIOCGWINSZ, struct.pack("HHHH", 0, 0, 0, 0))
        if size != fcntl.ioctl(outer, termios.TIOCGWINSZ, struct.pack("HHHH", 0, 0, 0, 0)):
            fcntl.ioctl(outer, termios.TIOCSWINSZ, size)


def _copy(path: str, targets: dict[int, int]) -> None:
    """Pass on what arrives, by descriptor read and written, until all streams have ended."""
    terminals = [outer for outer in targets if os.isatty(outer)]
    file = BoundedFile(path)
    while targets:
        ready, _, _ = select.select(list(targets), [], [], _LOOK_S if terminals else None)
        for outer in terminals:
            _resize(outer, targets.get(outer, outer))
        for outer in ready:
            try:
                data = os.read(outer, _READ_BYTES)
                file.write(data)
                _write_all(targets[outer], data)
            except OSError:
                data = b""  # a pseudo-terminal's end, or the reader's, which the program notices
            if not data:
                os.close(outer)
                del targets[outer]
                terminals = [each for each in terminals if each != outer]
    file.close()


def _write_all(number: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(number, rest) :]
        except BlockingIOError:
            select.select([], [number], [], 1.0)


class BoundedFile:
    """A file, empty at first, with the first and the last bytes that are written.

    Errors of writing are ignored: a full disk must not stop the program.
    """

    def __init__(self, path: str) -> None:
        self._file = -1
        with suppress(OSError):
            self._file = os.open(path, os.O_WRONLY)
        self._room = HEAD_BYTES
        self._tail: deque[bytes] = deque()
        self._tail_bytes = self._num_left_out = 0

    def write(self, data: bytes) -> None:
        """Write, or keep for the end."""
        head, rest = data[: self._room], data[self._room :]
        self._room -= len(head)
        self._put([head])
        if rest:
            self._tail.append(rest)
            self._tail_bytes += len(rest)
        while self._tail and self._tail_bytes - len(self._tail[0]) > TAIL_BYTES:
            dropped = len(self._tail.popleft())
            self._tail_bytes -= dropped
            self._num_left_out += dropped

    def close(self) -> None:
        """Write the end."""
        if self._num_left_out:
            self._put([f"\n[distprof left out {self._num_left_out:,} bytes here]\n".encode()])
        self._put(self._tail)

    def _put(self, parts: Iterable[bytes]) -> None:
        with suppress(OSError):
            for part in parts:
                _write_all(self._file, part)


if __name__ == "__main__":
    pairs = (word.split(":") for word in sys.argv[2:])
    _copy(sys.argv[1], {int(outer): int(target) for outer, target in pairs})
