"""Files at URLs, by fsspec; errors name the package that a protocol needs."""

from __future__ import annotations

from typing import Any

from distprof.errors import MissingExtraError, UsageError

__all__ = ["file_system"]

_EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs"}
"""Protocol to the extra that installs its fsspec implementation."""


def file_system(url: str) -> tuple[Any, str]:
    """The file system of a URL, and the path within it.

    Raises:
        MissingExtraError: If its protocol needs an extra.
        UsageError: If its protocol needs a package that no extra installs.
        ValueError: If the protocol is unknown.
    """
    if url.startswith(("http://", "https://")):
        from distprof.web import WebFileSystem

        return WebFileSystem(), url
    import fsspec

    try:
        system, path = fsspec.core.url_to_fs(url)
    except ImportError as error:
        extra = _EXTRAS.get(url.partition("://")[0])
        if extra is None:
            raise UsageError(f"{url}: this kind of URL needs another package: {error}") from error
        raise MissingExtraError(url, extra) from error
    return system, str(path)
