"""Where parsed tables are cached."""

from __future__ import annotations

import os
from pathlib import Path

from distprof.artefacts import CACHE_DIR, RUN_FILE

__all__ = ["cache_root", "has_own_place"]

CACHE_ENVIRONMENT = "DISTPROF_CACHE_DIR"


def cache_root(source_dir: str | Path | None, override: str | Path | None) -> Path:
    """The folder of all entries: the override, the run's own cache, or the user's cache.

    Args:
        source_dir: Where the traces come from; only a run directory keeps its own cache.
        override: What the user asked for.
    """
    if override:
        return Path(override)
    if source_dir and (Path(source_dir) / RUN_FILE).is_file():
        return Path(source_dir) / CACHE_DIR
    if chosen := os.environ.get(CACHE_ENVIRONMENT):
        return Path(chosen)
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "distprof"


def has_own_place(override: str | Path | None) -> bool:
    """Whether the user says where the cache is: then everything is cached."""
    return bool(override or os.environ.get(CACHE_ENVIRONMENT))
