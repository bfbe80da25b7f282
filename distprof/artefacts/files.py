"""Atomic writing, used for all files that distprof writes, and the place of the cache."""

from __future__ import annotations

import atexit
import contextlib
import errno
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from distprof.artefacts import CACHE_DIR, RUN_FILE

_LONG_AGO_S = 3_600  # no file of distprof takes an hour to write
_DEFAULT_MODE = 0o666  # before the umask


def write_atomically(path: Path, data: bytes, *, mode: int = _DEFAULT_MODE) -> None:
    """Write a file under a temporary name, then rename it, so readers see all of it or nothing.

    An existing device or pipe, such as ``/dev/stdout``, is written directly. ``mode`` is that of a
    new file, before the umask. OSError if it cannot be written, or is a pipe without a reader; no
    temporary file remains.
    """
    with writing_atomically(path, mode=mode) as file:
        file.write(data)


@contextmanager
def writing_atomically(path: Path, *, mode: int = _DEFAULT_MODE) -> Iterator[IO[bytes]]:
    """Like :func:`write_atomically`, in pieces: the file appears when the block ends."""
    if path.exists() and not path.is_file():  # without blocking on a pipe that has no reader
        flags = os.O_WRONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
        try:
            number = os.open(path, flags)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            raise OSError(errno.ENXIO, "a pipe without a reader, or a socket", str(path)) from error
        os.set_blocking(number, True)
        with os.fdopen(number, "wb") as device:
            yield device
        return
    part = path.with_name(f".{path.name}.{os.urandom(4).hex()}.part")
    try:
        part.touch(mode, exist_ok=False)  # a new file: follows no link and respects the umask
        with part.open("wb") as file:
            yield file
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    start = f".{path.name}."
    with contextlib.suppress(OSError):
        for left in path.parent.iterdir():
            is_part = left.name.startswith(start) and left.name.endswith(".part")
            if is_part and time.time() - left.stat().st_mtime > _LONG_AGO_S:
                left.unlink(missing_ok=True)


CACHE_ENVIRONMENT = "DISTPROF_CACHE_DIR"


def cache_root(source_dir: str | Path | None, override: str | Path | None) -> Path:
    """The folder of all entries: the override, the cache of a run directory, or the user's cache.

    If ``override`` is a URL, it is that of local copies
    (:class:`distprof.ingest.cache.SharedCache`).
    """
    url = shared_url(source_dir, override)
    chosen = override or _default_place(source_dir)
    if chosen and not url:
        return Path(chosen)
    users = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "distprof"
    if not url:
        return users
    import hashlib

    return users / f"of-{hashlib.sha1(url.encode(), usedforsecurity=False).hexdigest()}"


def shared_url(source_dir: str | Path | None, override: str | Path | None) -> str:
    """The URL of a shared cache if the user chose one, else empty; as in :func:`cache_root`."""
    chosen = str(override or _default_place(source_dir))
    return chosen if "://" in chosen else ""


def _default_place(source_dir: str | Path | None) -> str:
    """The cache of a run directory, else the place that the environment names; else empty."""
    if source_dir and (Path(source_dir) / RUN_FILE).is_file():
        return str(Path(source_dir) / CACHE_DIR)
    return os.environ.get(CACHE_ENVIRONMENT, "")


def has_own_place(override: str | Path | None) -> bool:
    """Whether the user chose the location of the cache. If so, everything is cached."""
    return bool(override or os.environ.get(CACHE_ENVIRONMENT))


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
                with contextlib.suppress(OSError):  # in use, owned by another user, or already gone
                    lock = _locked(other)
                    try:
                        if time.time() - other.stat().st_mtime > _GRACE_S:
                            _delete(other)
                    finally:
                        os.close(lock)
    return made


@contextlib.contextmanager
def scratch(kind: str) -> Iterator[Path]:
    """A new folder for temporary files, deleted at the end of the block."""
    made = scratch_folder(kind)
    try:
        yield made
    finally:
        _release(made)


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


def _locked(folder: Path) -> int:
    """Open and lock the folder until this process ends; OSError if another holds the lock."""
    number = os.open(folder, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(number)
        raise
    return number
