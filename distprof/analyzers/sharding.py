"""Traffic of sharded parameters and tensor parallelism: what is gathered when."""

from __future__ import annotations

from distprof.analyzers.result import Result

__all__ = ["ShardingResult"]


class ShardingResult(Result, frozen=True, kw_only=True):
    """Traffic of sharded parameters and tensor parallelism: what is gathered when."""
