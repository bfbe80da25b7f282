"""Collectives over hours or days, as timed by each rank: bandwidth, and late ranks by period."""

from __future__ import annotations

from distprof.artefacts.record import Record
from distprof.sections.base import Result


class LoggedOperation(Record, frozen=True, kw_only=True):
    """Operations of one kind and size on all communicators of the same shape.

    Args:
        kind: Operation.
        num_bytes: Bytes that each member passes in.
        num_ranks: Members of the communicator.
        num_nodes: Nodes that they span; None if unknown.
        num_groups: Number of communicators.
        num_records: Records of all members.
        mean_ns: Mean duration of a record, including waiting.
        num_compared: Collectives for which the records of all members were compared.
        busbw_bytes_per_s: Bus bandwidth without waiting for the last member, median; None if
            nothing was compared.
        slow_busbw_bytes_per_s: Bandwidth that 95 % of these collectives exceed.
    """

    kind: str
    num_bytes: int
    num_ranks: int
    num_nodes: int | None
    num_groups: int
    num_records: int
    mean_ns: int
    num_compared: int
    busbw_bytes_per_s: float | None
    slow_busbw_bytes_per_s: float | None


class LateSpell(Record, frozen=True, kw_only=True):
    """A period in which ranks mostly wait for one rank.

    Args:
        rank: Global rank that arrives last.
        start_ns: Start, since the epoch.
        end_ns: End, since the epoch.
        wait_ratio: Share of the time in collectives that is spent waiting.
        blamed_ratio: Share of that waiting that is for this rank.
        num_compared: Compared collectives in the period.
    """

    rank: int
    start_ns: int
    end_ns: int
    wait_ratio: float
    blamed_ratio: float
    num_compared: int


class BandwidthFall(Record, frozen=True, kw_only=True):
    """A period in which an operation is slower than usual.

    Args:
        kind: Operation.
        num_bytes: Bytes that each member passes in.
        num_ranks: Members of the communicator.
        start_ns: Start, since the epoch.
        end_ns: End, since the epoch.
        usual_bytes_per_s: Usual bus bandwidth, median over all windows.
        bytes_per_s: Median bus bandwidth in the period.
        num_compared: Compared operations in the period.
        is_last: Whether it lasts until the end of the records.
    """

    kind: str
    num_bytes: int
    num_ranks: int
    start_ns: int
    end_ns: int
    usual_bytes_per_s: float
    bytes_per_s: float
    num_compared: int
    is_last: bool


class CollectiveLogResult(Result, frozen=True, kw_only=True):
    """Records of collectives by ranks; empty without any.

    Args:
        num_records: Records of operations.
        num_ranks: Ranks with records.
        start_ns: Time of the first record, since the epoch; None without one.
        end_ns: Time of the last record.
        sampled_one_in: One of this many collectives was compared between ranks; None without any.
        num_compared: Collectives for which the records of all members were compared.
        wait_ratio: Share of the time in these that is spent waiting for the last member; None
            without any.
        operations: Operations by kind and size, longest total time first.
        spells: Periods in which ranks mostly wait for one rank, in order.
        falls: Periods in which an operation was slower than usual, in order.
    """

    num_records: int = 0
    num_ranks: int = 0
    start_ns: int | None = None
    end_ns: int | None = None
    sampled_one_in: int | None = None
    num_compared: int = 0
    wait_ratio: float | None = None
    operations: tuple[LoggedOperation, ...] = ()
    spells: tuple[LateSpell, ...] = ()
    falls: tuple[BandwidthFall, ...] = ()
