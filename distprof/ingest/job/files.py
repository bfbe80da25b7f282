"""Files of a run directory, on this machine or behind an fsspec URL, all of them untrusted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from distprof.remote import file_system

__all__ = ["Folder", "TooLargeError"]


class TooLargeError(OSError):
    """A file is larger than its kind can be."""


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder by its path or URL. Picklable, so that another process can read it.

    Args:
        path: Local path or fsspec URL.
    """

    path: str

    @property
    def is_local(self) -> bool:
        """Whether it is on this machine."""
        return "://" not in self.path

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rstrip("/").rpartition("/")[2]

    def child(self, name: str) -> Folder:
        """A folder or file inside."""
        return Folder(f"{self.path.rstrip('/')}/{name}")

    def names(self) -> list[str]:
        """Names of what is inside, ascending; empty where it is no folder or cannot be read."""
        try:
            if self.is_local:
                return sorted(entry.name for entry in Path(self.path).iterdir())
            system, path = file_system(self.path)
            return sorted(str(n).rstrip("/").rpartition("/")[2] for n in system.ls(path, False))
        except (OSError, ValueError):
            return []

    def size(self, name: str) -> int | None:
        """Bytes of the regular file ``name``; None where there is none."""
        try:
            if self.is_local:
                path = Path(self.path, name)
                return path.stat().st_size if path.is_file() else None
            system, path_there = file_system(self.child(name).path)
            info = system.info(path_there)
            return int(info["size"]) if info.get("type") == "file" else None
        except (OSError, ValueError, TypeError, KeyError):
            return None

    @contextmanager
    def open(self, name: str) -> Iterator[BinaryIO]:
        """The file ``name``, to be read.

        Raises:
            OSError: If it is no regular file or cannot be opened.
        """
        if self.size(name) is None:  # opening a pipe would wait for its writer
            raise FileNotFoundError(2, "no such file", name)
        if self.is_local:
            with Path(self.path, name).open("rb") as stream:
                yield stream
            return
        system, path = file_system(self.child(name).path)
        with system.open(path, "rb") as stream:
            yield stream

    def read(self, name: str, limit: int) -> bytes:
        """All of the file ``name``.

        Raises:
            TooLargeError: If it has more than ``limit`` bytes.
            OSError: If it cannot be read.
        """
        with self.open(name) as stream:
            data = stream.read(limit + 1)
        if len(data) > limit:
            raise TooLargeError(27, f"more than {limit:,} bytes", name)
        return data
