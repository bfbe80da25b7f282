"""Where parsed tables are cached."""

from __future__ import annotations

import os
from pathlib import Path

from distprof.artefacts import CACHE_DIR, RUN_FILE

__all__ = ["CACHE_ENVIRONMENT", "cache_root", "has_own_place", "shared_url"]

CACHE_ENVIRONMENT = "DISTPROF_CACHE_DIR"


def cache_root(source_dir: str | Path | None, override: str | Path | None) -> Path:
    """The folder of all entries: the override, the run's own cache, or the user's cache.

    Args:
        source_dir: Where the traces come from; only a run directory keeps its own cache.
        override: What the user asked for. Of a cache behind a URL
            (:mod:`distprof.ingest.machines.shared_cache`), this machine keeps copies.
    """
    if url := shared_url(source_dir, override):
        import hashlib

        return _users_own() / f"of-{hashlib.sha1(url.encode(), usedforsecurity=False).hexdigest()}"
    if override:
        return Path(override)
    if _is_run_directory(source_dir):
        return Path(source_dir or "") / CACHE_DIR
    if chosen := os.environ.get(CACHE_ENVIRONMENT):
        return Path(chosen)
    return _users_own()


def shared_url(source_dir: str | Path | None, override: str | Path | None) -> str:
    """The URL of a cache that is shared, where the user named one; empty usually.

    Args:
        source_dir: As in :func:`cache_root`, which has the same order of places.
        override: What the user asked for.
    """
    usual = "" if _is_run_directory(source_dir) else os.environ.get(CACHE_ENVIRONMENT)
    chosen = str(override or usual or "")
    return chosen if "://" in chosen else ""


def has_own_place(override: str | Path | None) -> bool:
    """Whether the user says where the cache is: then everything is cached."""
    return bool(override or os.environ.get(CACHE_ENVIRONMENT))


def _users_own() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "distprof"


def _is_run_directory(source_dir: str | Path | None) -> bool:
    return bool(source_dir) and (Path(source_dir or "") / RUN_FILE).is_file()
