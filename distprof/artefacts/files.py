"""Atomic writing of files, used for all files that distprof writes."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

_LONG_AGO_S = 3_600  # no file of distprof takes an hour to write
_DEFAULT_MODE = 0o666  # before the umask


def write_atomically(path: Path, data: bytes, *, mode: int = _DEFAULT_MODE) -> None:
    """Write a file under a temporary name, then rename it, so readers see all of it or nothing.

    An existing device or pipe, such as ``/dev/stdout``, is written directly.

    Args:
        path: The file.
        data: All of its bytes.
        mode: Permissions of the new file, before the umask.

    Raises:
        OSError: If it cannot be written, or is a pipe without a reader. No temporary file remains.
    """
    with writing_atomically(path, mode=mode) as file:
        file.write(data)


@contextmanager
def writing_atomically(path: Path, *, mode: int = _DEFAULT_MODE) -> Iterator[IO[bytes]]:
    """Like :func:`write_atomically`, in pieces: the file appears when the block ends.

    Raises:
        OSError: If it cannot be written. No temporary file remains after any exception.
    """
    if path.exists() and not path.is_file():
        with _opened_directly(path) as file:
            yield file
        return
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        part.touch(mode, exist_ok=False)  # a new file: follows no link and respects the umask
        with part.open("wb") as file:
            yield file
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    _sweep(path)


def _sweep(path: Path) -> None:
    """Delete old temporary files of processes that were killed while they wrote this file."""
    start = f".{path.name}."
    with contextlib.suppress(OSError):
        for left in path.parent.iterdir():
            is_part = left.name.startswith(start) and left.name.endswith(".part")
            if is_part and time.time() - left.stat().st_mtime > _LONG_AGO_S:
                left.unlink(missing_ok=True)


def _opened_directly(path: Path) -> IO[bytes]:
    """Open a device or pipe for writing, without blocking on a pipe that has no reader."""
    flags = os.O_WRONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
    try:
        number = os.open(path, flags)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        raise OSError(errno.ENXIO, "a pipe without a reader, or a socket", str(path)) from error
    os.set_blocking(number, True)
    return os.fdopen(number, "wb")
