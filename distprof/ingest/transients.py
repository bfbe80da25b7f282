"""Steps that the start of the profiler disturbs.

Profilers start at different times; at the first collective every rank waits for the last one to
come out of its profiler's start. Such a wait belongs to the measurement, not to the job.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from distprof.ingest.rows import NO_STEP, step_labels
from distprof.run.members import domain_of_ranks, member_column, member_to_common, positions_of
from distprof.run.run import ClockAlignment, CollectiveMatches, Rank
from distprof.run.waits import comparable_instances
from distprof.schema import Int64Array
from distprof.terms import CollectiveKind

__all__ = ["find_transients"]

_TIMES_USUAL = 10
_SPREAD_TOLERANCE = 0.2
_WAITING_SHARE = 0.5
_SYMMETRIC = [kind for kind in CollectiveKind if kind.is_symmetric]


def find_transients(
    ranks: Sequence[Rank],
    matches: CollectiveMatches,
    clock: ClockAlignment,
    steps: tuple[int, ...],
) -> tuple[int, ...]:
    """Steps among ``steps`` whose first collective waits for the start of a rank's profiler.

    That is so when the first collective is ten times as long as its like, most of it is waiting for
    the last member to start, and its members start as far apart as their captures do.

    Args:
        ranks: Ranks of the run, ascending.
        matches: Matched collectives.
        clock: How the ranks' clocks relate.
        steps: Steps that could be analysed.
    """
    usable = comparable_instances(matches, clock) & np.isin(matches.kind, _SYMMETRIC)
    if not usable.any() or not steps:
        return ()
    candidates = np.flatnonzero(usable)
    _, first_of_group = np.unique(matches.group[candidates], return_index=True)
    length = _longest(matches, ranks)
    found = {
        _step_of(matches, ranks, first)
        for first in candidates[first_of_group].tolist()
        if _is_unusual(matches, usable, length, first)
        and _waits_as_captures_start(matches, ranks, clock, first, int(length[first]))
    }
    return tuple(sorted(found.intersection(steps)))


def _members(matches: CollectiveMatches, instance: int) -> slice:
    return slice(int(matches.offsets[instance]), int(matches.offsets[instance + 1]))


def _longest(matches: CollectiveMatches, ranks: Sequence[Rank]) -> Int64Array:
    """Longest duration among the members of each instance."""
    length = member_column(matches, ranks, "end_ns") - member_column(matches, ranks, "start_ns")
    longest: Int64Array = np.maximum.reduceat(length, matches.offsets[:-1])
    return longest


def _waits_as_captures_start(
    matches: CollectiveMatches,
    ranks: Sequence[Rank],
    clock: ClockAlignment,
    instance: int,
    length: int,
) -> bool:
    """Whether an instance is mostly waiting, and its members start as far apart as captures."""
    members = _members(matches, instance)
    numbers = matches.member_rank[members]
    domain = domain_of_ranks(clock, numbers)
    owners = [ranks[position] for position in positions_of(ranks, numbers)]
    rows = zip(owners, matches.member_row[members], strict=True)
    own_start = np.array([rank.collectives["start_ns"][row] for rank, row in rows], np.int64)
    own_opened = np.array([rank.capture_start_ns for rank in owners], np.int64)
    start = member_to_common(clock, domain, own_start)
    opened = member_to_common(clock, domain, own_opened)
    spread, opened_apart = int(np.ptp(start)), int(np.ptp(opened))
    slack = max(_SPREAD_TOLERANCE * spread, float(clock.residual_ns[domain].max()))
    return spread > _WAITING_SHARE * length and abs(spread - opened_apart) <= slack


def _is_unusual(
    matches: CollectiveMatches, usable: NDArray[np.bool_], longest: Int64Array, instance: int
) -> bool:
    """Whether the instance is ten times as long as others of its group, kind and bytes."""
    alike = usable & (matches.group == matches.group[instance])
    alike &= (matches.kind == matches.kind[instance]) & (matches.bytes == matches.bytes[instance])
    alike[instance] = False
    if not alike.any():
        return False  # nothing to compare with
    return bool(longest[instance] > _TIMES_USUAL * np.median(longest[alike]))


def _step_of(matches: CollectiveMatches, ranks: Sequence[Rank], instance: int) -> int:
    """The step that most members see the instance in."""
    members = _members(matches, instance)
    labels = [
        int(step_labels(ranks[position])[row])
        for position, row in zip(
            positions_of(ranks, matches.member_rank[members]).tolist(),
            matches.member_row[members].tolist(),
            strict=True,
        )
    ]
    known = [label for label in labels if label != NO_STEP]
    return max(set(known), key=known.count) if known else int(NO_STEP)
