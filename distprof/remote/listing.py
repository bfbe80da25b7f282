"""Resolve a URL: an object, all objects below a folder, or the objects that match a pattern."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from distprof.remote.problems import explained
from distprof.remote.system import ask, file_system, is_async

LIST_LIMIT_S = 600.0
"""Time limit for listing a folder. A million objects take several minutes."""

_AT_ONCE = 64
_THREADS = 8
_PATTERN = "*?["
_TAGS = ("generation", "ETag", "etag")
"""Names that stores use for the version of an object, the most exact one first."""


class Stored(msgspec.Struct, frozen=True, kw_only=True):
    """An object as its store describes it."""

    url: str  # Address.
    size: int | None = None  # Size in bytes; None if the store does not report it.
    tag: str = ""  # Version, which changes with the content; empty if the store has none.


def stat(url: str) -> Stored:
    """The object at a URL.

    Raises:
        OSError: If it does not exist, is a folder, or cannot be accessed.
    """
    return _stored(url, ask(url, _fresh_info))


def find(url: str) -> tuple[Stored, ...] | Stored:
    """The object at a URL, or all objects of a folder or pattern, sorted by name.

    Raises:
        OSError: If the store cannot be used.
        ValueError: If the protocol is unknown.
        UsageError: If a package is missing.
    """
    try:
        return stat(url)
    except (FileNotFoundError, IsADirectoryError):
        found = ask(url, _listed, LIST_LIMIT_S)
    system, _ = file_system(url)
    pairs = sorted((str(name), info) for name, info in found.items())
    return tuple(
        _stored(system.unstrip_protocol(name), info)
        for name, info in pairs
        if info.get("type") == "file"
    )


def beginnings(stored: Sequence[Stored], size: int) -> list[bytes | OSError]:
    """The first bytes of each object, or the error; many requests to one store run in parallel."""
    if not stored:
        return []
    system, _ = file_system(stored[0].url)
    if not is_async(system):
        with ThreadPoolExecutor(_THREADS) as threads:
            return list(threads.map(lambda one: _opened_beginning(one.url, size), stored))
    found = ask(stored[0].url, lambda system, _: _all_beginnings(system, stored, size), 3_600)
    return [
        explained(one.url, part) if isinstance(part, BaseException) else bytes(part)
        for one, part in zip(stored, found, strict=True)
    ]


async def _all_beginnings(system: Any, stored: Sequence[Stored], size: int) -> list[Any]:
    places = asyncio.Semaphore(_AT_ONCE)

    async def one(object_: Stored) -> Any:
        end = size if object_.size is None else min(size, object_.size)
        if end == 0:
            return b""
        path = system._strip_protocol(object_.url)
        async with places:
            return await asyncio.wait_for(system._cat_file(path, start=0, end=end), 60)

    return await asyncio.gather(*map(one, stored), return_exceptions=True)


def _opened_beginning(url: str, size: int) -> bytes | OSError:
    def read(system: Any, path: str) -> bytes:
        with system.open(path, "rb") as stream:
            return bytes(stream.read(size))

    try:
        return bytes(ask(url, read))
    except OSError as error:
        return error


def _fresh_info(system: Any, path: str) -> Any:
    """The current description by the store: the file system would return a cached listing."""
    system.invalidate_cache(path)
    return system._info(path) if is_async(system) else system.info(path)


def _listed(system: Any, path: str) -> Any:
    name = "glob" if any(sign in path for sign in _PATTERN) else "find"
    return getattr(system, f"_{name}" if is_async(system) else name)(path, detail=True)


def _stored(url: str, info: dict[str, Any]) -> Stored:
    if info.get("type") != "file":
        raise IsADirectoryError(21, "a folder", url)
    tag = next((str(info[name]) for name in _TAGS if info.get(name)), "")
    size = info.get("size")
    return Stored(
        url=url,
        size=int(size) if size is not None else None,
        tag="" if tag.startswith("W/") else tag,  # a weak tag does not identify the exact bytes
    )
