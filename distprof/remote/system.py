"""The fsspec file system of a URL. Errors name the package that a protocol needs."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from distprof.errors import DistprofError, MissingExtraError, UsageError
from distprof.remote.problems import UnusableStoreError, explained

LIMIT_S = 60.0
"""Time limit for one request to a store, and for one block of an object."""

_EXTRAS = {
    **dict.fromkeys(("s3", "s3a"), "s3"),
    **dict.fromkeys(("gs", "gcs"), "gcs"),
    **dict.fromkeys(("az", "abfs", "abfss", "adl"), "azure"),
}
"""Protocol to the extra that installs its fsspec implementation."""

_REMEMBERED_S = 60.0
_unusable: dict[str, tuple[float, OSError]] = {}
"""Stores that recently denied access or did not respond, so that later calls fail at once."""


def file_system(url: str) -> tuple[Any, str]:
    """The file system of a URL, and the path within it.

    URL chaining with ``::``, which fsspec would follow, is disabled.

    Raises:
        MissingExtraError: If its protocol needs an extra.
        UsageError: If its protocol needs a package that no extra installs.
        StoreError: If its package finds no credentials.
        ValueError: If the protocol is unknown.
    """
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
    """Call a function with the file system and the path of a URL, and return its result.

    If it returns a coroutine, that is run with the time limit.

    Raises:
        UsageError: If a package is missing.
        OSError: If the store or the object cannot be used; the message is a sentence.
        ValueError: If the protocol is unknown.
    """
    store = _store_of(url)
    when, problem = _unusable.get(store, (0.0, None))
    if problem is not None and time.monotonic() - when < _REMEMBERED_S:
        raise problem
    system, path = file_system(url)
    try:
        found = question(system, path)
        return _finished(system, found, limit_s) if hasattr(found, "__await__") else found
    except DistprofError:
        raise
    except Exception as error:  # each package has its own errors
        reason = explained(url, error)
        if isinstance(reason, UnusableStoreError):
            _unusable[store] = (time.monotonic(), reason)
        raise reason from error


def _finished(system: Any, coroutine: Any, limit_s: float) -> Any:
    from fsspec.asyn import sync

    async def awaited() -> Any:
        return await coroutine

    return sync(system.loop, awaited, timeout=limit_s)


def _store_of(url: str) -> str:
    """Protocol and bucket."""
    protocol, _, path = url.partition("://")
    return f"{protocol}://{path.partition('/')[0]}"
