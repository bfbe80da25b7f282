"""Costs of collectives: bus factors, bytes sent, α-β times; and the volume of each parallelism.

Source of every formula here: formula sheet, "Collectives" and "Volume per training step".
``num_bytes`` is counted as in nccl-tests: the full (unsharded) buffer for all-reduce, the
concatenated size for all-gather and reduce-scatter, one rank's whole send buffer for all-to-all,
the message size for other operations. Times are in seconds, latencies ``alpha_s`` in seconds per
step, bandwidths in bytes per second and direction. ``num_parameters`` is a rank's share under
tensor and pipeline parallelism; weights, gradients and activations have two bytes on the wire.
"""

from __future__ import annotations

import math
from typing import Literal

import msgspec

from distprof.terms import CollectiveKind

Algorithm = Literal["ring", "recursive", "tree", "naive"]
_ELEMENT_BYTES = 2  # bf16
_UNDEFINED = (CollectiveKind.UNKNOWN, CollectiveKind.BARRIER)


def bus_factor(kind: CollectiveKind, group_size: int) -> float | None:
    """The ratio of bus bandwidth to algorithm bandwidth; None if it is not defined.

    Args:
        kind: The operation.
        group_size: Ranks of the collective's group, not of the world.

    Raises:
        ValueError: If the group is empty.
    """
    if group_size < 1:
        raise ValueError(f"a group has at least one member, not {group_size}")
    if kind in _UNDEFINED:
        return None
    if kind.is_point_to_point or kind in (CollectiveKind.BROADCAST, CollectiveKind.REDUCE):
        return 1.0
    return (2 if kind is CollectiveKind.ALL_REDUCE else 1) * (group_size - 1) / group_size


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
    steps = latency_steps(kind, group_size, algorithm)
    if algorithm in ("tree", "naive"):
        return steps * (alpha_s + num_bytes / bandwidth)
    return steps * alpha_s + sent_bytes(kind, group_size, num_bytes) / bandwidth


def crossover_bytes(alpha_s: float, bandwidth: float) -> float:
    """The size n* = α · bandwidth below which a message is latency-bound."""
    return alpha_s * bandwidth


def latency_steps(kind: CollectiveKind, group_size: int, algorithm: Algorithm) -> int:
    """The number of sequential steps that pay the latency.

    Raises:
        ValueError: If the algorithm is not defined for the kind.
    """
    if kind in _UNDEFINED:
        raise ValueError(f"no model for {kind.label}")
    hops, doublings = group_size - 1, math.ceil(math.log2(group_size))
    if kind is CollectiveKind.ALL_REDUCE:
        return 2 * (hops if algorithm in ("ring", "naive") else doublings)
    if algorithm in ("tree", "naive"):
        raise ValueError(f"{algorithm} is defined for all_reduce, not {kind.label}")
    if kind in (CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER):
        return hops if algorithm == "ring" else doublings
    if kind is CollectiveKind.ALL_TO_ALL:
        return hops
    return 1 if kind.is_point_to_point else doublings


class BucketTime(msgspec.Struct, frozen=True, kw_only=True):
    """The α-β model of gradient buckets."""

    latency_ns: float  # Fixed time per bucket (α).
    ns_per_byte: float  # Time per byte (β).

    def of(self, num_bytes: float) -> float:
        """Time of a bucket of this size, ns."""
        return self.latency_ns + self.ns_per_byte * num_bytes


def data_parallel_bytes(num_ranks: int, num_parameters: float) -> float:
    """DDP, ZeRO-1, ZeRO-2: gradients all-reduced, or reduce-scattered with weights gathered."""
    return sent_bytes(CollectiveKind.ALL_REDUCE, num_ranks, num_parameters * _ELEMENT_BYTES)


def fully_sharded_bytes(num_ranks: int, num_parameters: float, *, reshards: bool = True) -> float:
    """FSDP, ZeRO-3: weights gathered in forward and backward, gradients reduce-scattered.

    Weights are gathered once if not freed after the forward (``reshards``).
    """
    one_way = sent_bytes(CollectiveKind.ALL_GATHER, num_ranks, num_parameters * _ELEMENT_BYTES)
    return (3 if reshards else 2) * one_way


def tensor_parallel_bytes(num_ranks: int, batch: int, sequence: int, hidden: int) -> float:
    """Bytes of one layer and micro-batch: 4 all-reduces (or gather-scatter pairs) of B·S·H."""
    size = batch * sequence * hidden * _ELEMENT_BYTES
    return 4 * sent_bytes(CollectiveKind.ALL_REDUCE, num_ranks, size)


def pipeline_bytes(batch: int, sequence: int, hidden: int) -> float:
    """Bytes of one boundary and micro-batch: an activation forward, a gradient backward."""
    return 2.0 * batch * sequence * hidden * _ELEMENT_BYTES


def expert_parallel_bytes(num_ranks: int, top_k: int, num_tokens: float, hidden: int) -> float:
    """Bytes of one expert layer: 4 all-to-alls of k · tokens · H, routed evenly."""
    size = top_k * num_tokens * hidden * _ELEMENT_BYTES
    return 4 * sent_bytes(CollectiveKind.ALL_TO_ALL, num_ranks, size)


def ring_attention_bytes(num_ranks: int, batch: int, sequence: int, kv_size: int) -> float:
    """Bytes of one layer and micro-batch: keys and values around the ring, twice that backward.

    ``sequence`` is the whole one, ``kv_size`` the width of the keys (or values) of a token.
    """
    hop = 2.0 * batch * sequence / num_ranks * kv_size * _ELEMENT_BYTES
    return 3 * (num_ranks - 1) * hop
