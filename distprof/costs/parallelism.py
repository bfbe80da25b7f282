"""Bytes that each rank sends in a training step, by kind of parallelism.

Source of every formula here: formula sheet, "Volume per training step". Bytes are those of
bandwidth-optimal algorithms. ``num_parameters`` is the rank's share under tensor and pipeline
parallelism; ``element_bytes`` is the size of a gradient, weight or activation on the wire.
"""

from __future__ import annotations

from distprof.costs.collectives import sent_bytes
from distprof.terms import CollectiveKind


def data_parallel_bytes(num_ranks: int, num_parameters: float, *, element_bytes: int = 2) -> float:
    """DDP, ZeRO-1, ZeRO-2: gradients all-reduced, or reduce-scattered with weights gathered."""
    return sent_bytes(CollectiveKind.ALL_REDUCE, num_ranks, num_parameters * element_bytes)


def fully_sharded_bytes(
    num_ranks: int, num_parameters: float, *, element_bytes: int = 2, reshards: bool = True
) -> float:
    """FSDP, ZeRO-3: weights gathered in forward and backward, gradients reduce-scattered.

    Args:
        num_ranks: Ranks that share the state.
        num_parameters: N.
        element_bytes: Size of an element on the wire.
        reshards: Whether weights are freed after the forward; otherwise they are gathered once.
    """
    one_way = sent_bytes(CollectiveKind.ALL_GATHER, num_ranks, num_parameters * element_bytes)
    return (3 if reshards else 2) * one_way


def hybrid_sharded_bytes(
    shards: int, replicas: int, num_parameters: float, *, element_bytes: int = 2
) -> tuple[float, float]:
    """HSDP: bytes in the shard group, and bytes of the all-reduce of N / shards across replicas."""
    within = fully_sharded_bytes(shards, num_parameters, element_bytes=element_bytes)
    return within, data_parallel_bytes(
        replicas, num_parameters / shards, element_bytes=element_bytes
    )


def tensor_parallel_bytes(
    num_ranks: int, batch: int, sequence: int, hidden: int, *, element_bytes: int = 2
) -> float:
    """Bytes of one layer and micro-batch: 4 all-reduces (or gather-scatter pairs) of B·S·H."""
    size = batch * sequence * hidden * element_bytes
    return 4 * sent_bytes(CollectiveKind.ALL_REDUCE, num_ranks, size)


def pipeline_bytes(batch: int, sequence: int, hidden: int, *, element_bytes: int = 2) -> float:
    """Bytes of one boundary and micro-batch: an activation forward, a gradient backward."""
    return 2.0 * batch * sequence * hidden * element_bytes


def expert_parallel_bytes(
    num_ranks: int, top_k: int, num_tokens: float, hidden: int, *, element_bytes: int = 2
) -> float:
    """Bytes of one expert layer: 4 all-to-alls of k · tokens · H, routed evenly."""
    size = top_k * num_tokens * hidden * element_bytes
    return 4 * sent_bytes(CollectiveKind.ALL_TO_ALL, num_ranks, size)


def ring_attention_bytes(
    num_ranks: int, batch: int, sequence: int, kv_size: int, *, element_bytes: int = 2
) -> float:
    """Bytes of one layer and micro-batch: keys and values around the ring, twice that backward.

    Args:
        num_ranks: P, ranks of the ring.
        batch: B.
        sequence: S, the whole sequence.
        kv_size: Width of the keys (or values) of a token.
        element_bytes: Size of an element on the wire.
    """
    hop = 2.0 * batch * sequence / num_ranks * kv_size * element_bytes
    return 3 * (num_ranks - 1) * hop


def ulysses_bytes(
    num_ranks: int, batch: int, sequence: int, hidden: int, *, element_bytes: int = 2
) -> float:
    """Bytes of one layer and micro-batch: 4 all-to-alls of a rank's B·S/P·H forward, 4 backward."""
    size = batch * sequence / num_ranks * hidden * element_bytes
    return 8 * sent_bytes(CollectiveKind.ALL_TO_ALL, num_ranks, size)
