"""The cost of collectives per class: transfer, waiting and bus bandwidth.

The transfer of an instance lasts from the start of its last member to its end. The wait of a member
lasts from its own start to the start of the last member (formula sheet, "Measured from traces").
Both need members matched across ranks on clocks that can be compared. The duration of a single
member is neither.
"""

from __future__ import annotations

from distprof.schema import Record
from distprof.sections.base import Result

__all__ = ["CollectiveClass", "CollectivesResult"]


class CollectiveClass(Record, frozen=True, kw_only=True):
    """Collectives of one kind, group and size.

    The members of an all-to-all may send different amounts: its size is their mean. If sizes vary
    (more than 32 of one kind in one group), sizes within one power of two form one class, and
    ``bytes`` is their median.

    ``transfer``, ``wait`` and bandwidths are None if members could not be matched across ranks (the
    duration of a single member is not a transfer time). All times are None if the recording has no
    times of execution, as for sends and receives of gloo. Per-step values are means over ranks and
    steps.

    A message counts once among the sends and once among the receives. ``sent_bytes_per_step`` is
    what each rank of the job sends, mean over ranks, with the bandwidth-optimal algorithm (formula
    sheet, "Collectives"); receiving sends nothing. ``num_nodes`` is the largest number of nodes
    that a group of the class spans.
    """

    kind: str
    group: str
    group_size: int | None
    axis: str | None
    bytes: int | None
    count: int  # instances, each counted once for any number of recorded members
    num_matched: int
    duration_ns_median: int | None  # of one member, including waiting
    transfer_ns_median: int | None
    wait_ns_median: int | None  # per member
    wait_ns_per_step: int | None  # exposed or not, mean per rank
    transfer_ns_per_step: int | None
    exposed_ns_per_step: int | None  # mean per rank
    exposed_wait_ns_per_step: int | None
    algbw_bytes_per_s: float | None
    busbw_bytes_per_s: float | None
    expected_busbw_bytes_per_s: float | None
    sent_bytes_per_step: float | None = None
    num_nodes: int | None = None

    @property
    def exposed_transfer_ns_per_step(self) -> int:
        """Exposed time without waiting for late ranks, as far as it is known; mean per rank."""
        return (self.exposed_ns_per_step or 0) - (self.exposed_wait_ns_per_step or 0)


class CollectivesResult(Result, frozen=True, kw_only=True):
    """Classes of collectives; the class with the most exposed time comes first."""

    needs_traces = True

    num_ranks: int
    num_steps: int
    classes: tuple[CollectiveClass, ...]
