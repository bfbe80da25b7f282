"""What do the collectives cost, by class: transfer against waiting, and bus bandwidth.

An instance's transfer runs from its last member's start to its end; a member's wait from its own
start to the last member's (formula sheet, "Measured from traces"). Both need members matched across
ranks on clocks that can be compared; a member's own duration is neither.
"""

from __future__ import annotations

from distprof.schema import Record
from distprof.sections.base import Result

__all__ = ["CollectiveClass", "CollectivesResult"]


class CollectiveClass(Record, frozen=True, kw_only=True):
    """Collectives of one kind, group and size.

    The members of an all-to-all may send unlike amounts: its size is their mean. Where sizes vary
    (more than 32 of one kind in one group), those of one power of two are one class, and ``bytes``
    is their median.

    ``transfer``, ``wait``, bandwidths are None where members could not be matched across ranks (a
    member's own duration is no transfer time). All times are None where the recording tells no time
    of execution, as for sends and receives of gloo. Per-step values are means over ranks and steps.

    A message counts once among the sends and once among the receives. ``sent_bytes_per_step`` is
    what each rank of the job sends, mean over ranks, by the bandwidth-optimal algorithm (formula
    sheet, "Collectives"); receiving sends nothing. ``num_nodes`` is the number of nodes that a
    group spans, the most of all groups of the class.
    """

    kind: str
    group: str
    group_size: int | None
    axis: str | None
    bytes: int | None
    count: int  # instances, each counted once however many members were seen
    num_matched: int
    duration_ns_median: int | None  # a member's own time, waiting included
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
        """Exposed time without waiting for late members; with it where that is not known.

        Mean per rank and step, 0 where the recording tells no time of execution.
        """
        return (self.exposed_ns_per_step or 0) - (self.exposed_wait_ns_per_step or 0)


class CollectivesResult(Result, frozen=True, kw_only=True):
    """Class table, most exposed time first."""

    num_ranks: int
    num_steps: int
    classes: tuple[CollectiveClass, ...]
