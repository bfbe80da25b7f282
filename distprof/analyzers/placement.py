"""Where ranks and process groups lie on nodes, scale-up domains and network cards."""

from __future__ import annotations

from distprof.analyzers.result import Result

__all__ = ["PlacementResult"]


class PlacementResult(Result, frozen=True, kw_only=True):
    """Where ranks and process groups lie on nodes, scale-up domains and network cards."""
