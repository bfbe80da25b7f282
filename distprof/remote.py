"""Files behind URLs, by fsspec: the one place that says what a protocol still lacks."""

from __future__ import annotations

from typing import Any

from distprof.errors import MissingExtraError, UsageError

__all__ = ["file_system"]

_EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs", "http": "http", "https": "http"}
"""Protocol to the extra that brings what fsspec needs for it."""


def file_system(url: str) -> tuple[Any, str]:
    """The file system of a URL, and the path within it.

    Raises:
        MissingExtraError: If an extra brings what its protocol needs.
        UsageError: If its protocol needs a package that no extra brings.
        ValueError: If there is no such protocol.
    """
    import fsspec

    try:
        system, path = fsspec.core.url_to_fs(url)
    except ImportError as error:
        extra = _EXTRAS.get(url.partition("://")[0])
        if extra is None:
            raise UsageError(f"{url}: this kind of URL needs another package: {error}") from error
        raise MissingExtraError(url, extra) from error
    return system, str(path)
