"""Atomic writing of files: distprof writes all its files this way."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

__all__ = ["write_atomically", "writing_atomically"]


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file under a temporary name, then rename it: a reader sees all of it or nothing.

    An existing device or pipe such as ``/dev/stdout`` is written to directly.

    Raises:
        OSError: If it cannot be written; no temporary file remains.
    """
    with writing_atomically(path) as file:
        file.write(data)


@contextmanager
def writing_atomically(path: Path) -> Iterator[IO[bytes]]:
    """The same for what is written piece by piece; the file appears when the block ends.

    Raises:
        OSError: If it cannot be written; no temporary file remains after any exception.
    """
    if path.exists() and not path.is_file():
        with path.open("wb") as file:
            yield file
        return
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        part.touch(exist_ok=False)  # must be new: follows no link, and respects the umask
        with part.open("wb") as file:
            yield file
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
