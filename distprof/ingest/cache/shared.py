"""A cache in an object store, shared by several people and machines.

::

    s3://team/distprof-cache/3f/3fa9….tables

An entry is one object, written by a single request: the same file as in a machine's cache
(:mod:`distprof.ingest.cache.entries`). Before use, distprof copies it to this machine's cache and
checks that key and checksum are the original ones.

Everyone with write access to the store is trusted with the content of the tables, because only
reading the trace could disprove it. A malicious entry can be wrong, but it cannot do anything else.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import msgspec

from distprof.bounds import Bound
from distprof.errors import DistprofError
from distprof.ingest.cache.entries import CacheKey, EntryWriter
from distprof.remote.download import download, stat
from distprof.remote.system import ask, is_async

BOUND = Bound(
    reads="an entry of a shared cache (--cache-dir URL)", num_bytes=1 << 36, beyond="made again"
)

PUT_LIMIT_S = 600.0  # to store an entry
_FAULTS = (OSError, ValueError, DistprofError, EOFError)


class SharedCache(msgspec.Struct, frozen=True):
    """Entries below a URL."""

    url: str  # The folder of all entries.

    def fetch(self, key: CacheKey, root: Path) -> tuple[Path | None, str]:
        """Copy an entry to this machine: its path there, None if there is no valid one.

        The second part is a sentence on why the store cannot be used, usually empty.
        """
        try:
            found = stat(self._place(key))
            if (found.size or 0) > BOUND.num_bytes:
                return None, ""  # the entry is created again
            with download(found) as stream, EntryWriter(root, key) as writer:
                shutil.copyfileobj(stream, writer.file)
                return writer.commit_if_intact(), ""
        except FileNotFoundError:
            return None, ""
        except _FAULTS as error:
            return None, f"Cannot read the shared cache {self.url} ({_reason(error)})."

    def store(self, key: CacheKey, entry: Path) -> str:
        """Copy an entry of this machine to the store; returns why that failed, usually empty."""
        try:
            ask(self._place(key), lambda system, path: _put(entry, system, path), PUT_LIMIT_S)
        except _FAULTS as error:
            return f"Cannot write to the shared cache {self.url} ({_reason(error)})."
        return ""

    def _place(self, key: CacheKey) -> str:
        return f"{self.url.rstrip('/')}/{key.path(Path()).as_posix()}"


def _put(entry: Path, system: Any, path: str) -> Any:
    if is_async(system):
        return system._put_file(str(entry), path)
    system.makedirs(path.rpartition("/")[0], exist_ok=True)
    return system.put_file(str(entry), path)


def _reason(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
