"""Atomic writing of files: distprof writes all its files this way."""

from __future__ import annotations

import secrets
from pathlib import Path

__all__ = ["write_atomically"]


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file under a temporary name, then rename it: a reader sees all of it or nothing.

    An existing device or pipe such as ``/dev/stdout`` is written to directly.

    Raises:
        OSError: If it cannot be written; no temporary file remains.
    """
    if path.exists() and not path.is_file():
        path.write_bytes(data)
        return
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        part.touch(exist_ok=False)  # must be new: follows no link, and respects the umask
        part.write_bytes(data)
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
