"""A file system with little room, or none to write: what a full disk and a read-only one are."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

__all__ = ["fill", "needs_mounts", "small_disk"]

needs_mounts = pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts file systems")


@contextmanager
def small_disk(folder: Path, size: str = "200k", *, read_only: bool = False) -> Iterator[Path]:
    """A disk of this size, mounted at ``folder``; skips where it cannot be mounted."""
    folder.mkdir(exist_ok=True)
    options = f"size={size}" + (",ro" if read_only else "")
    mount = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("this root cannot mount a file system")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder: Path, *, spare_bytes: int = 0) -> None:
    """Take all room but ``spare_bytes``."""
    with suppress(OSError), (folder / "large").open("wb", 0) as file:
        while True:
            file.write(bytes(4096))
    if spare_bytes:
        size = (folder / "large").stat().st_size
        os.truncate(folder / "large", max(0, size - spare_bytes))
