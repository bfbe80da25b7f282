"""The cost of collectives per class: transfer, waiting and bus bandwidth.

The transfer of an instance lasts from the start of its last member to its end. The wait of a member
lasts from its own start to the start of the last member (formula sheet, "Measured from traces").
Both need members matched across ranks on clocks that can be compared. The duration of a single
member is neither.
"""

from __future__ import annotations

from distprof.artefacts.record import Record
from distprof.sections.base import Result


class CollectiveClass(Record, frozen=True, kw_only=True):
    """Collectives of one kind, group and size.

    The members of an all-to-all may send different amounts: its size is their mean. If sizes vary
    (more than 32 of one kind in one group), sizes within one power of two form one class, and
    ``bytes`` is their median.

    ``transfer``, ``wait`` and bandwidths are None if members could not be matched across ranks (the
    duration of a single member is not a transfer time). All times are None if the recording has no
    execution times, as for gloo sends and receives. Per-step values are means over ranks and steps.

    A message counts as one send and one receive. ``sent_bytes_per_step`` assumes the
    bandwidth-optimal algorithm (formula sheet, "Collectives"), and a receive sends nothing.

    Args:
        kind: Operation, for example ``all_reduce``.
        group: Process group, or the description that its groups share.
        group_size: Ranks in the group; null where unknown.
        axis: Mesh axis; null where unknown.
        bytes: Size of the full buffer in bytes, the median if sizes are folded; null where
            unknown.
        count: Number of collectives; each counts once, however many members were recorded.
        num_matched: Number of them that were matched across ranks.
        duration_ns_median: Median of a member's own duration, waiting included.
        transfer_ns_median: Median time from the last member's start to the end; null where not
            matched.
        wait_ns_median: Median time that a member waits for the last one to start; null where not
            matched.
        wait_ns_per_step: Waiting, exposed or not, mean per rank and step; null where not matched.
        transfer_ns_per_step: Transfer, exposed or not, mean per rank and step; null where not
            matched.
        exposed_ns_per_step: Time that does not overlap with computation, mean per rank and step.
        exposed_wait_ns_per_step: Part of the exposed time spent waiting for the last member; null
            where not matched.
        algbw_bytes_per_s: Algorithm bandwidth as nccl-tests defines it: size over transfer time;
            null where either is unknown.
        busbw_bytes_per_s: Bus bandwidth as nccl-tests defines it; null where unknown.
        expected_busbw_bytes_per_s: Bus bandwidth that the fabric profile expects for this class;
            null if no profile covers it.
        sent_bytes_per_step: Bytes that a rank sends with the bandwidth-optimal algorithm, mean per
            rank and step; null where unknown.
        num_nodes: Largest number of nodes that a group of this class spans; null where unknown.
    """

    kind: str
    group: str
    group_size: int | None
    axis: str | None
    bytes: int | None
    count: int
    num_matched: int
    duration_ns_median: int | None
    transfer_ns_median: int | None
    wait_ns_median: int | None
    wait_ns_per_step: int | None
    transfer_ns_per_step: int | None
    exposed_ns_per_step: int | None
    exposed_wait_ns_per_step: int | None
    algbw_bytes_per_s: float | None
    busbw_bytes_per_s: float | None
    expected_busbw_bytes_per_s: float | None
    sent_bytes_per_step: float | None = None
    num_nodes: int | None = None

    @property
    def exposed_transfer_ns_per_step(self) -> int:
        """Exposed time less the known waiting for late ranks, mean per rank and step."""
        return (self.exposed_ns_per_step or 0) - (self.exposed_wait_ns_per_step or 0)


class CollectiveTrain(Record, frozen=True, kw_only=True):
    """Consecutive reductions while nothing else runs; means over ranks and steps.

    Args:
        kind: Operation.
        group: Process group, or its description.
        ranks: Ranks with trains of this kind and group.
        num_per_step: Number of collectives in trains.
        busy_ns_per_step: Time in these collectives.
        gap_ns_per_step: Time between them.
        duration_ns_median: Median of their durations.
    """

    kind: str
    group: str
    ranks: tuple[int, ...]
    num_per_step: float
    busy_ns_per_step: int
    gap_ns_per_step: int
    duration_ns_median: int


class CollectivesResult(Result, frozen=True, kw_only=True):
    """Classes of collectives; the class with the most exposed time comes first.

    Args:
        num_ranks: Ranks that the means are over.
        num_steps: Steps that the means are over.
        classes: Collectives by kind, group and size, most exposed time first.
        trains: Consecutive reductions while nothing else runs, longest first.
    """

    needs_traces = True

    num_ranks: int
    num_steps: int
    classes: tuple[CollectiveClass, ...]
    trains: tuple[CollectiveTrain, ...] = ()
