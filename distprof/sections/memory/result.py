"""Memory of each rank, from its counters at the end of steps."""

from __future__ import annotations

from distprof.artefacts.record import Record
from distprof.sections.base import Result


class RankMemory(Record, frozen=True, kw_only=True):
    """Memory of one rank. None means not measurable, such as GPU memory on a CPU.

    Args:
        rank: Global rank.
        num_samples: Steps with a sample.
        peak_allocated_bytes: Most memory held by tensors on the accelerator, over all steps.
        reserved_bytes: Most memory held by the caching allocator.
        num_retries: Allocations that the allocator retried after freeing its cache.
        peak_rss_bytes: Peak resident memory of the process.
        rss_growth_bytes_per_step: Growth of resident memory over the second half of the steps, per
            step; None with fewer than eight samples.
        num_steady_retries: Retries in the second half of the steps, by when the allocator has seen
            every size; None with fewer than eight samples.
        retry_ns_per_step: Extra time of steady steps with retries over the median steady step
            without, averaged over all steady steps; None if either kind of step or its times are
            missing.
    """

    rank: int
    num_samples: int
    peak_allocated_bytes: int | None
    reserved_bytes: int | None
    num_retries: int | None
    peak_rss_bytes: int | None
    rss_growth_bytes_per_step: int | None
    num_steady_retries: int | None = None
    retry_ns_per_step: int | None = None


class MemoryResult(Result, frozen=True, kw_only=True):
    """Memory of each rank that has counters.

    Args:
        ranks: Each rank's memory.
    """

    ranks: tuple[RankMemory, ...] = ()
