"""Match the communication rows of different ranks that are one collective.

If every rank of a process group numbers its operations, rows match by sequence number, unless their
times refute the numbers. All other rows match by order (:mod:`.by_order`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from distprof.join import waits
from distprof.join.by_order import match_by_order, match_messages
from distprof.join.clocks import SEPARATE_NS, ClockLinks
from distprof.join.instances import (
    SAME_BYTES,
    MatchBuilder,
    Rows,
    are_messages,
    gather_rows,
    matches_of,
    name_of,
)
from distprof.join.shifts import CLEAR, TIMED, Expectation, best_shift, operations_of, typical_gap
from distprof.join.waits import index_type, positions_by_code, positions_of, spans
from distprof.run.run import CollectiveMatches, Rank
from distprof.run.tables import encode, numbers_in, order_of_codes, runs_of, same_as_before
from distprof.run.topology import ProcessGroup
from distprof.schema import Bools, Int64Array
from distprof.terms import CollectiveKind, MatchMethod
from distprof.units import fold_ranks, name_ranks

_SAMPLES = 32  # instances checked per group
_OVERRULES = 2 * CLEAR  # sequence numbers are strong evidence, so overruling them takes more


class _Link(msgspec.Struct, frozen=True):
    """Median difference between the ends of two ranks over collectives of equal number."""

    group: int
    first: int
    second: int
    offset_ns: float


def check_numbers(
    rows: Rows, order: Int64Array, first: Int64Array, keep: Int64Array, clocks: ClockLinks
) -> tuple[dict[int, set[int]], dict[int, set[int]]]:
    """Check whether all groups of equally numbered collectives imply the same clock offsets.

    ``order`` has the rows sorted by group and number, ``first`` where each instance begins in it,
    and ``keep`` the positions in ``first`` to check. ``clocks`` gets the offsets found. Returns
    groups in which the times show that the numbers pair wrong operations, and those that only imply
    other offsets than the rest, each with the ranks concerned.
    """
    refuted: dict[int, set[int]] = defaultdict(set)
    odd: dict[int, set[int]] = defaultdict(set)
    for link in _links(rows, order, first, keep):
        a, b = clocks.clock_of[link.first], clocks.clock_of[link.second]
        expected = clocks.expected(a, b)
        off = abs(link.offset_ns - expected.offset_ns)
        if not np.isinf(expected.usual_error_ns) and off > SEPARATE_NS:
            if _is_refuted(rows, link, off, clocks):
                refuted[link.group] |= {link.first, link.second}
                continue
            if a == b:
                clocks.separate(link.second)
                b = clocks.clock_of[link.second]
            elif clocks.knows(a, b) and off > 10 * expected.usual_error_ns:
                odd[link.group] |= {link.first, link.second}
        clocks.learn(a, b, link.offset_ns)
    return refuted, odd


def _links(rows: Rows, order: Int64Array, first: Int64Array, keep: Int64Array) -> Iterator[_Link]:
    """Links between each group's ranks and the first rank of an instance, over a sample."""
    timed = keep[np.isin(rows.kind[order[first[keep]]], TIMED)]
    chosen = _sample_per_group(rows.group[order[first[timed]]], timed)
    begin = first[chosen]
    sizes = np.append(first, len(order))[chosen + 1] - begin
    inside = np.repeat(np.cumsum(sizes) - sizes, sizes)
    member = order[np.arange(len(inside)) - inside + np.repeat(begin, sizes)]
    leader = np.repeat(order[begin], sizes)
    difference = rows.end_ns[member] - rows.end_ns[leader]
    group, one, other = rows.group[member], rows.rank[leader], rows.rank[member]
    by_link = np.lexsort((difference, other, one, group))
    by_link = by_link[one[by_link] != other[by_link]]
    keys = (group[by_link], one[by_link], other[by_link])
    starts, counts = runs_of(*keys)
    medians = difference[by_link[starts + counts // 2]].astype(np.float64)
    links = zip(*(key[starts].tolist() for key in keys), medians.tolist(), strict=True)
    yield from (_Link(*link) for link in links)


def _sample_per_group(group: NDArray[np.int32], instances: Int64Array) -> Int64Array:
    """A sample of instances per group, evenly spread; ``group`` comes in runs."""
    if not len(group):
        return instances
    starts, counts = runs_of(group)
    parts = [
        start + np.unique(np.linspace(0, count - 1, min(count, _SAMPLES)).astype(np.int64))
        for start, count in zip(starts.tolist(), counts.tolist(), strict=True)
    ]
    sample: Int64Array = instances[np.concatenate(parts)]
    return sample


def _is_refuted(rows: Rows, link: _Link, off_ns: float, clocks: ClockLinks) -> bool:
    """Whether the two ranks' operations clearly fit at another shift than the numbers imply."""
    parts = [_rows_of(rows, link.group, rank) for rank in (link.first, link.second)]
    a, b = operations_of(rows, parts)
    if off_ns < typical_gap(a.end_ns) / 2:
        return False  # no other shift fits the times better
    _, in_a, in_b = np.intersect1d(rows.seq[parts[0]], rows.seq[parts[1]], return_indices=True)
    clock, other = clocks.clock_of[link.first], clocks.clock_of[link.second]
    expected = clocks.expected(clock, other) if clock == other else Expectation()
    choice = best_shift(a, b, expected)
    return (
        choice is not None
        and choice.log_odds >= _OVERRULES
        and choice.shift not in set((in_b - in_a).tolist())
    )


def _rows_of(rows: Rows, group: int, rank: int) -> Int64Array:
    """Numbered collectives of a rank in a group; ``rows`` is sorted by rank."""
    low, high = np.searchsorted(rows.rank, np.array([rank, rank + 1], rows.rank.dtype))
    index = np.arange(low, high)
    numbered = (rows.group[index] == group) & (rows.seq[index] >= 0)
    own: Int64Array = index[numbered & ~are_messages(rows.kind[index], rows.peer[index])]
    return own


# By sequence number -------------------------------------------------------------------------------

_FEW_GAPS = 8  # range of numbers per used number, up to which the linear sort pays off
_MIN_TO_CONTRADICT = 4  # with fewer shared numbers, disagreements count as single faults


def numbered_rows(rows: Rows, chosen: Bools) -> Bools:
    """Mask of the chosen rows with a number, in groups in which every rank has numbered rows."""
    has_number = chosen & (rows.seq >= 0)
    if np.array_equal(has_number, chosen):
        return has_number
    index = np.flatnonzero(chosen)
    group_of_pair, pair = _pairs(rows, index)
    numbers = np.zeros(len(group_of_pair), np.bool_)
    numbers[pair[has_number[index]]] = True
    all_numbered = np.ones(int(rows.group.max()) + 1, np.bool_)
    all_numbered[group_of_pair[~numbers]] = False
    has_number &= all_numbered[rows.group]
    return has_number


def _pairs(rows: Rows, index: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Pairs of a group and a rank: the group of each pair, and the pair of each row."""
    ranks, rank = encode(rows.rank[index])
    pairs, pair = encode(rows.group[index] * np.int64(len(ranks)) + rank)
    return pairs // max(1, len(ranks)), pair


def match_by_sequence(
    rows: Rows,
    numbered: Bools,
    groups: Sequence[ProcessGroup],
    present: Int64Array,
    clocks: ClockLinks,
    builder: MatchBuilder,
    *,
    are_sure: bool = False,
) -> Int64Array:
    """Match the ``numbered`` rows by their sequence numbers; ``clocks`` gets the offsets found.

    ``are_sure`` skips the check of numbers against times, for gloo, whose members end at different
    times. Returned are the rows of groups whose numbers contradict each other too often, or the
    times.
    """
    notes, rest = _Notes([], []), [np.empty(0, np.int64)]
    for part in _by_groups(rows, numbered):
        index = part.astype(np.int64, copy=False)
        checked_by = None if are_sure else clocks
        unusable = _match_part(rows, index, groups, present, checked_by, builder, notes)
        is_rest = unusable[rows.group[index]]
        rest.append(index[is_rest])
        builder.num_candidates += _num_in_common_window(rows, index[~is_rest])
    builder.notes += notes.unusable
    if notes.num_bad:
        builder.notes.append(
            f"{notes.num_bad} of {notes.num_shared} collectives with equal group and "
            "sequence number differ in kind or bytes between ranks: distprof does not match "
            "them."
        )
    builder.notes += notes.refuted
    return np.concatenate(rest)


class _Notes(msgspec.Struct):
    """Notes on groups, and counts of the sequence numbers that several ranks share."""

    unusable: list[str]
    refuted: list[str]
    num_bad: int = 0
    num_shared: int = 0


def _by_groups(rows: Rows, chosen: Bools) -> list[NDArray[Any]]:
    """The chosen rows in parts of whole groups, by ascending group, about a block of rows each."""
    counts = np.zeros(int(rows.group.max(initial=-1)) + 1, np.int64)
    for span in spans(len(chosen)):
        counts += np.bincount(rows.group[span][chosen[span]], minlength=len(counts))
    if not counts.any():
        return []
    _, part_of_group = encode((np.cumsum(counts) - counts) // waits.BLOCK)
    parts = positions_by_code(rows.group, chosen, part_of_group)
    return [part for part in parts if len(part)]


def _match_part(
    rows: Rows,
    index: Int64Array,
    groups: Sequence[ProcessGroup],
    present: Int64Array,
    clocks: ClockLinks | None,
    builder: MatchBuilder,
    notes: _Notes,
) -> Bools:
    """Match rows of a few groups; returns a mask of the groups with unusable numbers."""
    order, first = _runs_of_sequence(rows, index)
    sizes = np.diff(np.append(first, len(order)))
    group, shared = rows.group[order[first]], sizes >= 2
    bad = ~_members_agree(rows, order, first) & shared
    # most shared numbers of a group denote different operations, as after a restart
    num_bad, num_shared = (np.bincount(group[m], minlength=len(groups)) for m in (bad, shared))
    unusable: Bools = (2 * num_bad > num_shared) & (num_shared >= _MIN_TO_CONTRADICT)
    notes.unusable += [
        f"Sequence numbers of group {name_of(groups[number])} differ between ranks: distprof "
        "matches its collectives by their order."
        for number in np.flatnonzero(unusable).tolist()
    ]
    bad &= ~unusable[group]
    notes.num_bad += int(bad.sum())
    notes.num_shared += int(shared.sum())
    # grouped messages: a member may not count them, so they match only if all members are present
    grouped = rows.kind[order[first]] == CollectiveKind.SEND_RECV
    keep = shared & ~bad & ~unusable[group] & (~grouped | (sizes == present[group]))
    if clocks is not None:
        refuted, odd = check_numbers(rows, order, first, np.flatnonzero(keep), clocks)
        builder.misnumbered.update(*refuted.values(), *odd.values())
        notes.refuted += [
            f"Sequence numbers of group {name_of(groups[number])} pair collectives of "
            f"{name_ranks(ranks)} that do not end together: distprof matches them by their order."
            for number, ranks in refuted.items()
        ]
        notes.refuted += [
            f"Collectives of group {name_of(groups[number])} imply a different offset between "
            f"the clocks of {name_ranks(ranks)} than those of other groups."
            for number, ranks in odd.items()
        ]
        unusable[list(refuted)] = True
    keep &= ~unusable[group]
    members = order if keep.all() else order[np.repeat(keep, sizes)]
    builder.add(
        members.astype(index_type(len(rows.rank)), copy=False), sizes[keep], MatchMethod.SEQUENCE
    )
    return unusable


def _runs_of_sequence(rows: Rows, index: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Rows sorted by group, number, occurrence and rank, and where each instance begins."""
    order = index[_order_of_numbers(rows.group[index], rows.seq[index])]
    # the sort is stable: within a run, rows are still rank by rank and in order of start
    group, seq, rank = rows.group[order], rows.seq[order], rows.rank[order]
    same = same_as_before(group, seq)
    if (same & same_as_before(rank)).any():
        # operations coalesced under one number match by occurrence
        occurrence = numbers_in(group, seq, rank)
        by_occurrence = np.lexsort((rank, occurrence, seq, group))
        order = order[by_occurrence]
        same = same_as_before(group[by_occurrence], seq[by_occurrence], occurrence[by_occurrence])
    return order, np.flatnonzero(~same)


def _order_of_numbers(group: NDArray[np.int32], seq: Int64Array | NDArray[np.int32]) -> Int64Array:
    """Stable order by group and number; takes linear time if the numbers have few gaps."""
    count = int(group.max()) + 1
    low = np.full(count, np.iinfo(np.int64).max)
    high = np.full(count, np.iinfo(np.int64).min)
    np.minimum.at(low, group, seq)
    np.maximum.at(high, group, seq)
    used = high >= low
    span = [b - a + 1 for a, b in zip(low[used].tolist(), high[used].tolist(), strict=True)]
    if sum(span) > _FEW_GAPS * len(seq):
        return np.lexsort((seq, group))
    first = np.zeros(count, np.int64)
    first[used] = np.cumsum(span) - span - low[used]
    return order_of_codes(seq + first[group], sum(span))


def _members_agree(rows: Rows, order: Int64Array, first: Int64Array) -> Bools:
    """Whether the members of each run agree in kind and bytes, as far as these are known."""
    kind, size = rows.kind[order], rows.bytes[order]
    agree = np.ones(len(first), np.bool_)
    if not _is_constant(kind, first):
        agree &= _one_value(kind, kind != CollectiveKind.UNKNOWN, first)
    if not _is_constant(size, first):
        agree &= _one_value(size, (size >= 0) & np.isin(kind, SAME_BYTES), first)
    return agree


def _is_constant(values: NDArray[Any], first: Int64Array) -> bool:
    """Whether the values of each run are all the same."""
    changes = values[1:] != values[:-1]
    changes[first[1:] - 1] = False
    return not changes.any()


def _one_value(values: NDArray[Any], known: Bools, first: Int64Array) -> Bools:
    """Whether the known values of each run are all the same."""
    limits = np.iinfo(values.dtype)
    low = np.minimum.reduceat(np.where(known, values, limits.max), first)
    high = np.maximum.reduceat(np.where(known, values, limits.min), first)
    return low >= high


def _num_in_common_window(rows: Rows, index: Int64Array) -> int:
    """Rows whose sequence number is in the window of every rank of the group; all if disjoint.

    A number outside another rank's window cannot have a partner there.
    """
    which, pair = _pairs(rows, index)
    group, seq = rows.group[index], rows.seq[index].astype(np.int64, copy=False)
    limits, count = np.iinfo(np.int64), int(group.max(initial=-1)) + 1
    low, high = np.full(len(which), limits.max), np.full(len(which), limits.min)
    np.minimum.at(low, pair, seq)
    np.maximum.at(high, pair, seq)
    start, stop = np.full(count, limits.min), np.full(count, limits.max)
    np.maximum.at(start, which, low)
    np.minimum.at(stop, which, high)
    disjoint = start > stop
    start[disjoint], stop[disjoint] = limits.min, limits.max
    return int(np.count_nonzero((seq >= start[group]) & (seq <= stop[group])))


# All ways of matching -----------------------------------------------------------------------------


def match_collectives(
    ranks: Sequence[Rank], groups: Sequence[ProcessGroup], nodes: Mapping[str, tuple[int, ...]]
) -> CollectiveMatches:
    """Match the communication rows of all ranks, which ascend, to collectives.

    Two rows are members of one collective if their process groups have the same name and members
    and they have the same sequence number. Their kind must agree, and their bytes too if all
    members of that kind report the same bytes. Without sequence numbers, the order of operations
    decides. The bytes of an instance are the largest of its members'.
    """
    if len(ranks) < 2:
        return CollectiveMatches.none()
    rows = gather_rows(ranks, groups)
    present = _present_members(rows, ranks, groups)
    builder, clocks = MatchBuilder(), ClockLinks(ranks, nodes)
    message = are_messages(rows.kind, rows.peer)
    # Rows without a group on ranks whose other rows mostly name one: their calls were not recorded,
    # for example at the edges of a capture. Their group is unknown: assigned to the group of all
    # ranks, they would pair wrong operations.
    strays = np.concatenate([_nameless(rank) & (not _names_no_group(rank)) for rank in ranks])
    shared = (present >= 2)[rows.group] & ~strays
    collective = shared & ~message
    numbered = numbered_rows(rows, collective)
    on_cpu = all(rank.device.name == "cpu" for rank in ranks)
    rest = match_by_sequence(rows, numbered, groups, present, clocks, builder, are_sure=on_cpu)
    others = np.flatnonzero(collective & ~numbered)
    ordered = np.sort(np.concatenate((others, rest)))
    match_by_order(rows, ordered, clocks, groups, present, builder)
    match_messages(rows, np.flatnonzero(shared & message), clocks, builder)
    builder.notes.extend(_group_notes(ranks))
    return matches_of(rows, groups, present, builder)


def _present_members(
    rows: Rows, ranks: Sequence[Rank], groups: Sequence[ProcessGroup]
) -> Int64Array:
    """Number of ranks of the run in each group, or of those that use it if members are unknown.

    Users that exceed the group's size count as none, because several groups share the name.
    """
    numbers = {rank.rank for rank in ranks}
    users = np.zeros(len(groups), np.int64)
    if not all(group.ranks for group in groups):
        pairs, _ = encode(rows.group * np.int64(len(ranks)) + positions_of(ranks, rows.rank))
        users = np.bincount(pairs // len(ranks), minlength=len(groups))
    for number, group in enumerate(groups):
        if group.ranks:
            users[number] = len(numbers.intersection(group.ranks))
        elif group.size is not None and users[number] > group.size:
            users[number] = 0
    return users


def _nameless(rank: Rank) -> Bools:
    columns = [rank.collectives.coded(name) for name in ("group", "group_ranks")]
    if not all("" in column.values for column in columns):
        return np.zeros(len(rank.collectives), np.bool_)
    return columns[0].equals("") & columns[1].equals("")


def _names_no_group(rank: Rank) -> bool:
    """Whether at least half of a rank's collectives name no group: the job may have just one."""
    nameless = _nameless(rank)
    return bool(2 * nameless.sum() >= len(nameless))


def _group_notes(ranks: Sequence[Rank]) -> list[str]:
    """A note that collectives without a group count as collectives of all ranks."""
    unknown = [
        rank.rank
        for rank in ranks
        if _names_no_group(rank) and rank.collectives.coded("group").equals("").any()
    ]
    if not unknown:
        return []
    return [
        f"The traces of ranks {fold_ranks(unknown)} name no process group for some collectives: "
        "distprof assumes that all ranks take part in them."
    ]
