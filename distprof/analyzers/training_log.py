"""Iterations as a training program printed them: times, throughput, timers."""

from __future__ import annotations

from distprof.analyzers.result import Result

__all__ = ["TrainingLogResult"]


class TrainingLogResult(Result, frozen=True, kw_only=True):
    """Iterations as a training program printed them: times, throughput, timers."""
