"""Which kernels take the most time, and on which rank they are slower than on its peers."""

from __future__ import annotations

from distprof.artefacts.record import Record
from distprof.sections.base import Result


class CategoryTime(Record, frozen=True, kw_only=True):
    """Total duration of one kind of activity (computation, communication, copy) on all ranks."""

    kind: str  # ``computation``, ``communication`` or ``copy``.
    count: int  # Number of activities.
    total_ns: int  # Sum of their durations; overlapping ones count in full.


class KernelRow(Record, frozen=True, kw_only=True):
    """One kernel name on all ranks; ``spread``: median of the slowest rank over the median rank."""

    name: str  # Name of the kernel or operator.
    kind: str  # ``computation``, ``communication`` or ``copy``.
    count: int  # Number of runs on all ranks.
    total_ns: int  # Sum of its durations on all ranks.
    median_ns: int  # Its median duration.
    slowest_rank: int | None  # Rank with the longest median; null if ranks cannot be compared.
    spread: float | None  # That rank's median over the median rank's; null as above.


class RankSpeed(Record, frozen=True, kw_only=True):
    """How one rank's computation kernels compare with the same kernels of its peers."""

    rank: int  # Global rank.
    # Weighted mean over kernels of this rank's median over the median rank's.
    relative_time: float | None
    # Launches of shared kernels, weighted by their usual duration, over those of the median rank.
    relative_work: float | None
    num_shared_kernels: int  # Kernel names that were compared with those of peers.
    # Time of its kernels beyond their usual duration in the fastest step, mean per step: long if
    # another process takes turns with them. Null if kernels were not measured step by step.
    stretched_ns_per_step: int | None = None


class KernelsResult(Result, frozen=True, kw_only=True):
    """Kernels by name; the kernel with the longest total comes first."""

    needs_traces = True

    categories: tuple[CategoryTime, ...]  # Sum of durations by kind of activity.
    kernels: tuple[KernelRow, ...]  # Kernels by name, longest total first.
    ranks: tuple[RankSpeed, ...]  # Each rank's kernels compared with those of its peers.
