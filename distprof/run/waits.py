"""When the last member of each matched collective started, on every member's own clock."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from distprof.run.members import domain_of_ranks, member_column, member_to_common
from distprof.run.run import ClockAlignment, CollectiveMatches, Rank
from distprof.schema import ABSENT, Int64Array
from distprof.terms import CollectiveKind

__all__ = ["comparable_instances", "last_start_on_own_clock"]

_WAITS_FOR_ALL = [kind for kind in CollectiveKind if kind.is_symmetric or kind.is_point_to_point]


def last_start_on_own_clock(
    matches: CollectiveMatches, clock: ClockAlignment, ranks: Sequence[Rank]
) -> dict[int, Int64Array]:
    """When the last member started, for each row of each rank's COLLECTIVES table.

    The time before it is the member's wait, the time after it the transfer. Only instances in which
    nobody can finish before all have started count (not a broadcast, for example), and only those
    of :func:`comparable_instances`.

    Args:
        matches: Matched collectives.
        clock: How the ranks' clocks relate.
        ranks: Ranks of the run, ascending.

    Returns:
        Rank number to int64 ns on that rank's own clock, one per row; never before the row's own
        start; ABSENT where the row has no matched or no comparable instance. Where a clock error
        is larger than the transfer it can lie after the row's end.

    Source:
        Formula sheet, "Measured from traces": each member's wait is the last member's start minus
        its own.
    """
    waits = {rank.rank: np.full(len(rank.collectives), ABSENT, np.int64) for rank in ranks}
    usable = comparable_instances(matches, clock) & np.isin(matches.kind, _WAITS_FOR_ALL)
    if not usable.any():
        return waits
    own = member_column(matches, ranks, "start_ns")
    domain = domain_of_ranks(clock, matches.member_rank)
    common = member_to_common(clock, domain, own)
    last = np.maximum.reduceat(common, matches.offsets[:-1])
    instance = matches.instance_of_member
    # differences are small, so that rates of clocks can be applied to them in floating point
    late = (last[instance] - common) / (1.0 - clock.drift_ratio[domain])
    on_own_clock = own + np.rint(late).astype(np.int64)
    keep = usable[instance]
    _scatter(waits, matches.member_rank[keep], matches.member_row[keep], on_own_clock[keep])
    return waits


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
    group_of_member = matches.group[matches.instance_of_member].astype(np.int64)
    message = np.isin(matches.kind, [CollectiveKind.SEND, CollectiveKind.RECV])
    collective = ~message[matches.instance_of_member]
    pairs = group_of_member * (1 << 32) + matches.member_rank
    seen = np.bincount(np.unique(pairs[collective]) >> 32, minlength=int(matches.group.max()) + 1)
    whole: NDArray[np.bool_] = np.where(message, size == 2, size == seen[matches.group])
    return whole


def _on_one_clock(matches: CollectiveMatches, clock: ClockAlignment) -> NDArray[np.bool_]:
    component = clock.component[domain_of_ranks(clock, matches.member_rank)]
    first = matches.offsets[:-1]
    low = np.minimum.reduceat(component, first)
    high = np.maximum.reduceat(component, first)
    same: NDArray[np.bool_] = low == high
    return same


def _scatter(
    waits: dict[int, Int64Array],
    member_rank: NDArray[np.int32],
    member_row: Int64Array,
    values: Int64Array,
) -> None:
    """Write the values of the members into the rows of their ranks."""
    order = np.argsort(member_rank, kind="stable")
    ranks, first = np.unique(member_rank[order], return_index=True)
    for rank, part in zip(ranks.tolist(), np.split(order, first[1:]), strict=True):
        waits[rank][member_row[part]] = values[part]
