"""Files that are there whole or not at all: the one way in which anything of ours is written."""

from __future__ import annotations

import secrets
from pathlib import Path

__all__ = ["write_atomically"]


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file under a temporary name, then rename it: a reader sees all of it or none.

    What is there and no file, a device or a pipe such as ``/dev/stdout``, is written to as it is.

    Raises:
        OSError: If the disk does not take it; nothing is left behind.
    """
    if path.exists() and not path.is_file():
        path.write_bytes(data)
        return
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        part.touch(exist_ok=False)  # made new: nobody's link is followed, and the umask holds
        part.write_bytes(data)
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
