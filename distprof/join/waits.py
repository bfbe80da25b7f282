"""When the last member of each matched collective started, on every member's own clock.

And columns of matched collectives, gathered from the tables of many ranks, that this needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distprof.run.run import ClockAlignment, CollectiveMatches, Rank
from distprof.run.tables import encode
from distprof.schema import ABSENT, Int64Array
from distprof.terms import CollectiveKind

__all__ = [
    "comparable_instances",
    "domain_of_ranks",
    "last_start_on_own_clock",
    "member_column",
    "member_rows",
    "member_to_common",
    "positions_of",
    "timed_instances",
]


def positions_of(ranks: Sequence[Rank], numbers: NDArray[Any]) -> NDArray[np.int64]:
    """Position in ``ranks`` of each rank number.

    Args:
        ranks: Ranks of the run, ascending.
        numbers: Rank numbers, each of them in ``ranks``.
    """
    known = np.array([rank.rank for rank in ranks], dtype=np.int64)
    distinct, code = encode(numbers)
    positions: Int64Array = np.searchsorted(known, distinct)[code]
    return positions


def member_rows(matches: CollectiveMatches, ranks: Sequence[Rank]) -> Int64Array:
    """Where each member is among the COLLECTIVES rows of all ranks, one rank after another.

    Args:
        matches: Matched collectives.
        ranks: Ranks of the run, ascending.
    """
    lengths = np.array([len(rank.collectives) for rank in ranks], dtype=np.int64)
    first = np.cumsum(lengths) - lengths
    rows: Int64Array = first[positions_of(ranks, matches.member_rank)] + matches.member_row
    return rows


def member_column(
    matches: CollectiveMatches, ranks: Sequence[Rank], column: str
) -> NDArray[np.int64]:
    """One integer column of COLLECTIVES for every member, in the order of the members.

    Args:
        matches: Matched collectives.
        ranks: Ranks of the run, ascending.
        column: Name of a column that is no category.

    Returns:
        int64, shape ``(len(matches.member_rank),)``.
    """
    if len(matches.member_rank) == 0:
        return np.empty(0, np.int64)
    values = np.concatenate([rank.collectives[column] for rank in ranks])
    rows = member_rows(matches, ranks)
    column_of_members: Int64Array = values[rows].astype(np.int64, copy=False)
    return column_of_members


def timed_instances(matches: CollectiveMatches, ranks: Sequence[Rank]) -> NDArray[np.bool_]:
    """Instances of which every member's start and end of execution are known.

    Returns:
        bool, one per instance.
    """
    if matches.count == 0:
        return np.zeros(0, np.bool_)
    timed = member_column(matches, ranks, "is_timed")
    everyone: NDArray[np.bool_] = np.minimum.reduceat(timed, matches.offsets[:-1]) > 0
    return everyone


def domain_of_ranks(clock: ClockAlignment, numbers: NDArray[Any]) -> NDArray[np.int64]:
    """Clock domain of each of many rank numbers.

    Raises:
        ValueError: If a rank is in no domain.
    """
    distinct, code = encode(numbers)
    domains = np.array([clock.domain_of(rank) for rank in distinct.tolist()], dtype=np.int64)
    of_each: Int64Array = domains[code]
    return of_each


def member_to_common(
    clock: ClockAlignment, domain: NDArray[np.int64], own_ns: Int64Array
) -> Int64Array:
    """Own times on the common clock, each by the correction of its clock domain; int64 ns.

    Args:
        clock: Corrections.
        domain: Clock domain of each time.
        own_ns: Own times.
    """
    if len(own_ns) == 0:
        return own_ns
    drift = clock.drift_ratio[domain] * (own_ns - clock.reference_ns)
    correction: Int64Array = np.rint(clock.offset_ns[domain] + drift).astype(np.int64)
    return own_ns - correction


# Arrivals -----------------------------------------------------------------------------------------

_WAITS_FOR_ALL = [kind for kind in CollectiveKind if kind.is_symmetric or kind.is_point_to_point]


def last_start_on_own_clock(
    matches: CollectiveMatches, clock: ClockAlignment, ranks: Sequence[Rank]
) -> dict[int, Int64Array]:
    """When the last member started, for each row of each rank's COLLECTIVES table.

    The time before it is the member's wait, the time after it the transfer. Only instances in which
    no member can finish before all have started count (not a broadcast, for example), and only
    those of :func:`comparable_instances`.

    Args:
        matches: Matched collectives.
        clock: How the ranks' clocks relate.
        ranks: Ranks of the run, ascending.

    Returns:
        Rank number to int64 ns on that rank's own clock, one per row; never before the row's own
        start; ABSENT where the row has no matched or no comparable instance. Where a clock error
        is larger than the transfer it can be after the row's end.

    Source:
        Formula sheet, "Measured from traces": each member's wait is the last member's start minus
        its own.
    """
    if not ranks:
        return {}
    lengths = [len(rank.collectives) for rank in ranks]
    waits = np.full(sum(lengths), ABSENT, np.int64)
    usable = comparable_instances(matches, clock) & np.isin(matches.kind, _WAITS_FOR_ALL)
    usable &= timed_instances(matches, ranks)
    if usable.any():
        last = _last_starts(matches, clock, member_column(matches, ranks, "start_ns"))
        keep = np.repeat(usable, np.diff(matches.offsets))
        waits[member_rows(matches, ranks)[keep]] = last[keep]
    parts = np.split(waits, np.cumsum(lengths)[:-1])
    return {rank.rank: part for rank, part in zip(ranks, parts, strict=True)}


def _last_starts(
    matches: CollectiveMatches, clock: ClockAlignment, own_ns: Int64Array
) -> Int64Array:
    """When the last member of each member's instance started, on the member's own clock."""
    domain = domain_of_ranks(clock, matches.member_rank)
    common = member_to_common(clock, domain, own_ns)
    last = np.maximum.reduceat(common, matches.offsets[:-1])
    # differences are small, so that rates of clocks can be applied to them in floating point
    late = np.repeat(last, np.diff(matches.offsets)) - common
    own_late = np.rint(late / (1.0 - clock.drift_ratio[domain])).astype(np.int64)
    return own_ns + own_late


def comparable_instances(matches: CollectiveMatches, clock: ClockAlignment) -> NDArray[np.bool_]:
    """Instances of which the last member is known, as far as the ranks of the run go.

    Every rank of the run that takes part in the group's collectives is a member (one that is
    missing might have been the last), and all members are on comparable clocks.

    Returns:
        bool, one per instance.
    """
    if matches.count == 0:
        return np.zeros(0, np.bool_)
    return _has_all_seen(matches) & _on_one_clock(matches, clock)


def _has_all_seen(matches: CollectiveMatches) -> NDArray[np.bool_]:
    """Whether an instance has as many members as its group ever shows."""
    size = np.diff(matches.offsets)
    message = np.isin(matches.kind, [CollectiveKind.SEND, CollectiveKind.RECV])
    # several messages in one kernel, between two ranks of a larger group
    message |= (matches.kind == CollectiveKind.SEND_RECV) & matches.complete & (size == 2)
    ranks, rank = encode(matches.member_rank)
    pair = np.repeat(matches.group.astype(np.int64) * len(ranks), size) + rank
    pairs, _ = encode(pair[np.repeat(~message, size)])
    seen = np.bincount(pairs // len(ranks), minlength=int(matches.group.max()) + 1)
    whole: NDArray[np.bool_] = np.where(message, size == 2, size == seen[matches.group])
    return whole


def _on_one_clock(matches: CollectiveMatches, clock: ClockAlignment) -> NDArray[np.bool_]:
    component = clock.component[domain_of_ranks(clock, matches.member_rank)]
    first = matches.offsets[:-1]
    low = np.minimum.reduceat(component, first)
    high = np.maximum.reduceat(component, first)
    same: NDArray[np.bool_] = low == high
    return same
