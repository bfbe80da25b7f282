"""Collectives over hours or days, as timed by each rank: bandwidth, and late ranks by period."""

from __future__ import annotations

from distprof.artefacts.record import Record
from distprof.sections.base import Result


class LoggedOperation(Record, frozen=True, kw_only=True):
    """Operations of one kind and size on all communicators of the same shape."""

    kind: str  # Operation.
    num_bytes: int  # Bytes that each member passes in.
    num_ranks: int  # Members of the communicator.
    num_nodes: int | None  # Nodes that they span; None if unknown.
    num_groups: int  # Number of communicators.
    num_records: int  # Records of all members.
    mean_ns: int  # Mean duration of a record, including waiting.
    num_compared: int  # Collectives for which the records of all members were compared.
    # Bus bandwidth without waiting for the last member, median; None if nothing was compared.
    busbw_bytes_per_s: float | None
    slow_busbw_bytes_per_s: float | None  # Bandwidth that 95 % of these collectives exceed.


class LateSpell(Record, frozen=True, kw_only=True):
    """A period in which ranks mostly wait for one rank."""

    rank: int  # Global rank that arrives last.
    start_ns: int  # Start, since the epoch.
    end_ns: int  # End, since the epoch.
    wait_ratio: float  # Share of the time in collectives that is spent waiting.
    blamed_ratio: float  # Share of that waiting that is for this rank.
    num_compared: int  # Compared collectives in the period.


class BandwidthFall(Record, frozen=True, kw_only=True):
    """A period in which an operation is slower than usual."""

    kind: str  # Operation.
    num_bytes: int  # Bytes that each member passes in.
    num_ranks: int  # Members of the communicator.
    start_ns: int  # Start, since the epoch.
    end_ns: int  # End, since the epoch.
    usual_bytes_per_s: float  # Usual bus bandwidth, median over all windows.
    bytes_per_s: float  # Median bus bandwidth in the period.
    num_compared: int  # Compared operations in the period.
    is_last: bool  # Whether it lasts until the end of the records.


class CollectiveLogResult(Result, frozen=True, kw_only=True):
    """Records of collectives by ranks; empty without any."""

    num_records: int = 0  # Records of operations.
    num_ranks: int = 0  # Ranks with records.
    start_ns: int | None = None  # Time of the first record, since the epoch; None without one.
    end_ns: int | None = None  # Time of the last record.
    # One of this many collectives was compared between ranks; None without any.
    sampled_one_in: int | None = None
    num_compared: int = 0  # Collectives for which the records of all members were compared.
    # Share of the time in these that is spent waiting for the last member; None without any.
    wait_ratio: float | None = None
    # Operations by kind and size, longest total time first.
    operations: tuple[LoggedOperation, ...] = ()
    spells: tuple[LateSpell, ...] = ()  # Periods in which ranks mostly wait for one rank, in order.
    # Periods in which an operation was slower than usual, in order.
    falls: tuple[BandwidthFall, ...] = ()
