"""Memory of each rank by its counters at the end of steps."""

from __future__ import annotations

from distprof.schema import Record
from distprof.sections.base import Result

__all__ = ["MemoryResult", "RankMemory"]


class RankMemory(Record, frozen=True, kw_only=True):
    """One rank. None: not measurable there, as device memory on a CPU.

    Args:
        rank: Global rank.
        num_samples: Steps with a sample.
        peak_allocated_bytes: Highest held by tensors on the accelerator, over all steps.
        reserved_bytes: Highest held by the caching allocator.
        num_retries: Allocations that had to be retried after freeing the cache.
        peak_rss_bytes: Highest resident memory of the process.
        rss_growth_bytes_per_step: Growth of resident memory over the second half of the steps, per
            step; None with fewer than eight samples.
        num_steady_retries: Those of ``num_retries`` in the second half of the steps, when the
            allocator has seen every size; None with fewer than eight samples.
        retry_ns_per_step: Time that steady steps with retries take longer than the median steady
            step without, over all steady steps; None where either kind is missing, or its times.
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
    """Memory of each rank that has counters."""

    ranks: tuple[RankMemory, ...] = ()
