"""The folder that a server may read, and the only way to get a path inside it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from distprof.errors import InputError, UsageError

MAX_ENTRIES = 100_000
"""Maximum number of files and folders below a path that are checked for links out of the root."""

_PATTERN = "*?["
_SCHEMES = ("://", "::")


class Root:
    """The folder that was given when the server started; no file outside it is ever opened."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        try:
            self.folder = Path(folder).resolve(strict=True)
        except (OSError, RuntimeError, ValueError) as error:
            raise UsageError(f"--root {os.fspath(folder)}: {_reason(error)}") from None
        if not self.folder.is_dir():
            raise UsageError(f"--root {os.fspath(folder)}: not a folder")

    def find(self, name: str) -> str:
        """Resolve the path that a caller names to an absolute path without links.

        It is refused if it is a URL or a pattern, does not exist, or if it or any link below it
        leads out of the root. For paths outside the root, the message does not depend on which
        files exist.
        """
        if any(sign in name for sign in _SCHEMES):
            raise self._refusal(name, "a URL", "copy the files below the root first")
        if any(sign in name for sign in _PATTERN):
            raise self._refusal(name, "a pattern", "name a file or a folder")
        try:
            path = (self.folder / name).resolve()
        except (OSError, RuntimeError, ValueError) as error:
            raise self._refusal(name, _reason(error)) from None
        if not path.is_relative_to(self.folder):
            raise self._refusal(name, "a path that leads out of it")
        if not os.path.exists(path):  # noqa: PTH110 - False if the name is too long for a file
            raise self._refusal(name, "no file or folder with that name")
        # A dump or run.json is read together with the files next to it
        self._check_links(path if path.is_dir() else path.parent, name)
        return str(path)

    def _check_links(self, folder: Path, name: str) -> None:
        """Reject a folder with a link out of the root at any depth."""
        for number, target in enumerate(_found_below(folder)):
            if number >= MAX_ENTRIES:
                found = f"more than {MAX_ENTRIES:,} files in {folder}"
                raise self._refusal(name, found, "name a folder with fewer files")
            if target is not None and not target.is_relative_to(self.folder):
                raise self._refusal(name, "a link inside it that leads out of the root")

    def _refusal(self, name: str, found: str, fix: str = "") -> InputError:
        return InputError(name, expected=f"a path inside {self.folder}", found=found, fix=fix)


def _found_below(folder: Path) -> Iterator[Path | None]:
    """For each entry below a folder, its target if it is a link, or else None; follows links."""
    waiting, known = [folder], {folder}
    while waiting:
        for entry in _entries(waiting.pop()):
            if not entry.is_symlink():
                yield None
                path = Path(entry.path)
            else:
                path = Path(os.path.realpath(entry.path))
                yield path
            if entry.is_dir() and path not in known:
                known.add(path)
                waiting.append(path)


def _entries(folder: Path) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            yield from entries
    except OSError:  # a folder that cannot be listed cannot be read either
        return


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)
