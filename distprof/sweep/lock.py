"""Only one program makes the runs of a sweep at a time.

The lock is held by every process that has the file open, a run's own process included. If the
program that makes the sweep is killed, the run that it had started goes on, and nobody deletes what
that run is writing.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from distprof.errors import InputError

__all__ = ["locked"]

_FILE = ".lock"


@contextmanager
def locked(folder: Path) -> Iterator[tuple[int, ...]]:
    """Hold the lock of a sweep's folder.

    Yields:
        File descriptors that a run's process must keep open; none where the file system has no
        locks.

    Raises:
        InputError: If somebody else holds it, or the folder cannot be written.
    """
    try:
        handle = os.open(folder / _FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise InputError(
            str(folder),
            expected="a folder that can be written",
            found=error.strerror or str(error),
            fix="name another folder with --sweep",
        ) from error
    try:
        yield (handle,) if _take(handle, folder) else ()
    finally:
        os.close(handle)


def _take(handle: int, folder: Path) -> bool:
    """Whether there is a lock now."""
    try:
        import fcntl
    except ImportError:  # not on this system
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise InputError(
            str(folder),
            expected="a sweep that nobody is working on",
            found="one of its runs is still going",
            fix="wait for its end, or end it; then the same command goes on where it stopped",
        ) from error
    except OSError:  # a file system without locks
        return False
    return True
