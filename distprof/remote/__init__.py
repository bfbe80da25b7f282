"""Stores behind fsspec: the file system of a URL, and their errors as a sentence with a fix."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from typing import Any

from distprof.bounds import TooLargeError, table_beside
from distprof.errors import DistprofError, MissingExtraError, RemoteError, UsageError
from distprof.escape import plain

_CREDENTIALS = table_beside(__package__, "credentials.toml")

_USUAL_NAMES = {"s3a": "s3", "gcs": "gs", "abfs": "az", "abfss": "az", "adl": "az"}
_MAX_WORDS = 300


class StoreError(RemoteError):
    """A store, or one of its objects, cannot be used."""


class ChangedError(StoreError):
    """An object is no longer the one that was listed, or changed while it was read."""

    def __init__(self, why: str = "another version than was listed", fix: str = "") -> None:
        super().__init__(why, fix or "analyse it again once nothing writes to it any more")


class UnusableStoreError(StoreError):
    """The whole store cannot be used: there are no credentials, or it does not respond."""


def explained(url: str, error: BaseException) -> OSError:
    """The error as a sentence; errors that already are one stay unchanged."""
    if isinstance(error, (RemoteError, TooLargeError)):
        return error
    name, words = type(error).__name__, plain(" ".join(str(error).split()))[:_MAX_WORDS]
    protocol = url.partition("://")[0]
    if name in _CREDENTIALS["errors"] or any(w in words.lower() for w in _CREDENTIALS["words"]):
        fix = _CREDENTIALS["fixes"].get(_USUAL_NAMES.get(protocol, protocol), "")
        return UnusableStoreError(f"no credentials for {protocol}:// ({words or name})", fix)
    if isinstance(error, PermissionError) or getattr(error, "status", None) in (401, 403):
        return StoreError(
            f"access denied ({words or name})",
            "check which credentials are used, and that they allow listing and reading it",
        )
    if isinstance(error, FileNotFoundError):
        return FileNotFoundError(errno.ENOENT, "no object with this name", url)
    if isinstance(error, TimeoutError) or "Timeout" in name or "Connect" in name:
        return UnusableStoreError(f"no answer ({words or name})", "check the address, then retry")
    return StoreError(f"{name}: {words}" if words else name)


def is_final(error: BaseException) -> bool:
    """Whether retrying is useless."""
    if isinstance(error, (DistprofError, PermissionError, FileNotFoundError, IsADirectoryError)):
        return True
    if (
        isinstance(error, (ChangedError, UnusableStoreError))
        or type(error).__name__ in _CREDENTIALS["errors"]
    ):
        return True
    return isinstance(error, OSError) and error.errno == errno.EINVAL


LIMIT_S = 60.0
"""Time limit for one request to a store, and for one block of an object."""

_EXTRAS: dict[str, str] = _CREDENTIALS["extras"]
"""Protocol to the extra that installs its fsspec implementation."""

_REMEMBERED_S = 60.0
_unusable: dict[str, tuple[float, OSError]] = {}
"""Stores that recently denied access or did not respond, so that later calls fail at once."""


def file_system(url: str) -> tuple[Any, str]:
    """The file system of a URL and the path in it; chaining with ``::`` is disabled."""
    if url.startswith(("http://", "https://")):
        from distprof.web import WebFileSystem

        return WebFileSystem(), url
    from fsspec.core import get_filesystem_class

    protocol = url.partition("://")[0]
    try:
        kind = get_filesystem_class(protocol)
    except ImportError as error:
        extra = _EXTRAS.get(protocol)
        if extra is None:
            raise UsageError(f"{url}: this kind of URL needs another package: {error}") from error
        raise MissingExtraError(url, extra) from error
    try:
        return kind(**kind._get_kwargs_from_urls(url)), str(kind._strip_protocol(url))
    except Exception as error:  # each package has its own errors
        raise explained(url, error) from error


def without_login(url: str) -> str:
    """The URL without user name and password, which do not identify the object."""
    protocol, sign, rest = url.partition("://")
    place, slash, path = rest.partition("/")
    return f"{protocol}{sign}{place.rpartition('@')[2]}{slash}{path}"


def is_async(system: Any) -> bool:
    """Whether a file system supports parallel requests, as those of object stores do."""
    return bool(getattr(system, "async_impl", False))


def ask(url: str, question: Callable[[Any, str], Any], limit_s: float = LIMIT_S) -> Any:
    """Call a function with file system and path of a URL; a coroutine runs with the time limit."""
    store = _store_of(url)
    when, problem = _unusable.get(store, (0.0, None))
    if problem is not None and time.monotonic() - when < _REMEMBERED_S:
        raise problem
    system, path = file_system(url)
    try:
        found = question(system, path)
        if not hasattr(found, "__await__"):
            return found
        from fsspec.asyn import sync

        async def awaited() -> Any:
            return await found

        return sync(system.loop, awaited, timeout=limit_s)
    except DistprofError:
        raise
    except Exception as error:  # each package has its own errors
        reason = explained(url, error)
        if isinstance(reason, UnusableStoreError):
            _unusable[store] = (time.monotonic(), reason)
        raise reason from error


def _store_of(url: str) -> str:
    """Protocol and bucket."""
    protocol, _, path = url.partition("://")
    return f"{protocol}://{path.partition('/')[0]}"
