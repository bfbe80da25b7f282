"""Data-parallel traffic: which gradients are reduced, when, how often, at which precision."""

from __future__ import annotations

from distprof.artefacts.record import Record
from distprof.sections.base import Result
from distprof.terms import Confidence
from distprof.units import format_bytes

LONGEST_LATENCY_NS = 1_000_000
"""An all-reduce has a latency of tens of µs, and of a few hundred over hundreds of nodes. One that
takes longer waits for a rank, or for a path that drops packets."""


class GradientGroup(Record, frozen=True, kw_only=True):
    """Gradients reduced along one axis; times and sizes are means over ranks and steps.

    Backward times count only the computation of the last backward before the update, which the
    reduction can overlap with. Exposed times are transfer if ``is_split`` is true. Otherwise they
    include waiting for late ranks.
    """

    axis: str  # Mesh axis, or the group's description.
    ranks: tuple[int, ...]  # Ranks that reduce along it, ascending.
    group_size: int | None  # Members of one group; None if the trace does not say.
    # Largest number of nodes that a group spans; None if the nodes are unknown.
    num_nodes: int | None
    dtypes: tuple[str, ...]  # Element types on the wire.
    num_updates: float  # Analysed updates of the optimizer per rank.
    micro_batches: float  # Forwards per update.
    # Reductions of the same gradients per update; 1 is enough. None if updates are not marked.
    times_reduced: float | None
    num_buckets: int  # Collectives of one reduction, median.
    bytes: int  # Bytes of one reduction, median.
    bytes_per_step: float  # Bytes of all reductions per step.
    last_bucket_ratio: float  # Share of a reduction's bytes in its last bucket.
    # Whether the exposed times exclude waiting, because all collectives were matched and every
    # member of the groups was recorded.
    is_split: bool
    exposed_ns_per_step: int  # Exposed time of all reductions.
    # Part of it in reductions whose gradients are reduced again before the update.
    redundant_ns_per_step: int
    last_bucket_ns_per_step: int  # Part of it in last buckets.
    # Computation of backward until the last bucket is ready; None if its beginning is unknown.
    backward_ns: int | None
    before_first_ns: int | None  # Part of it before the first bucket is ready.
    # Time during which data of a reduction moves; None without matched collectives.
    transfer_ns: int | None
    # Fixed time per bucket (α), fitted over the buckets; None if they all have the same size or
    # were not matched.
    bucket_latency_ns: float | None = None
    bucket_ns_per_byte: float | None = None  # Time per byte of a bucket (β), from the same fit.
    # Time of a bucket that its size does not explain, from the same fit. Includes waiting for late
    # ranks unless ``is_split``; None if all have the same size.
    bucket_fixed_ns: float | None = None

    @property
    def is_held_up(self) -> bool:
        """Whether each bucket takes longer, whatever its size, than the latency of any network."""
        return (self.bucket_fixed_ns or 0) > LONGEST_LATENCY_NS

    @property
    def exposed_once_ns(self) -> int:
        """Exposed time per step of the one reduction that an update needs."""
        return self.exposed_ns_per_step - self.redundant_ns_per_step

    @property
    def confidence(self) -> Confidence:
        """Measured if the exposed time excludes waiting for late ranks, otherwise inferred."""
        return Confidence.MEASURED if self.is_split else Confidence.INFERRED

    @property
    def exposed_label(self) -> str:
        """The name of its exposed time in a message."""
        if self.is_split:
            return "exposed transfer"
        return "exposed communication (including waiting for late ranks)"

    @property
    def label(self) -> str:
        """For example ``102 MB of float32 gradients over 2 nodes``."""
        nodes = f" over {self.num_nodes} nodes" if (self.num_nodes or 1) > 1 else ""
        words = " and ".join(word for word in self.dtypes if word)
        kind = f" of {words} gradients" if words else " of gradients"
        return f"{format_bytes(self.bytes)}{kind}{nodes}"


class GradientsResult(Result, frozen=True, kw_only=True):
    """Data-parallel traffic: which gradients are reduced, when, how often, at which precision."""

    # One row per axis, most bytes first; empty if nothing marks DDP.
    groups: tuple[GradientGroup, ...] = ()
    # Time of DDP's search for unused parameters, mean over ranks and steps; 0 if it does not
    # search.
    search_ns_per_step: int = 0
    # Exposed part of it, including the all-reduce of the result.
    search_exposed_ns_per_step: int = 0
