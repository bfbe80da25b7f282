"""Temporary folders that do not outlive their process, not even a killed one by long."""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

__all__ = ["keep_scratch", "scratch", "scratch_folder"]

_KEPT = ".kept"
_MOMENT_S = 10  # in which a new folder may not be locked yet
_locks: list[int] = []  # of this process's folders, until it ends


def scratch_folder(kind: str) -> Path:
    """A new folder for temporary files, deleted when this process ends.

    A killed process cannot delete its own; the next one that makes a folder of this kind does. A
    lock on the folder shows that its process lives, also in another container that shares the place
    for temporary files.

    Args:
        kind: A word for its name, the same for all folders of one purpose.
    """
    prefix = f"distprof-{kind}-"
    made = Path(tempfile.mkdtemp(prefix=prefix))
    atexit.register(_delete, made)
    if fcntl is not None:
        _locks.append(_locked(made))
        for other in made.parent.glob(f"{prefix}*"):
            _delete_if_left(other)
    return made


@contextlib.contextmanager
def scratch(kind: str) -> Iterator[Path]:
    """The same for the length of a block."""
    made = scratch_folder(kind)
    try:
        yield made
    finally:
        _delete(made)


def keep_scratch(folder: Path) -> None:
    """Leave a folder to the user, who was shown its name."""
    (folder / _KEPT).touch()


def _delete(folder: Path) -> None:
    if not (folder / _KEPT).exists():
        shutil.rmtree(folder, ignore_errors=True)


def _delete_if_left(folder: Path) -> None:
    with contextlib.suppress(OSError):  # in use, another user's, or gone by now
        lock = _locked(folder)
        try:
            if time.time() - folder.stat().st_mtime > _MOMENT_S:
                _delete(folder)
        finally:
            os.close(lock)


def _locked(folder: Path) -> int:
    """The open folder, with a lock that ends with this process.

    Raises:
        OSError: If another process holds it.
    """
    number = os.open(folder, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(number)
        raise
    return number
