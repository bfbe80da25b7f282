"""Which communication rows of different ranks are one collective.

Rows with sequence numbers are joined by them; rows without by order (:mod:`.subsequence`); sends
with receives by order within a pair of ranks. Every step is a sort over the rows of all ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from distprof.join.by_number import all_ranks_number, match_by_sequence
from distprof.join.by_order import match_by_order, match_messages
from distprof.join.clock_links import ClockLinks
from distprof.join.instances import MESSAGES, Found, Rows, gather_rows, matches_of
from distprof.join.members import positions_of
from distprof.run.codes import encode
from distprof.run.run import CollectiveMatches, Rank
from distprof.run.topology import ProcessGroup
from distprof.schema import Int64Array
from distprof.units import fold_ranks

__all__ = ["match_collectives"]


def match_collectives(
    ranks: Sequence[Rank],
    groups: Sequence[ProcessGroup],
    nodes: Mapping[str, tuple[int, ...]],
) -> CollectiveMatches:
    """Join the communication rows of all ranks into collectives.

    Two rows are members of one collective if their process groups have the same name and members,
    and the same sequence number; kind and (where members must agree) bytes are checked. Without
    sequence numbers the order of operations decides. The bytes of an instance are the largest of
    its members'.

    Args:
        ranks: Ranks of the run, ascending.
        groups: Groups of the run's topology.
        nodes: Node name to its ranks, which share a clock.
    """
    if len(ranks) < 2:
        return CollectiveMatches.none()
    rows = gather_rows(ranks, groups)
    present = _present_members(rows, ranks, groups)
    found, clocks = Found(), ClockLinks(ranks, nodes)
    message = np.isin(rows.kind, MESSAGES)
    shared = present[rows.group] >= 2 if len(rows.group) else np.zeros(0, np.bool_)
    collective = np.flatnonzero(shared & ~message)
    numbered = all_ranks_number(rows, collective) & (rows.seq[collective] >= 0)
    on_cpu = all(rank.device.name == "cpu" for rank in ranks)
    rest = match_by_sequence(
        rows, collective[numbered], groups, present, clocks, found, are_sure=on_cpu
    )
    ordered = np.sort(np.concatenate((collective[~numbered], rest)))
    match_by_order(rows, ordered, clocks, groups, present, found)
    match_messages(rows, np.flatnonzero(shared & message), clocks, found)
    found.notes.extend(_group_notes(ranks))
    return matches_of(rows, groups, present, found)


def _present_members(
    rows: Rows, ranks: Sequence[Rank], groups: Sequence[ProcessGroup]
) -> Int64Array:
    """How many ranks of the run are in each group; where its members are unknown, use it."""
    numbers = {rank.rank for rank in ranks}
    users = np.zeros(len(groups), np.int64)
    if not all(group.ranks for group in groups):
        pairs, _ = encode(rows.group * np.int64(len(ranks)) + positions_of(ranks, rows.rank))
        users = np.bincount(pairs // len(ranks), minlength=len(groups))
    return np.array(
        [
            len(numbers.intersection(group.ranks)) if group.ranks else _users(group, int(count))
            for group, count in zip(groups, users, strict=True)
        ],
        dtype=np.int64,
    )


def _users(group: ProcessGroup, count: int) -> int:
    """Users of a group with unknown members; 0 where they must be several groups of one name."""
    return 0 if group.size is not None and count > group.size else count


def _group_notes(ranks: Sequence[Rank]) -> list[str]:
    """Say that collectives without a group were taken for collectives of all ranks."""
    unknown = [rank.rank for rank in ranks if rank.collectives.coded("group").equals("").any()]
    if not unknown:
        return []
    return [
        f"The traces of ranks {fold_ranks(unknown)} name no process group for some collectives: "
        "these are taken for collectives of all ranks."
    ]
