"""Shared by the rules about sharded parameters."""

from __future__ import annotations

from distprof.sections.sharding.result import ShardedAxis
from distprof.terms import UNKNOWN_AXIS, Confidence


def gather_transfer(axis: ShardedAxis) -> int:
    """Exposed time of gathers, without waiting for late members if that is known."""
    return max(0, axis.gather_exposed_ns_per_step - (axis.gather_wait_ns_per_step or 0))


def scatter_transfer(axis: ShardedAxis) -> int:
    """Exposed time of reduce-scatters, without waiting for late members if that is known."""
    return max(0, axis.scatter_exposed_ns_per_step - (axis.scatter_wait_ns_per_step or 0))


def confidence(axis: ShardedAxis) -> Confidence:
    """Measured if waiting is separated from transfer, otherwise inferred."""
    is_split = axis.gather_wait_ns_per_step is not None
    return Confidence.MEASURED if is_split else Confidence.INFERRED


def gather_scenario(axis: ShardedAxis) -> str:
    """Key of the what-if scenario without the transfer of the axis's gathers."""
    return f"collectives all_gather {axis.axis}"


def moved_by(axis: ShardedAxis) -> str:
    """For example ``dp_shard (8 ranks)``."""
    name = "an unnamed group" if axis.axis == UNKNOWN_AXIS else axis.axis
    return name if axis.group_size is None else f"{name} ({axis.group_size} ranks)"
