"""Traffic of data parallelism: what gradients are reduced when, how often and how precisely."""

from __future__ import annotations

from distprof.analyzers.result import Result

__all__ = ["GradientsResult"]


class GradientsResult(Result, frozen=True, kw_only=True):
    """Traffic of data parallelism: what gradients are reduced when, how often and how precisely."""
