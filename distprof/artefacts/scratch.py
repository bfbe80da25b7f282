"""Temporary folders that are deleted with their process, or soon after if it is killed."""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_KEPT = ".kept"
_GRACE_S = 10  # a new folder may not be locked yet
_made: dict[Path, int | None] = {}  # folders of this process, each with its lock
_swept: set[str] = set()  # kinds whose leftovers this process has deleted


def scratch_folder(kind: str) -> Path:
    """A new folder for temporary files, deleted when this process ends.

    If it is killed, the next process that makes a folder of the same kind deletes it. A lock shows
    that a process is alive, even in another container that shares the directory.
    """
    prefix = f"distprof-{kind}-"
    made = Path(tempfile.mkdtemp(prefix=prefix))
    _made[made] = None
    if fcntl is not None:
        _made[made] = _locked(made)
        if kind not in _swept:  # only once: the directory may hold many files
            _swept.add(kind)
            for other in made.parent.glob(f"{prefix}*"):
                _delete_if_abandoned(other)
    return made


@contextlib.contextmanager
def scratch(kind: str) -> Iterator[Path]:
    """A new folder for temporary files, deleted at the end of the block."""
    made = scratch_folder(kind)
    try:
        yield made
    finally:
        _release(made)


def private_folder(path: Path) -> Path:
    """A folder of a known name that only this user can enter, made if it is not there.

    Anyone can make a folder of a name that can be guessed, and whoever owns it chooses what is
    loaded from it: PermissionError if it is no folder, or another user owns it or may enter it.
    """
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    found = path.lstat()
    is_own = not hasattr(os, "getuid") or found.st_uid == os.getuid()
    if not stat.S_ISDIR(found.st_mode) or not is_own or (os.name != "nt" and found.st_mode & 0o077):
        raise PermissionError(
            f"{path}: expected a folder of mode 0700 that this user owns; delete it, or set TMPDIR "
            "to another folder"
        )
    return path


def keep_scratch(folder: Path) -> None:
    """Keep a folder after the process ends, because the user was shown its name."""
    (folder / _KEPT).touch()


def _release(folder: Path) -> None:
    """Delete a folder of this process and release its lock."""
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


def _delete_if_abandoned(folder: Path) -> None:
    with contextlib.suppress(OSError):  # in use, owned by another user, or already gone
        lock = _locked(folder)
        try:
            if time.time() - folder.stat().st_mtime > _GRACE_S:
                _delete(folder)
        finally:
            os.close(lock)


def _locked(folder: Path) -> int:
    """Open and lock the folder; the lock ends with this process.

    Raises:
        OSError: If another process holds the lock.
    """
    number = os.open(folder, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(number)
        raise
    return number
