"""Keeps distprof's open files separate from those of the recorded program.

A program may close every file that it did not open itself, as daemons do, or limit its number of
open files. The next files that it opens get the descriptors of closed files, lowest first. So
distprof's files have high descriptors, and a descriptor is used only while it still refers to the
file that was opened.
"""

from __future__ import annotations

import fcntl
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager

_FIRST = 700
_SPARE = 100
"""Descriptors above the first of ours that must fit below the limit, usually 1,024."""

_MOST_BYTES = 100
"""Bytes read for the words of a file: the kernel's files on a process or thread are shorter."""


def out_of_the_way(number: int) -> int:
    """Move an open file to a high descriptor and return it; the old one is free again.

    If the limit on open files allows no high descriptor, the file keeps its own.
    """
    try:
        moved = fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, _FIRST)
    except OSError:
        return number
    os.close(number)
    return moved


@contextmanager
def high_numbers() -> Iterator[None]:
    """Inside the block, files that a library opens get high descriptors."""
    taken: list[int] = []
    try:
        if resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= _FIRST + _SPARE:
            taken.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
            while taken[-1] < _FIRST - 1:
                taken.append(os.dup(taken[0]))
        yield
    finally:
        for number in taken:
            os.close(number)


class OwnFile:
    """An open file of ours, whose descriptor the program may reuse for its own file at any time.

    Args:
        path: Its name.
        flags: As ``os.open`` takes them; without ``O_TRUNC`` when it is opened again.
        mode: Permissions of a new file.

    Raises:
        OSError: If it cannot be opened.
    """

    def __init__(self, path: str | os.PathLike[str], flags: int, mode: int = 0o644) -> None:
        self._path = path
        self._flags = (flags | os.O_CLOEXEC) & ~(os.O_TRUNC | os.O_CREAT)
        # Its descriptor, which :meth:`is_open` checks.
        self.number = out_of_the_way(os.open(path, flags | os.O_CLOEXEC, mode))
        self._identity = _identity(self.number)

    def is_open(self) -> bool:
        """Whether its descriptor still refers to it."""
        try:
            return _identity(self.number) == self._identity
        except OSError:
            return False

    def is_usable(self) -> bool:
        """Whether it is open, or could be reopened; False if it was replaced or deleted since."""
        return self.is_open() or self._reopen()

    def words(self) -> list[bytes]:
        """The words at its start; none if it is not usable."""
        if not self.is_usable():
            return []
        try:
            return os.pread(self.number, _MOST_BYTES, 0).split()
        except OSError:
            return []

    def close(self) -> None:
        """Close it, unless its descriptor belongs to another file by now."""
        if self.is_open():
            os.close(self.number)

    def _reopen(self) -> bool:
        try:
            number = out_of_the_way(os.open(self._path, self._flags))
        except OSError:
            return False
        if _identity(number) != self._identity:
            os.close(number)
            return False
        self.number = number
        return True


def _identity(number: int) -> tuple[int, int]:
    found = os.fstat(number)
    return found.st_dev, found.st_ino
