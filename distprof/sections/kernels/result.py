"""Which kernels take the most time, and on which rank they are slower than on its peers."""

from __future__ import annotations

from distprof.artefacts.record import Record
from distprof.sections.base import Result


class CategoryTime(Record, frozen=True, kw_only=True):
    """Total duration of one kind of activity (computation, communication, copy) on all ranks.

    Args:
        kind: ``computation``, ``communication`` or ``copy``.
        count: Number of activities.
        total_ns: Sum of their durations; overlapping ones count in full.
    """

    kind: str
    count: int
    total_ns: int


class KernelRow(Record, frozen=True, kw_only=True):
    """One kernel name on all ranks; ``spread``: median of the slowest rank over the median rank.

    Args:
        name: Name of the kernel or operator.
        kind: ``computation``, ``communication`` or ``copy``.
        count: Number of runs on all ranks.
        total_ns: Sum of its durations on all ranks.
        median_ns: Its median duration.
        slowest_rank: Rank with the longest median; null if ranks cannot be compared.
        spread: That rank's median over the median rank's; null as above.
    """

    name: str
    kind: str
    count: int
    total_ns: int
    median_ns: int
    slowest_rank: int | None
    spread: float | None


class RankSpeed(Record, frozen=True, kw_only=True):
    """How one rank's computation kernels compare with the same kernels of its peers.

    Args:
        rank: Global rank.
        relative_time: Weighted mean over kernels of this rank's median over the median rank's.
        relative_work: Launches of shared kernels, weighted by their usual duration, over those of
            the median rank.
        num_shared_kernels: Kernel names that were compared with those of peers.
        stretched_ns_per_step: Time of its kernels beyond their usual duration in the fastest step,
            mean per step: long if another process takes turns with them. Null if kernels were not
            measured step by step.
    """

    rank: int
    relative_time: float | None
    relative_work: float | None
    num_shared_kernels: int
    stretched_ns_per_step: int | None = None


class KernelsResult(Result, frozen=True, kw_only=True):
    """Kernels by name; the kernel with the longest total comes first.

    Args:
        categories: Sum of durations by kind of activity.
        kernels: Kernels by name, longest total first.
        ranks: Each rank's kernels compared with those of its peers.
    """

    needs_traces = True

    categories: tuple[CategoryTime, ...]
    kernels: tuple[KernelRow, ...]
    ranks: tuple[RankSpeed, ...]
