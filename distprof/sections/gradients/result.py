"""Traffic of data parallelism: what gradients are reduced when, how often and how precisely.

Of DistributedDataParallel, which marks its forward in the trace; :mod:`.gradient_traffic` says how
its collectives are told from others. A *reduction* is all of one backward's buckets, and an update
of the optimizer needs one.
"""

from __future__ import annotations

from distprof.schema import Record
from distprof.sections.base import Result

__all__ = ["GradientGroup", "GradientsResult"]


class GradientGroup(Record, frozen=True, kw_only=True):
    """Gradients reduced along one axis; times and sizes are means over ranks and steps.

    Times of backward are those of the last backward before the update, beside which gradients have
    to travel: computation only. ``exposed`` holds waiting for late members where ``is_split`` is
    false, for want of matched collectives; elsewhere it is transfer.

    Args:
        axis: Mesh axis, or what the group says of itself.
        ranks: Ranks that reduce along it, ascending.
        group_size: Members of one group, None where the trace does not say.
        num_nodes: Nodes that a group spans, the most of all; None where nodes are not known.
        dtypes: Element types on the wire.
        num_updates: Updates of the optimizer analysed, per rank.
        micro_batches: Forwards for each update.
        times_reduced: Reductions of the same gradients for each update; 1 is enough. None where
            updates are not marked.
        num_buckets: Collectives of one reduction, median.
        bytes: Of one reduction, median.
        bytes_per_step: Of all.
        last_bucket_ratio: Share of a reduction's bytes in the bucket that is asked for last.
        is_split: Whether waiting is left out of the exposed times: all collectives were matched,
            and every member of the groups was recorded.
        exposed_ns_per_step: Time that no computation hides.
        redundant_ns_per_step: Of that, in reductions that are not the last before their update.
        last_bucket_ns_per_step: Of that, in last buckets.
        backward_ns: Computation of backward until the last bucket is ready; None where its
            beginning is not known.
        before_first_ns: The part before the first bucket is ready.
        transfer_ns: Time in which a reduction's data moves; None without matched collectives.
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


class GradientsResult(Result, frozen=True, kw_only=True):
    """Traffic of data parallelism: what gradients are reduced when, how often and how precisely.

    Args:
        groups: One row per axis, most bytes first; empty where nothing marks DDP.
        search_ns_per_step: Time that DDP spends on searching for unused parameters, mean over
            ranks and steps; 0 where it does not search.
        search_exposed_ns_per_step: Of that what nothing hides, with the all-reduce of what was
            found.
    """

    groups: tuple[GradientGroup, ...] = ()
    search_ns_per_step: int = 0
    search_exposed_ns_per_step: int = 0
