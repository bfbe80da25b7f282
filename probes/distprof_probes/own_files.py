"""Keeps distprof's open files apart from those of the program that it records.

A program may close every file that it did not open itself, as daemons do, or limit how many it may
open. The numbers of closed files go to the next files that it opens, lowest first. So distprof's
files have high numbers, and a number is used only while it still leads to the file that was opened.
"""

from __future__ import annotations

import fcntl
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["OwnFile", "high_numbers", "out_of_the_way"]

_FIRST = 700
_SPARE = 100
"""Numbers that stay free above the first of ours: of 1,024, the usual limit."""

_MOST_BYTES = 100
"""Read for words: what the kernel says of a process or thread is shorter."""


def out_of_the_way(number: int) -> int:
    """The same open file under a high number; the old number is free again.

    Where the limit on open files allows no high number, it stays as it is.
    """
    try:
        moved = fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, _FIRST)
    except OSError:
        return number
    os.close(number)
    return moved


@contextmanager
def high_numbers() -> Iterator[None]:
    """Inside the block, a library that opens a file gets a high number for it."""
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
    """An open file of ours whose number may go to a file of the program at any time.

    Args:
        path: Its name.
        flags: As ``os.open`` takes them; without ``O_TRUNC`` when it is opened again.
        mode: Permissions of a new file.

    Attributes:
        number: The number that was given to it, which :meth:`is_open` checks.

    Raises:
        OSError: If it cannot be opened.
    """

    def __init__(self, path: str | os.PathLike[str], flags: int, mode: int = 0o644) -> None:
        self._path = path
        self._flags = (flags | os.O_CLOEXEC) & ~(os.O_TRUNC | os.O_CREAT)
        self.number = out_of_the_way(os.open(path, flags | os.O_CLOEXEC, mode))
        self._identity = _identity(self.number)

    def is_open(self) -> bool:
        """Whether its number still leads to it."""
        try:
            return _identity(self.number) == self._identity
        except OSError:
            return False

    def is_usable(self) -> bool:
        """Whether it is open, if need be again; not if it was replaced or deleted meanwhile."""
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
        """Close it, unless its number belongs to another file by now."""
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
