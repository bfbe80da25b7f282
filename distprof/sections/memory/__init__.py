"""Memory of each rank, from its counters at the end of steps."""

from __future__ import annotations

from distprof.artefacts.record import Record
from distprof.sections.base import Result


class RankMemory(Record, frozen=True, kw_only=True):
    """Memory of one rank. None means not measurable, such as GPU memory on a CPU."""

    rank: int  # Global rank.
    num_samples: int  # Steps with a sample.
    # Most memory held by tensors on the accelerator, over all steps.
    peak_allocated_bytes: int | None
    reserved_bytes: int | None  # Most memory held by the caching allocator.
    num_retries: int | None  # Allocations that the allocator retried after freeing its cache.
    peak_rss_bytes: int | None  # Peak resident memory of the process.
    # Growth of resident memory over the second half of the steps, per step; None with fewer than
    # eight samples.
    rss_growth_bytes_per_step: int | None
    # Retries in the second half of the steps, by when the allocator has seen every size; None with
    # fewer than eight samples.
    num_steady_retries: int | None = None
    # Extra time of steady steps with retries over the median steady step without, averaged over all
    # steady steps; None if either kind of step or its times are missing.
    retry_ns_per_step: int | None = None


class MemoryResult(Result, frozen=True, kw_only=True):
    """Memory of each rank that has counters."""

    ranks: tuple[RankMemory, ...] = ()  # Each rank's memory.
