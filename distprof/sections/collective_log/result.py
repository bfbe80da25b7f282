"""Collectives over hours or days, as each rank timed them: bandwidth, and who came last when."""

from __future__ import annotations

from distprof.artefacts.record import Record
from distprof.sections.base import Result

__all__ = ["BandwidthFall", "CollectiveLogResult", "LateSpell", "LoggedOperation"]


class LoggedOperation(Record, frozen=True, kw_only=True):
    """Operations of one kind, size and shape of communicator, of all such communicators.

    Args:
        kind: Operation.
        num_bytes: What each member passes in.
        num_ranks: Members of the communicator.
        num_nodes: Nodes that they are on, None where not told.
        num_groups: Communicators.
        num_records: Records of all members.
        mean_ns: Of a record, waiting included.
        num_compared: Collectives of which every member's record was compared.
        busbw_bytes_per_s: Bus bandwidth without waiting for the last member, median; None where
            nothing was compared.
        slow_busbw_bytes_per_s: The bandwidth that 95 % exceed.
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
    """A time in which most waiting is for one rank.

    Args:
        rank: Global rank that comes last.
        start_ns: Since the epoch.
        end_ns: Since the epoch.
        wait_ratio: Share of the time in collectives that is waiting.
        blamed_ratio: Share of that for this rank.
        num_compared: Collectives that show it.
    """

    rank: int
    start_ns: int
    end_ns: int
    wait_ratio: float
    blamed_ratio: float
    num_compared: int


class BandwidthFall(Record, frozen=True, kw_only=True):
    """A time in which an operation is slower than it usually is.

    Args:
        kind: Operation.
        num_bytes: What each member passes in.
        num_ranks: Members of the communicator.
        start_ns: Since the epoch.
        end_ns: Since the epoch.
        usual_bytes_per_s: Bus bandwidth at other times, median.
        bytes_per_s: Bus bandwidth then, median.
        num_compared: Operations that show it.
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
        start_ns: Of the first record, since the epoch; None without one.
        end_ns: Of the last.
        sampled_one_in: One of how many collectives was compared between ranks; None without any.
        num_compared: Collectives of which every member's record was compared.
        wait_ratio: Share of the time in these that is waiting for the last member, None without
            any.
        operations: By kind and size, those with most time first.
        spells: Times in which most waiting is for one rank, in order.
        falls: Times in which an operation was slower than usual, in order.
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
