"""The CPUs that this process may use."""

from __future__ import annotations

import os


def available_processors() -> int | None:
    """Number of CPUs that this process and its children may use; None if unknown."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count()
