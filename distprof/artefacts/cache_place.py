"""The location of the cache for parsed tables."""

from __future__ import annotations

import os
from pathlib import Path

from distprof.artefacts import CACHE_DIR, RUN_FILE

CACHE_ENVIRONMENT = "DISTPROF_CACHE_DIR"


def cache_root(source_dir: str | Path | None, override: str | Path | None) -> Path:
    """The folder of all entries: the override, the run's own cache, or the user's cache.

    Args:
        source_dir: Location of the traces. Only a run directory has its own cache.
        override: The location that the user asked for. If it is a URL, the result is the folder of
            local copies (:mod:`distprof.ingest.cache.shared`).
    """
    if url := shared_url(source_dir, override):
        import hashlib

        return _user_cache() / f"of-{hashlib.sha1(url.encode(), usedforsecurity=False).hexdigest()}"
    if override:
        return Path(override)
    if _is_run_directory(source_dir):
        return Path(source_dir or "") / CACHE_DIR
    if chosen := os.environ.get(CACHE_ENVIRONMENT):
        return Path(chosen)
    return _user_cache()


def shared_url(source_dir: str | Path | None, override: str | Path | None) -> str:
    """The URL of a shared cache if the user chose one, else empty.

    Args:
        source_dir: As in :func:`cache_root`, which tries the same locations in the same order.
        override: The location that the user asked for.
    """
    default = "" if _is_run_directory(source_dir) else os.environ.get(CACHE_ENVIRONMENT)
    chosen = str(override or default or "")
    return chosen if "://" in chosen else ""


def has_own_place(override: str | Path | None) -> bool:
    """Whether the user chose the location of the cache. If so, everything is cached."""
    return bool(override or os.environ.get(CACHE_ENVIRONMENT))


def _user_cache() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "distprof"


def _is_run_directory(source_dir: str | Path | None) -> bool:
    return bool(source_dir) and (Path(source_dir or "") / RUN_FILE).is_file()
