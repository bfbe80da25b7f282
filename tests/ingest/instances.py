"""Matched instances as plain sets, for comparison with the truth of a simulated job."""

from __future__ import annotations

from itertools import pairwise

from distprof.run.run import CollectiveMatches
from tests.simulator import Recording
from tests.simulator.tables import captured_comm


def members_of(matches: CollectiveMatches) -> list[set[tuple[int, int]]]:
    """The (rank, row) of the members of each instance, in order of the instances."""
    bounds = matches.offsets.tolist()
    pairs = list(zip(matches.member_rank.tolist(), matches.member_row.tolist(), strict=True))
    return [set(pairs[a:b]) for a, b in pairwise(bounds)]


def true_instances(recording: Recording) -> set[frozenset[tuple[int, int]]]:
    """What two or more traces of the job show of its collectives, as (rank, row)."""
    seen: dict[int, set[tuple[int, int]]] = {}
    for rank in recording.present:
        for row, event in enumerate(captured_comm(recording, rank)):
            seen.setdefault(id(event.instance), set()).add((rank, row))
    return {frozenset(members) for members in seen.values() if len(members) > 1}
