"""What do the collectives cost, by class: transfer against waiting, and bus bandwidth."""

from __future__ import annotations

from distprof.analyzers.result import Record, Result

__all__ = ["CollectiveClass", "CollectivesResult"]


class CollectiveClass(Record, frozen=True, kw_only=True):
    """Collectives of one kind, group and size.

    ``transfer``, ``wait``, bandwidths are None where members could not be matched across ranks (a
    member's own duration is no transfer time). Per-step values are means over ranks and steps.
    """

    kind: str
    group: str
    group_size: int | None
    axis: str | None
    bytes: int | None
    count: int  # instances, each counted once however many members were seen
    num_matched: int
    duration_ns_median: int  # a member's own time, waiting included
    transfer_ns_median: int | None
    wait_ns_median: int | None  # per member
    wait_ns_per_step: int | None  # exposed or not, mean per rank
    transfer_ns_per_step: int | None
    exposed_ns_per_step: int  # mean per rank
    exposed_wait_ns_per_step: int | None
    algbw_bytes_per_s: float | None
    busbw_bytes_per_s: float | None
    expected_busbw_bytes_per_s: float | None


class CollectivesResult(Result, frozen=True, kw_only=True):
    """Class table, most exposed time first."""

    num_ranks: int
    num_steps: int
    classes: tuple[CollectiveClass, ...]
