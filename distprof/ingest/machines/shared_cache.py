"""A cache in an object store, shared by several people and machines.

::

    s3://team/distprof-cache/3f/3fa9….zip

An entry is one object, written by a single request. It is an uncompressed archive of the files of
an entry in a machine's cache (:mod:`distprof.ingest.cache`). Before use, distprof copies it to this
machine's cache and checks that key, checksums and sizes are the original ones.

Everyone with write access to the store is trusted with the content of the tables, because only
reading the trace could disprove it. A malicious entry can be wrong, but it cannot do anything else.
"""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from distprof.artefacts.scratch import scratch
from distprof.bounds import Bound, open_plain
from distprof.errors import DistprofError
from distprof.ingest import cache
from distprof.remote.download import download
from distprof.remote.listing import stat
from distprof.remote.system import ask, is_async

__all__ = ["BOUND", "SharedCache"]

BOUND = Bound(
    reads="an entry of a shared cache (--cache-dir URL)", num_bytes=1 << 36, beyond="made again"
)

PUT_LIMIT_S = 600.0
"""Time limit for storing an entry."""

_MAX_FILES = 16
_FAULTS = (OSError, ValueError, DistprofError, zipfile.BadZipFile, NotImplementedError, EOFError)


class SharedCache(msgspec.Struct, frozen=True):
    """Entries below a URL.

    Args:
        url: The folder of all entries.
    """

    url: str

    def fetch(self, key: cache.CacheKey, root: Path) -> tuple[Path | None, str]:
        """Copy an entry to this machine.

        Args:
            key: Key of the entry.
            root: This machine's cache.

        Returns:
            The local path of the entry, None if there is no valid one, and a sentence on why the
            store cannot be used, usually empty.
        """
        try:
            with download(stat(self._place(key))) as stream:
                return _unpacked(stream, key, root), ""
        except FileNotFoundError:
            return None, ""
        except zipfile.BadZipFile:
            return None, ""  # the entry is created again
        except _FAULTS as error:
            return None, f"Cannot read the shared cache {self.url} ({_reason(error)})."

    def store(self, key: cache.CacheKey, entry: Path) -> str:
        """Copy an entry of this machine to the store; returns why that failed, usually empty."""
        try:
            with scratch("shared") as folder:
                packed = folder / "entry.zip"
                _pack(entry, packed)
                ask(self._place(key), _putting(packed), PUT_LIMIT_S)
        except _FAULTS as error:
            return f"Cannot write to the shared cache {self.url} ({_reason(error)})."
        return ""

    def _place(self, key: cache.CacheKey) -> str:
        return f"{self.url.rstrip('/')}/{key.digest[:2]}/{key.digest}.zip"


def _putting(packed: Path) -> Any:
    def put(system: Any, path: str) -> Any:
        if is_async(system):
            return system._put_file(str(packed), path)
        system.makedirs(path.rpartition("/")[0], exist_ok=True)
        return system.put_file(str(packed), path)

    return put


def _pack(entry: Path, packed: Path) -> None:
    """Pack an entry reproducibly, so equal entries have equal bytes."""
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_STORED) as archive:
        for file in sorted(entry.iterdir()):
            with (
                archive.open(zipfile.ZipInfo(file.name), "w", force_zip64=True) as inside,
                open_plain(file) as outside,
            ):
                shutil.copyfileobj(outside, inside)


def _unpacked(stream: BinaryIO, key: cache.CacheKey, root: Path) -> Path | None:
    """Unpack an entry into this machine's cache; None if it is not valid for this key."""
    with zipfile.ZipFile(stream) as archive, cache.EntryWriter(root, key) as writer:
        inside = archive.infolist()
        if not _is_entry(inside):
            return None
        for one in inside:
            with archive.open(one) as source, (writer.folder / one.filename).open("xb") as target:
                shutil.copyfileobj(source, target)
        return writer.commit_if_intact()


def _is_entry(inside: list[zipfile.ZipInfo]) -> bool:
    """Whether an archive holds only files of an entry, uncompressed, each once, within limits."""
    names = [one.filename for one in inside]
    return (
        len(names) <= _MAX_FILES
        and len({*names}) == len(names)
        and {*names} <= cache.ENTRY_FILES
        and all(one.compress_type == zipfile.ZIP_STORED for one in inside)
        and sum(one.file_size for one in inside) <= BOUND.num_bytes
    )


def _reason(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
