"""How much of the hardware a step uses: model FLOP utilisation, energy, throughput."""

from __future__ import annotations

from distprof.analyzers.result import Result

__all__ = ["EfficiencyResult"]


class EfficiencyResult(Result, frozen=True, kw_only=True):
    """How much of the hardware a step uses: model FLOP utilisation, energy, throughput."""
