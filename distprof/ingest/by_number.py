"""Joining rows by process group and sequence number."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distprof.ingest.clock_links import ClockLinks
from distprof.ingest.found import SAME_BYTES, Found, name_of, same_as_before
from distprof.ingest.numbers_and_times import check_numbers
from distprof.ingest.rows import Rows
from distprof.run.codes import distinct, encode
from distprof.run.topology import ProcessGroup
from distprof.schema import Int64Array
from distprof.terms import CollectiveKind, MatchMethod
from distprof.units import name_ranks

__all__ = ["all_ranks_number", "match_by_sequence"]

_MIN_TO_CONTRADICT = 4  # shared numbers: fewer that disagree are single faults


def all_ranks_number(rows: Rows, index: Int64Array) -> NDArray[np.bool_]:
    """Whether, in the row's group, each rank that has rows has rows with numbers."""
    has_number = rows.seq[index] >= 0
    if has_number.all():
        return has_number
    group_of_pair, pair = _pairs(rows, index)
    numbers = np.zeros(len(group_of_pair), np.bool_)
    numbers[pair[has_number]] = True
    without = distinct(group_of_pair[~numbers])
    return ~np.isin(rows.group[index], without)


def _pairs(rows: Rows, index: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Pairs of group and rank: the group of each pair, and the pair of each row."""
    ranks, rank = encode(rows.rank[index])
    pairs, pair = encode(rows.group[index] * np.int64(len(ranks)) + rank)
    return pairs // max(1, len(ranks)), pair


def match_by_sequence(
    rows: Rows,
    index: Int64Array,
    groups: Sequence[ProcessGroup],
    present: Int64Array,
    clocks: ClockLinks,
    found: Found,
    *,
    are_sure: bool = False,
) -> Int64Array:
    """Join rows by their numbers.

    Args:
        rows: The rows of all ranks.
        index: Those to join, ascending; all have numbers.
        groups: Groups of the run's topology.
        present: How many ranks of the run are in each group.
        clocks: Takes what ends of equal numbers tell.
        found: Takes what is found.
        are_sure: Numbers are not held against times. So it is with gloo, whose numbers are the
            Flight Recorder's own and whose members end a collective at different times.

    Returns:
        The rows of groups whose numbers mean nothing: they contradict each other too often, or the
        times.
    """
    if len(index) == 0:
        return index
    order, first = _runs_of_sequence(rows, index)
    sizes = np.diff(np.append(first, len(order)))
    group = rows.group[order[first]]
    bad = ~_members_agree(rows, order, first) & (sizes >= 2)
    useless = _contradicting_groups(group, sizes >= 2, bad, len(groups))
    for number in np.flatnonzero(useless).tolist():
        found.notes.append(
            f"Sequence numbers of group {name_of(groups[number])} are not the same on all ranks: "
            "its collectives are matched by their order."
        )
    bad &= ~useless[group]
    if bad.any():
        found.notes.append(
            f"{int(bad.sum())} of {int((sizes >= 2).sum())} collectives with equal group and "
            "sequence number differ in kind or bytes between ranks: not matched."
        )
    # grouped messages carry numbers that not every member counts: all members or none
    grouped = rows.kind[order[first]] == CollectiveKind.SEND_RECV
    keep = (sizes >= 2) & ~bad & ~useless[group] & (~grouped | (sizes == present[group]))
    if not are_sure:
        refuted = _refuted_groups(rows, order, first, keep, groups, clocks, found)
        useless[refuted] = True
    keep &= ~useless[group]
    found.add(order[np.repeat(keep, sizes)], sizes[keep], MatchMethod.SEQUENCE)
    by_order = useless[rows.group[index]]
    found.num_candidates += _num_in_common_window(rows, index[~by_order])
    return index[by_order]


def _refuted_groups(
    rows: Rows,
    order: Int64Array,
    first: Int64Array,
    keep: NDArray[np.bool_],
    groups: Sequence[ProcessGroup],
    clocks: ClockLinks,
    found: Found,
) -> list[int]:
    """Groups whose numbers times refute; says so, and which others are odd."""
    doubts = check_numbers(rows, order, first, np.flatnonzero(keep), clocks)
    for number, ranks in doubts.refuted.items():
        found.misnumbered.update(ranks)
        found.notes.append(
            f"Sequence numbers of group {name_of(groups[number])} pair collectives of "
            f"{name_ranks(ranks)} that do not end together: they are matched by their order."
        )
    for number, ranks in doubts.odd.items():
        found.misnumbered.update(ranks)
        found.notes.append(
            f"Collectives of group {name_of(groups[number])} tell another offset between the "
            f"clocks of {name_ranks(ranks)} than those of other groups."
        )
    return list(doubts.refuted)


def _contradicting_groups(
    group: NDArray[np.int32], shared: NDArray[np.bool_], bad: NDArray[np.bool_], count: int
) -> NDArray[np.bool_]:
    """Groups of which most shared numbers are of different operations, as after a restart."""
    num_shared = np.bincount(group[shared], minlength=count)
    num_bad = np.bincount(group[bad], minlength=count)
    most: NDArray[np.bool_] = (2 * num_bad > num_shared) & (num_shared >= _MIN_TO_CONTRADICT)
    return most


def _runs_of_sequence(rows: Rows, index: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Rows sorted by group, number, occurrence and rank; and where each such run begins."""
    order = index[np.lexsort((rows.seq[index], rows.group[index]))]
    # the sort is stable: within a run, rows are still rank by rank and in order of start
    group, seq, rank = rows.group[order], rows.seq[order], rows.rank[order]
    same = same_as_before(group, seq)
    again = same & same_as_before(rank)
    if again.any():  # operations coalesced under one number: the first with the first, and so on
        occurrence = _position_in_run(again)
        by_occurrence = np.lexsort((rank, occurrence, seq, group))
        order = order[by_occurrence]
        same = same_as_before(group[by_occurrence], seq[by_occurrence], occurrence[by_occurrence])
    return order, np.flatnonzero(~same)


def _position_in_run(same_as_before: NDArray[np.bool_]) -> Int64Array:
    """0, 1, 2, … within each run of entries that continue the one before."""
    index = np.arange(len(same_as_before), dtype=np.int64)
    begin = np.maximum.accumulate(np.where(same_as_before, 0, index))
    position: Int64Array = index - begin
    return position


def _members_agree(rows: Rows, order: Int64Array, first: Int64Array) -> NDArray[np.bool_]:
    """Whether the members of each run agree in kind and bytes, as far as both are known."""
    kind = rows.kind[order]
    agree = _one_value(kind, kind != CollectiveKind.UNKNOWN, first)
    size = rows.bytes[order]
    agree &= _one_value(size, (size >= 0) & np.isin(kind, SAME_BYTES), first)
    return agree


def _one_value(
    values: NDArray[Any], known: NDArray[np.bool_], first: Int64Array
) -> NDArray[np.bool_]:
    """Whether the known values of each run are all the same."""
    limits = np.iinfo(values.dtype)
    low = np.minimum.reduceat(np.where(known, values, limits.max), first)
    high = np.maximum.reduceat(np.where(known, values, limits.min), first)
    same: NDArray[np.bool_] = low >= high
    return same


def _num_in_common_window(rows: Rows, index: Int64Array) -> int:
    """Rows whose number every rank of the group with numbers has in its window.

    A number outside another rank's window cannot have a partner there. Where windows share
    nothing, all rows count: none was matched that should have been.
    """
    if len(index) == 0:
        return 0
    which, pair = _pairs(rows, index)
    seq = rows.seq[index]
    low = np.full(len(which), np.iinfo(np.int64).max)
    high = np.full(len(which), np.iinfo(np.int64).min)
    np.minimum.at(low, pair, seq)
    np.maximum.at(high, pair, seq)
    groups, group_of_pair = encode(which)
    start = np.full(len(groups), np.iinfo(np.int64).min)
    stop = np.full(len(groups), np.iinfo(np.int64).max)
    np.maximum.at(start, group_of_pair, low)
    np.minimum.at(stop, group_of_pair, high)
    disjoint = start > stop
    group = group_of_pair[pair]
    return int((((seq >= start[group]) & (seq <= stop[group])) | disjoint[group]).sum())
