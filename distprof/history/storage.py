"""Where a history lies: a folder, or any URL that fsspec knows.

Files are written whole or not at all: in a folder under a temporary name that is then replaced, on
object stores by what they are. None is ever changed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distprof.errors import InputError
from distprof.report.saved import write_atomically

__all__ = ["FILE_NAME", "MERGED_NAME", "Store"]

FILE_NAME = re.compile(r"\d{20}-[0-9a-f]{24}\.parquet")
"""Of one summary: when it ended, and its content."""

MERGED_NAME = re.compile(r"merged-[0-9a-f]{24}\.parquet")
"""Of many summaries that were put together."""

_HARMLESS = ("README", "README.md", "desktop.ini", "lost+found")


@dataclass(frozen=True, slots=True, kw_only=True)
class Store:
    """One place.

    Args:
        folder: As the user named it.
        path: Within ``system``; a local path without one.
        system: File system of fsspec; None for local folders.
    """

    folder: str
    path: str
    system: Any = None

    @classmethod
    def at(cls, folder: str) -> Store:
        """The place that a user names.

        Raises:
            InputError: If nothing reads such URLs here.
        """
        if "://" not in folder:
            return cls(folder=folder, path=str(Path(folder).expanduser()))
        import fsspec
        from fsspec.implementations.local import LocalFileSystem

        try:
            system, path = fsspec.core.url_to_fs(folder)
        except Exception as error:  # each file system has errors of its own
            raise _unusable(folder, error) from error
        if isinstance(system, LocalFileSystem):
            return cls(folder=folder, path=str(path))
        return cls(folder=folder, path=str(path).rstrip("/"), system=system)

    def names(self) -> tuple[list[str], list[str]]:
        """Files of a history in order of their names, and whatever else lies there.

        Raises:
            InputError: If the place cannot be looked into.
        """
        try:
            found = sorted(self._listed())
        except FileNotFoundError:
            found = []
        except Exception as error:  # each file system has errors of its own
            raise _unusable(self.folder, error) from error
        mine = [name for name in found if FILE_NAME.fullmatch(name) or MERGED_NAME.fullmatch(name)]
        known = {*mine, *_HARMLESS}
        return mine, [name for name in found if name not in known and not name.startswith(".")]

    def put(self, name: str, data: bytes) -> bool:
        """Write one file; False where it is there already.

        Raises:
            InputError: If it cannot be written.
        """
        try:
            if self.system is None:
                return self._put_local(Path(self.path, name), data)
            if self.system.exists(f"{self.path}/{name}"):
                return False
            self.system.makedirs(self.path, exist_ok=True)
            self.system.pipe_file(f"{self.path}/{name}", data)
        except Exception as error:  # each file system has errors of its own
            raise _unusable(self.folder, error) from error
        return True

    def get(self, name: str) -> bytes | None:
        """What a file holds; None where it is gone, as others may put files together.

        Raises:
            InputError: If it cannot be read.
        """
        try:
            if self.system is None:
                return Path(self.path, name).read_bytes()
            return bytes(self.system.cat_file(f"{self.path}/{name}"))
        except FileNotFoundError:
            return None
        except Exception as error:  # each file system has errors of its own
            raise _unusable(self.folder, error) from error

    def remove(self, name: str) -> None:
        """Remove one file; another may have done so.

        Raises:
            InputError: If it may not be removed.
        """
        try:
            if self.system is None:
                Path(self.path, name).unlink(missing_ok=True)
            else:
                self.system.rm_file(f"{self.path}/{name}")
        except FileNotFoundError:
            return
        except Exception as error:  # each file system has errors of its own
            raise _unusable(self.folder, error) from error

    def address(self, name: str) -> str:
        """The file as DuckDB opens it."""
        if self.system is None:
            return str(Path(self.path, name))
        return str(self.system.unstrip_protocol(f"{self.path}/{name}"))

    def _listed(self) -> list[str]:
        if self.system is None:
            return [entry.name for entry in Path(self.path).iterdir()]
        self.system.invalidate_cache()
        return [str(name).rpartition("/")[2] for name in self.system.ls(self.path, detail=False)]

    def _put_local(self, file: Path, data: bytes) -> bool:
        file.parent.mkdir(parents=True, exist_ok=True)
        if file.exists():
            return False
        write_atomically(file, data)
        return True


def _unusable(folder: str, error: Exception) -> InputError:
    return InputError(
        folder,
        expected="a folder or URL that holds, or can hold, a history",
        found=getattr(error, "strerror", None) or str(error) or type(error).__name__,
        fix="choose another with --history",
    )
