"""Helpers for the rules on sweeps."""

from __future__ import annotations

from distprof.rules.base import InsufficientEvidenceError
from distprof.units import format_ratio
from distprof.verbs.sweep.result import ScalingResult, ScalingSize


def larger_sizes(scaling: ScalingResult) -> list[ScalingSize]:
    """Sizes larger than the baseline, ascending.

    Raises:
        InsufficientEvidenceError: If there are none.
    """
    base = scaling.baseline_ranks
    sizes = [size for size in scaling.sizes if base is not None and size.num_ranks > base]
    if not sizes:
        why = "; ".join(scaling.unavailable)
        raise InsufficientEvidenceError(
            "no size larger than the baseline" + (f": {why}" if why else "")
        )
    return sizes


def lowest(size: ScalingSize) -> float:
    """Lower end of the interval of the efficiency, or the efficiency if there is no interval."""
    return size.efficiency if size.efficiency_low is None else size.efficiency_low


def between(size: ScalingSize) -> str:
    """Efficiency with its interval, for example ``72.0 % (70.1 % to 73.9 %)``."""
    if size.efficiency_low is None or size.efficiency_high is None:
        return format_ratio(size.efficiency)
    ends = f"{format_ratio(size.efficiency_low)} to {format_ratio(size.efficiency_high)}"
    return f"{format_ratio(size.efficiency)} ({ends})"
