"""Costs of collectives: bus factors, bytes sent, and α-β times.

Source of every formula here: formula sheet, "Collectives". ``num_bytes`` is counted as in
nccl-tests: the full (unsharded) buffer for all-reduce, the concatenated size for all-gather and
reduce-scatter, one rank's whole send buffer for all-to-all, the message size for other operations.
Times are in seconds, latencies ``alpha_s`` in seconds per step, bandwidths in bytes per second and
direction.
"""

from __future__ import annotations

import math
from typing import Literal

import msgspec

from distprof.terms import CollectiveKind

Algorithm = Literal["ring", "recursive", "tree", "naive"]

_SHARDED = frozenset(
    {
        CollectiveKind.ALL_GATHER,
        CollectiveKind.REDUCE_SCATTER,
        CollectiveKind.ALL_TO_ALL,
        CollectiveKind.SCATTER,
        CollectiveKind.GATHER,
    }
)
_WHOLE = frozenset(
    {
        CollectiveKind.BROADCAST,
        CollectiveKind.REDUCE,
        CollectiveKind.SEND,
        CollectiveKind.RECV,
        CollectiveKind.SEND_RECV,
    }
)
_ROOTED = frozenset(
    {
        CollectiveKind.BROADCAST,
        CollectiveKind.REDUCE,
        CollectiveKind.SCATTER,
        CollectiveKind.GATHER,
    }
)


def bus_factor(kind: CollectiveKind, group_size: int) -> float | None:
    """The ratio of bus bandwidth to algorithm bandwidth; None if it is not defined.

    Args:
        kind: The operation.
        group_size: Ranks of the collective's group, not of the world.

    Raises:
        ValueError: If the group is empty.
    """
    _check_size(group_size)
    if kind is CollectiveKind.ALL_REDUCE:
        return 2 * (group_size - 1) / group_size
    if kind in _SHARDED:
        return (group_size - 1) / group_size
    return 1.0 if kind in _WHOLE else None


def sent_bytes(
    kind: CollectiveKind, group_size: int, num_bytes: float, *, algorithm: Algorithm = "ring"
) -> float:
    """Bytes that each rank sends (for rooted kinds: the root, or a leaf).

    Raises:
        ValueError: If the kind moves no defined number of bytes.
    """
    if algorithm == "naive" and kind is CollectiveKind.ALL_REDUCE:
        return (group_size - 1) * num_bytes
    factor = bus_factor(kind, group_size)
    if factor is None:
        raise ValueError(f"{kind.label} moves no defined number of bytes")
    return factor * num_bytes


def collective_time(
    kind: CollectiveKind,
    group_size: int,
    num_bytes: float,
    *,
    alpha_s: float,
    bandwidth: float,
    algorithm: Algorithm = "ring",
) -> float:
    """α-β time of one collective in seconds.

    Args:
        kind: The operation.
        group_size: Ranks of the group.
        num_bytes: Size as nccl-tests counts it.
        alpha_s: Latency of one step.
        bandwidth: Bytes per second of the slowest link used, one direction.
        algorithm: ``ring`` or ``recursive`` (halving and doubling), both optimal in bandwidth;
            for all-reduce also ``tree`` (not pipelined) and ``naive``.

    Raises:
        ValueError: If the algorithm is not defined for the kind.
    """
    _check_size(group_size)
    steps = latency_steps(kind, group_size, algorithm)
    if algorithm in ("tree", "naive"):
        return steps * (alpha_s + num_bytes / bandwidth)
    return steps * alpha_s + sent_bytes(kind, group_size, num_bytes) / bandwidth


def hierarchical_all_reduce_time(
    *,
    num_nodes: int,
    ranks_per_node: int,
    num_bytes: float,
    alpha_intra_s: float,
    bandwidth_intra: float,
    alpha_inter_s: float,
    bandwidth_inter: float,
) -> float:
    """Time of a reduce-scatter inside nodes, an all-reduce across, and an all-gather inside."""
    within = 2 * collective_time(
        CollectiveKind.REDUCE_SCATTER,
        ranks_per_node,
        num_bytes,
        alpha_s=alpha_intra_s,
        bandwidth=bandwidth_intra,
    )
    across = collective_time(
        CollectiveKind.ALL_REDUCE,
        num_nodes,
        num_bytes / ranks_per_node,
        alpha_s=alpha_inter_s,
        bandwidth=bandwidth_inter,
    )
    return within + across


def crossover_bytes(alpha_s: float, bandwidth: float) -> float:
    """The size n* = α · bandwidth below which a message is latency-bound."""
    return alpha_s * bandwidth


def exposed_overhead_ratio(communication_s: float, computation_s: float) -> float:
    """Share of communication in a step if none of it overlaps."""
    return communication_s / (communication_s + computation_s)


def _check_size(group_size: int) -> None:
    if group_size < 1:
        raise ValueError(f"a group has at least one member, not {group_size}")


def latency_steps(kind: CollectiveKind, group_size: int, algorithm: Algorithm) -> int:
    """The number of sequential steps that pay the latency.

    Raises:
        ValueError: If the algorithm is not defined for the kind.
    """
    hops, doublings = group_size - 1, math.ceil(math.log2(group_size))
    if kind is CollectiveKind.ALL_REDUCE:
        return 2 * (hops if algorithm in ("ring", "naive") else doublings)
    if algorithm in ("tree", "naive"):
        raise ValueError(f"{algorithm} is defined for all_reduce, not {kind.label}")
    if kind in (CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER):
        return hops if algorithm == "ring" else doublings
    if kind is CollectiveKind.ALL_TO_ALL:
        return hops
    if kind in _ROOTED:
        return doublings
    if kind.is_point_to_point:
        return 1
    raise ValueError(f"no model for {kind.label}")


class BucketTime(msgspec.Struct, frozen=True, kw_only=True):
    """The α-β model of gradient buckets."""

    latency_ns: float  # Fixed time per bucket (α).
    ns_per_byte: float  # Time per byte (β).

    def of(self, num_bytes: float) -> float:
        """Time of a bucket of this size, ns."""
        return self.latency_ns + self.ns_per_byte * num_bytes
