"""Copies what a program prints into a file while it goes where it went before.

A stream that is a terminal stays one (a pseudo-terminal of the same size), and two streams that are
the same file share one copy, so that their order remains. The file holds the beginning and the end
of a long output.
"""

from __future__ import annotations

import fcntl
import os
import struct
import termios
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType

__all__ = ["OutputCopy"]

HEAD_BYTES = 64 << 20
TAIL_BYTES = 4 << 20
_READ_BYTES = 1 << 16
_END_S = 2.0
"""Time after the end of the program in which processes that it left may still print."""


class OutputCopy:
    """Copies standard output and error of a program that is yet to start.

    As a context, it lasts until the program has ended and everything it printed is passed on.

    Args:
        path: The file, created or replaced; nothing is copied if that is impossible.
    """

    def __init__(self, path: Path) -> None:
        self._streams: list[_Stream] = []
        self._file: _BoundedFile | None = None
        with suppress(OSError):
            self._file = _BoundedFile(path)
            self._open()

    def _open(self) -> None:
        assert self._file is not None
        known: dict[tuple[int, int, int], _Stream] = {}
        for number in (1, 2):
            try:
                place = os.fstat(number)
            except OSError:
                continue  # it is closed
            key = (place.st_dev, place.st_ino, place.st_rdev)
            if key in known:
                known[key].numbers.append(number)
            else:
                known[key] = _Stream(number, self._file)
        self._streams = list(known.values())

    @property
    def file_actions(self) -> list[tuple[int, int, int]]:
        """What ``os.posix_spawn`` must do, so that the program prints into the copies."""
        return [
            (os.POSIX_SPAWN_DUP2, stream.inner, number)
            for stream in self._streams
            for number in stream.numbers
        ]

    def look(self) -> None:
        """Pass on the size of the terminal; called now and then."""
        for stream in self._streams:
            stream.resize()

    def __enter__(self) -> OutputCopy:
        return self

    def started(self) -> None:
        """Begin to copy: the program has its ends of the streams."""
        for stream in self._streams:
            stream.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for stream in self._streams:
            stream.finish()
        if self._file is not None:
            self._file.close()


class _Stream:
    """One stream: the program prints into ``inner``, and a thread passes it on."""

    def __init__(self, number: int, file: _BoundedFile) -> None:
        self.numbers = [number]
        self._target, self._file = number, file
        self._is_terminal = os.isatty(number)
        self._outer, self.inner = os.openpty() if self._is_terminal else os.pipe()
        self._size = b""
        if self._is_terminal:
            modes = termios.tcgetattr(self.inner)
            modes[1] &= ~termios.OPOST  # the real terminal converts line ends
            termios.tcsetattr(self.inner, termios.TCSANOW, modes)
            self.resize()
        self._thread: threading.Thread | None = None

    def resize(self) -> None:
        if not self._is_terminal:
            return
        with suppress(OSError):
            size = fcntl.ioctl(self._target, termios.TIOCGWINSZ, struct.pack("HHHH", 0, 0, 0, 0))
            if size != self._size:
                fcntl.ioctl(self._outer, termios.TIOCSWINSZ, size)
                self._size = size

    def start(self) -> None:
        os.close(self.inner)
        self._thread = threading.Thread(target=self._copy, daemon=True)
        self._thread.start()

    def finish(self) -> None:
        if self._thread is None:  # the program did not start
            os.close(self.inner)
            os.close(self._outer)
        else:
            self._thread.join(_END_S)

    def _copy(self) -> None:
        try:
            while data := os.read(self._outer, _READ_BYTES):
                self._file.write(data)
                _write_all(self._target, data)
        except OSError:
            pass  # end of a pseudo-terminal, or of the reader, which the program then notices
        finally:
            os.close(self._outer)


def _write_all(number: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(number, rest) :]
        except BlockingIOError:
            threading.Event().wait(0.01)


class _BoundedFile:
    """A file with the first and the last bytes that are written."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb", buffering=0)
        self._lock = threading.Lock()
        self._room = HEAD_BYTES
        self._tail: deque[bytes] = deque()
        self._tail_bytes = self._num_left_out = 0

    def write(self, data: bytes) -> None:
        with self._lock:
            if self._file.closed:
                return
            head, rest = data[: self._room], data[self._room :]
            self._room -= len(head)
            if head:
                self._put([head])
            if rest:
                self._tail.append(rest)
                self._tail_bytes += len(rest)
            while self._tail_bytes - len(self._tail[0] if self._tail else b"") > TAIL_BYTES:
                dropped = len(self._tail.popleft())
                self._tail_bytes -= dropped
                self._num_left_out += dropped

    def close(self) -> None:
        with self._lock:
            if self._num_left_out:
                left_out = f"\n[distprof left out {self._num_left_out:,} bytes here]\n"
                self._put([left_out.encode()])
            self._put(self._tail)
            self._file.close()

    def _put(self, parts: Sequence[bytes] | deque[bytes]) -> None:
        with suppress(OSError):  # a full disk must not stop the program
            for part in parts:
                self._file.write(part)
