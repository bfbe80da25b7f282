"""Traffic of data parallelism: which gradients are reduced, when, how often and how precisely.

This covers DistributedDataParallel, which marks its forward in the trace; :mod:`.traffic` explains
how its collectives are identified. A *reduction* is all buckets of one backward, and an update of
the optimizer needs one.
"""

from __future__ import annotations

from distprof.artefacts.record import Record
from distprof.sections.base import Result

__all__ = ["GradientGroup", "GradientsResult"]


class GradientGroup(Record, frozen=True, kw_only=True):
    """Gradients reduced along one axis; times and sizes are means over ranks and steps.

    Times of backward are computation only, of the last backward before the update: gradients can
    overlap with it. ``exposed`` is transfer if ``is_split`` is true. Otherwise collectives were not
    matched, and it includes waiting for late ranks.

    Args:
        axis: Mesh axis, or the group's own description.
        ranks: Ranks that reduce along it, ascending.
        group_size: Members of one group, None if the trace does not say.
        num_nodes: Largest number of nodes that a group spans; None if the nodes are unknown.
        dtypes: Element types on the wire.
        num_updates: Analysed updates of the optimizer per rank.
        micro_batches: Forwards per update.
        times_reduced: Reductions of the same gradients per update; 1 is enough. None if updates
            are not marked.
        num_buckets: Collectives of one reduction, median.
        bytes: Bytes of one reduction, median.
        bytes_per_step: Bytes of all reductions per step.
        last_bucket_ratio: Share of a reduction's bytes in its last bucket.
        is_split: Whether the exposed times leave out waiting: all collectives were matched, and
            every member of the groups was recorded.
        exposed_ns_per_step: Time that overlaps with no computation.
        redundant_ns_per_step: The part in reductions that are not the last before their update.
        last_bucket_ns_per_step: The part in last buckets.
        backward_ns: Computation of backward until the last bucket is ready; None if its beginning
            is unknown.
        before_first_ns: The part before the first bucket is ready.
        transfer_ns: Time in which the data of a reduction moves; None without matched collectives.
        bucket_latency_ns: Time that a bucket of any size takes (α), fitted over the buckets; None
            where they are all of one size, or were not matched.
        bucket_ns_per_byte: Time that each byte of a bucket adds (β), likewise.
    """

    axis: str
    ranks: tuple[int, ...]
    group_size: int | None
    num_nodes: int | None
    dtypes: tuple[str, ...]
    num_updates: float
    micro_batches: float
    times_reduced: float | None
    num_buckets: int
    bytes: int
    bytes_per_step: float
    last_bucket_ratio: float
    is_split: bool
    exposed_ns_per_step: int
    redundant_ns_per_step: int
    last_bucket_ns_per_step: int
    backward_ns: int | None
    before_first_ns: int | None
    transfer_ns: int | None
    bucket_latency_ns: float | None = None
    bucket_ns_per_byte: float | None = None


class GradientsResult(Result, frozen=True, kw_only=True):
    """Traffic of data parallelism: which gradients are reduced, when, how often, how precisely.

    Args:
        groups: One row per axis, most bytes first; empty if nothing marks DDP.
        search_ns_per_step: Time of DDP's search for unused parameters, mean over ranks and steps;
            0 if it does not search.
        search_exposed_ns_per_step: The exposed part of it, including the all-reduce of the result.
    """

    groups: tuple[GradientGroup, ...] = ()
    search_ns_per_step: int = 0
    search_exposed_ns_per_step: int = 0
