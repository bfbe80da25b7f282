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
_made: dict[Path, int | None] = {}  # this process's folders, each with its lock
_swept: set[str] = set()  # kinds whose leftovers this process has deleted


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
    _made[made] = None
    if fcntl is not None:
        _made[made] = _locked(made)
        if kind not in _swept:  # once: the place may hold many files
            _swept.add(kind)
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
        _release(made)


def keep_scratch(folder: Path) -> None:
    """Leave a folder to the user, who was shown its name."""
    (folder / _KEPT).touch()


def _release(folder: Path) -> None:
    """Delete a folder of this process, and end its lock."""
    _delete(folder)
    lock = _made.pop(folder, None)
    if lock is not None:
        os.close(lock)


@atexit.register
def _release_all() -> None:
    for folder in tuple(_made):
        _release(folder)


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
