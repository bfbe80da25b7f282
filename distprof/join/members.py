"""Columns of matched collectives, gathered from the tables of many ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distprof.run.codes import encode
from distprof.run.run import ClockAlignment, CollectiveMatches, Rank
from distprof.schema import Int64Array

__all__ = [
    "domain_of_ranks",
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
