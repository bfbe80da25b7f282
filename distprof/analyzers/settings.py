"""How a job was set up: what its own objects and environment say."""

from __future__ import annotations

from distprof.analyzers.result import Result

__all__ = ["SettingsResult"]


class SettingsResult(Result, frozen=True, kw_only=True):
    """How a job was set up: what its own objects and environment say."""
