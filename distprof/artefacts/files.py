"""Atomic writing, used for all files that distprof writes, and the place of the cache."""

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


CACHE_ENVIRONMENT = "DISTPROF_CACHE_DIR"


def cache_root(source_dir: str | Path | None, override: str | Path | None) -> Path:
    """The folder of all entries: the override, the cache of a run directory, or the user's cache.

    If ``override`` is a URL, it is that of local copies
    (:mod:`distprof.ingest.machines.shared_cache`).
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
