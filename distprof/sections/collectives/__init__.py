"""The cost of collectives per class: transfer, waiting and bus bandwidth."""

from __future__ import annotations

from distprof.artefacts.record import Record
from distprof.sections.base import Result
from distprof.terms import MESSAGES, MeshAxis
from distprof.units import format_bytes

_POINT_TO_POINT = frozenset(kind.label for kind in MESSAGES)


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
    """

    kind: str  # Operation, for example ``all_reduce``.
    group: str  # Process group, or the description that its groups share.
    group_size: int | None  # Ranks in the group; null where unknown.
    axis: str | None  # Mesh axis; null where unknown.
    # Size of the full buffer in bytes, the median if sizes are folded; null where unknown.
    bytes: int | None
    count: int  # Number of collectives; each counts once, however many members were recorded.
    num_matched: int  # Number of them that were matched across ranks.
    duration_ns_median: int | None  # Median of a member's own duration, waiting included.
    # Median time from the last member's start to the end; null where not matched.
    transfer_ns_median: int | None
    # Median time that a member waits for the last one to start; null where not matched.
    wait_ns_median: int | None
    # Waiting, exposed or not, mean per rank and step; null where not matched.
    wait_ns_per_step: int | None
    # Transfer, exposed or not, mean per rank and step; null where not matched.
    transfer_ns_per_step: int | None
    # Time that does not overlap with computation, mean per rank and step.
    exposed_ns_per_step: int | None
    # Part of the exposed time spent waiting for the last member; null where not matched.
    exposed_wait_ns_per_step: int | None
    # Algorithm bandwidth as nccl-tests defines it: size over transfer time; null where either is
    # unknown.
    algbw_bytes_per_s: float | None
    busbw_bytes_per_s: float | None  # Bus bandwidth as nccl-tests defines it; null where unknown.
    # Bus bandwidth that the fabric profile expects for this class; null if no profile covers it.
    expected_busbw_bytes_per_s: float | None
    # Bytes that a rank sends with the bandwidth-optimal algorithm, mean per rank and step; null
    # where unknown.
    sent_bytes_per_step: float | None = None
    # Largest number of nodes that a group of this class spans; null where unknown.
    num_nodes: int | None = None

    @property
    def exposed_transfer_ns_per_step(self) -> int:
        """Exposed time less the known waiting for late ranks, mean per rank and step."""
        return (self.exposed_ns_per_step or 0) - (self.exposed_wait_ns_per_step or 0)

    @property
    def is_message(self) -> bool:
        """Whether it is a send or a receive."""
        return self.kind in _POINT_TO_POINT

    @property
    def label(self) -> str:
        """For example ``all_reduce in dp_shard (26.2 MB)``: the axis, or the group without one.

        A group without a description is named by its ranks: ``all_reduce of ranks 0-1 and 2-3``.
        """
        name = self.group if self.axis in (None, MeshAxis.WORLD) else self.axis
        word = "of" if name.startswith("ranks ") else "in"
        group = f" {word} {name}" if name else ""
        size = f" ({format_bytes(self.bytes)})" if self.bytes is not None else ""
        return f"{self.kind}{group}{size}"


class CollectiveTrain(Record, frozen=True, kw_only=True):
    """Consecutive reductions while nothing else runs; means over ranks and steps."""

    kind: str  # Operation.
    group: str  # Process group, or its description.
    ranks: tuple[int, ...]  # Ranks with trains of this kind and group.
    num_per_step: float  # Number of collectives in trains.
    busy_ns_per_step: int  # Time in these collectives.
    gap_ns_per_step: int  # Time between them.
    duration_ns_median: int  # Median of their durations.


class CollectivesResult(Result, frozen=True, kw_only=True):
    """Classes of collectives; the class with the most exposed time comes first."""

    needs_traces = True

    num_ranks: int  # Ranks that the means are over.
    num_steps: int  # Steps that the means are over.
    # Collectives by kind, group and size, most exposed time first.
    classes: tuple[CollectiveClass, ...]
    # Consecutive reductions while nothing else runs, longest first.
    trains: tuple[CollectiveTrain, ...] = ()

    @property
    def has_only_messages(self) -> bool:
        """Whether the recording holds only sends and receives."""
        return all(record.is_message for record in self.classes)

    @property
    def split_classes(self) -> list[CollectiveClass]:
        """Classes with waiting separated from transfer, without sends and receives.

        Waiting in pipeline messages is the bubble, and says nothing about late ranks.
        """
        return [
            record
            for record in self.classes
            if not record.is_message and record.exposed_wait_ns_per_step is not None
        ]
