"""Collectives as they are found: what the ways of matching add to, and what comes of it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from distprof.ingest.rows import Rows
from distprof.run.run import CollectiveMatches
from distprof.run.topology import ProcessGroup
from distprof.schema import Int64Array
from distprof.terms import CollectiveKind, MatchMethod

__all__ = ["MESSAGES", "SAME_BYTES", "Found", "matches_of", "name_of", "same_as_before"]

# Members of these give the same bytes; those of an all-to-all may differ.
SAME_BYTES = (
    CollectiveKind.ALL_REDUCE,
    CollectiveKind.ALL_GATHER,
    CollectiveKind.REDUCE_SCATTER,
    CollectiveKind.BROADCAST,
    CollectiveKind.REDUCE,
)
MESSAGES = (CollectiveKind.SEND, CollectiveKind.RECV)


class Found:
    """Instances found so far: members as positions in the rows, instance after instance.

    ``ambiguous`` holds the ranks of which rows stay unmatched because they fit in several ways,
    ``misnumbered`` those that show that sequence numbers do not go together with times.
    """

    def __init__(self) -> None:
        self.members: list[NDArray[np.int64]] = []
        self.sizes: list[NDArray[np.int64]] = []
        self.methods: list[NDArray[np.int8]] = []
        self.num_candidates = 0
        self.ambiguous: set[int] = set()
        self.misnumbered: set[int] = set()
        self.notes: list[str] = []

    def add(self, members: Int64Array, sizes: Int64Array, method: MatchMethod) -> None:
        """Add instances: their members one after another, and how many each has."""
        self.members.append(members)
        self.sizes.append(sizes)
        self.methods.append(np.full(len(sizes), method, np.int8))


def name_of(group: ProcessGroup) -> str:
    """What a group is called in notes."""
    return group.description or group.name or "of all ranks"


def same_as_before(*columns: NDArray[np.int64] | NDArray[np.int32]) -> NDArray[np.bool_]:
    """Whether each entry equals the one before it in every column."""
    same = np.ones(len(columns[0]), np.bool_)
    same[:1] = False
    for column in columns:
        same[1:] &= column[1:] == column[:-1]
    return same


def matches_of(
    rows: Rows, groups: Sequence[ProcessGroup], present: Int64Array, found: Found
) -> CollectiveMatches:
    """What was found, in order of time.

    Args:
        rows: The rows of all ranks.
        groups: Groups of the run's topology.
        present: How many ranks of the run are in each group.
        found: Instances; the sender of a message is its first member.
    """
    members = np.concatenate([np.empty(0, np.int64), *found.members])
    sizes = np.concatenate([np.empty(0, np.int64), *found.sizes])
    method = np.concatenate([np.empty(0, np.int8), *found.methods])
    offsets = np.concatenate(([0], np.cumsum(sizes))).astype(np.int64)
    if len(sizes):
        order = np.argsort(rows.end_ns[members[offsets[:-1]]], kind="stable")
        members, offsets = _reorder(members, offsets, order)
        sizes, method = sizes[order], method[order]
    first = members[offsets[:-1]]
    group, kind = rows.group[first], rows.kind[first]
    message = np.isin(kind, MESSAGES)
    group_size = np.array([len(g.ranks) or g.size or 0 for g in groups], np.int64)
    complete = message | (sizes == group_size[group])
    whole = complete | (sizes == present[group])
    return CollectiveMatches(
        offsets=offsets,
        member_rank=rows.rank[members],
        member_row=rows.row[members],
        group=group,
        kind=kind,
        bytes=np.maximum.reduceat(rows.bytes[members], offsets[:-1])
        if len(sizes)
        else np.empty(0, np.int64),
        method=method,
        complete=complete,
        num_candidates=found.num_candidates,
        num_matched=int(sizes[whole].sum()),
        ambiguous_ranks=tuple(sorted(found.ambiguous)),
        misnumbered_ranks=tuple(sorted(found.misnumbered)),
        notes=tuple(found.notes),
    )


def _reorder(
    members: Int64Array, offsets: Int64Array, order: Int64Array
) -> tuple[Int64Array, Int64Array]:
    """Members and offsets with the instances in another order."""
    sizes = np.diff(offsets)[order]
    moved = np.concatenate(([0], np.cumsum(sizes))).astype(np.int64)
    source = np.repeat(offsets[:-1][order] - moved[:-1], sizes) + np.arange(len(members))
    return members[source], moved
