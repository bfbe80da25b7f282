"""Which communication rows of different ranks are one collective.

Rows with sequence numbers are joined by them; rows without by order (:mod:`.subsequence`); sends
with receives by order within a pair of ranks. Every step is a sort over the rows of all ranks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from distprof.ingest.rows import Rows, gather_rows
from distprof.ingest.subsequence import Operations, pair
from distprof.run.run import CollectiveMatches, Rank
from distprof.run.topology import ProcessGroup
from distprof.schema import ABSENT, Int64Array
from distprof.terms import CollectiveKind, MatchMethod
from distprof.units import fold_ranks

__all__ = ["match_collectives"]

# Members of these give the same bytes; those of an all-to-all may differ.
_SAME_BYTES = (
    CollectiveKind.ALL_REDUCE,
    CollectiveKind.ALL_GATHER,
    CollectiveKind.REDUCE_SCATTER,
    CollectiveKind.BROADCAST,
    CollectiveKind.REDUCE,
)
_TIMED = [kind for kind in CollectiveKind if kind.is_symmetric]
_MESSAGES = (CollectiveKind.SEND, CollectiveKind.RECV)
# Grouped messages are a collective where all members have as many of them: an all-to-all.
_EVEN_COUNT_RATIO = 0.75
_MIN_TO_CONTRADICT = 4  # shared numbers: fewer that disagree are single faults


def match_collectives(ranks: Sequence[Rank], groups: Sequence[ProcessGroup]) -> CollectiveMatches:
    """Join the communication rows of all ranks into collectives.

    Two rows are members of one collective if their process groups have the same name and members,
    and the same sequence number; kind and (where members must agree) bytes are checked. Without
    sequence numbers the order of operations decides. The bytes of an instance are the largest of
    its members'.

    Args:
        ranks: Ranks of the run, ascending.
        groups: Groups of the run's topology.
    """
    if len(ranks) < 2:
        return CollectiveMatches.none()
    rows = gather_rows(ranks, groups)
    present = _present_members(rows, ranks, groups)
    found = _Found()
    message = np.isin(rows.kind, _MESSAGES)
    shared = present[rows.group] >= 2 if len(rows.group) else np.zeros(0, np.bool_)
    collective = np.flatnonzero(shared & ~message)
    numbered = _all_ranks_number(rows, collective) & (rows.seq[collective] >= 0)
    rest = _match_by_sequence(rows, collective[numbered], groups, present, found)
    ordered = np.sort(np.concatenate((collective[~numbered], rest)))
    _match_by_order(rows, ordered, ranks, groups, present, found)
    _match_messages(rows, np.flatnonzero(shared & message), ranks, found)
    found.notes.extend(_group_notes(ranks))
    return _assemble(rows, groups, present, found)


class _Found:
    """Instances found so far: members as positions in the rows, instance after instance."""

    def __init__(self) -> None:
        self.members: list[NDArray[np.int64]] = []
        self.sizes: list[NDArray[np.int64]] = []
        self.methods: list[NDArray[np.int8]] = []
        self.num_candidates = 0
        self.notes: list[str] = []

    def add(self, members: Int64Array, sizes: Int64Array, method: MatchMethod) -> None:
        """Add instances: their members one after another, and how many each has."""
        self.members.append(members)
        self.sizes.append(sizes)
        self.methods.append(np.full(len(sizes), method, np.int8))


def _present_members(
    rows: Rows, ranks: Sequence[Rank], groups: Sequence[ProcessGroup]
) -> Int64Array:
    """How many ranks of the run are in each group; where its members are unknown, use it."""
    numbers = {rank.rank for rank in ranks}
    used = np.unique(rows.group.astype(np.int64) * (1 << 32) + rows.rank) >> 32
    users = np.bincount(used, minlength=len(groups))
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


# --- by sequence number ---------------------------------------------------------------------------


def _all_ranks_number(rows: Rows, index: Int64Array) -> NDArray[np.bool_]:
    """Whether, in the row's group, each rank that has rows has rows with numbers."""
    pair_key = rows.group[index].astype(np.int64) * (1 << 32) + rows.rank[index]
    pairs, inverse = np.unique(pair_key, return_inverse=True)
    numbers = np.zeros(len(pairs), np.bool_)
    numbers[inverse[rows.seq[index] >= 0]] = True
    without = np.unique(pairs[~numbers] >> 32)
    return ~np.isin(rows.group[index], without)


def _match_by_sequence(
    rows: Rows,
    index: Int64Array,
    groups: Sequence[ProcessGroup],
    present: Int64Array,
    found: _Found,
) -> Int64Array:
    """Join rows by their numbers.

    Returns:
        The rows of groups whose numbers contradict each other so often that they mean nothing.
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
            f"Sequence numbers of group {_name(groups[number])} are not the same on all ranks: "
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
    found.add(order[np.repeat(keep, sizes)], sizes[keep], MatchMethod.SEQUENCE)
    by_order = useless[rows.group[index]]
    found.num_candidates += _num_in_common_window(rows, index[~by_order])
    return index[by_order]


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
    same = _same_as_before(group, seq)
    again = same & _same_as_before(rank)
    if again.any():  # operations coalesced under one number: the first with the first, and so on
        occurrence = _position_in_run(again)
        by_occurrence = np.lexsort((rank, occurrence, seq, group))
        order = order[by_occurrence]
        same = _same_as_before(group[by_occurrence], seq[by_occurrence], occurrence[by_occurrence])
    return order, np.flatnonzero(~same)


def _same_as_before(*columns: NDArray[np.int64] | NDArray[np.int32]) -> NDArray[np.bool_]:
    """Whether each entry equals the one before it in every column."""
    same = np.ones(len(columns[0]), np.bool_)
    same[:1] = False
    for column in columns:
        same[1:] &= column[1:] == column[:-1]
    return same


def _position_in_run(same_as_before: NDArray[np.bool_]) -> Int64Array:
    """0, 1, 2, … within each run of entries that continue the one before."""
    index = np.arange(len(same_as_before), dtype=np.int64)
    begin = np.maximum.accumulate(np.where(same_as_before, 0, index))
    position: Int64Array = index - begin
    return position


def _members_agree(rows: Rows, order: Int64Array, first: Int64Array) -> NDArray[np.bool_]:
    """Whether the members of each run agree in kind and bytes, as far as both are known."""
    kind = rows.kind[order].astype(np.int64)
    agree = _one_value(kind, kind != CollectiveKind.UNKNOWN, first)
    size = rows.bytes[order]
    agree &= _one_value(size, (size >= 0) & np.isin(kind, _SAME_BYTES), first)
    return agree


def _one_value(
    values: Int64Array, known: NDArray[np.bool_], first: Int64Array
) -> NDArray[np.bool_]:
    """Whether the known values of each run are all the same."""
    limits = np.iinfo(np.int64)
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
    pair_key = rows.group[index].astype(np.int64) * (1 << 32) + rows.rank[index]
    pairs, inverse = np.unique(pair_key, return_inverse=True)
    seq = rows.seq[index]
    low = np.full(len(pairs), np.iinfo(np.int64).max)
    high = np.full(len(pairs), np.iinfo(np.int64).min)
    np.minimum.at(low, inverse, seq)
    np.maximum.at(high, inverse, seq)
    groups, group_of_pair = np.unique(pairs >> 32, return_inverse=True)
    start = np.full(len(groups), np.iinfo(np.int64).min)
    stop = np.full(len(groups), np.iinfo(np.int64).max)
    np.maximum.at(start, group_of_pair, low)
    np.minimum.at(stop, group_of_pair, high)
    disjoint = start > stop
    group = group_of_pair[inverse]
    return int((((seq >= start[group]) & (seq <= stop[group])) | disjoint[group]).sum())


# --- by order -------------------------------------------------------------------------------------


def _match_by_order(
    rows: Rows,
    index: Int64Array,
    ranks: Sequence[Rank],
    groups: Sequence[ProcessGroup],
    present: Int64Array,
    found: _Found,
) -> None:
    has_epoch = {rank.rank: rank.has_epoch for rank in ranks}
    for group in np.unique(rows.group[index]).tolist():
        of_group = index[rows.group[index] == group]
        by_rank = _split_by(rows.rank[of_group], of_group)
        by_rank, uneven = _without_uneven_messages(rows, by_rank, present[group])
        if uneven:
            found.notes.append(
                f"Grouped sends and receives of group {_name(groups[group])} are not matched: "
                "the trace does not tell who exchanged with whom."
            )
        if len(by_rank) >= 2:
            _match_group(rows, by_rank, has_epoch, _name(groups[group]), found)


def _name(group: ProcessGroup) -> str:
    return group.description or group.name or "of all ranks"


def _split_by(values: NDArray[np.int32], index: Int64Array) -> dict[int, Int64Array]:
    """Parts of ``index`` by value; ``values`` come in runs, ascending."""
    distinct, first = np.unique(values, return_index=True)
    return dict(zip(distinct.tolist(), np.split(index, first[1:]), strict=True))


def _without_uneven_messages(
    rows: Rows, by_rank: dict[int, Int64Array], present: int
) -> tuple[dict[int, Int64Array], bool]:
    """Leave out grouped messages unless all members have about as many."""
    counts = [int((rows.kind[i] == CollectiveKind.SEND_RECV).sum()) for i in by_rank.values()]
    if not any(counts):
        return by_rank, False
    if len(counts) == present and min(counts) >= _EVEN_COUNT_RATIO * max(counts):
        return by_rank, False
    kept = {r: i[rows.kind[i] != CollectiveKind.SEND_RECV] for r, i in by_rank.items()}
    return {r: i for r, i in kept.items() if len(i)}, True


def _match_group(
    rows: Rows,
    by_rank: dict[int, Int64Array],
    has_epoch: dict[int, bool],
    name: str,
    found: _Found,
) -> None:
    """Pair every rank with the one that has the most operations; join what meets in it."""
    reference = max(by_rank, key=lambda rank: (len(by_rank[rank]), -rank))
    own = by_rank[reference]
    everything = np.concatenate(list(by_rank.values()))
    tokens = dict(
        zip(by_rank, np.split(_tokens(rows, everything), _ends(by_rank.values())), strict=True)
    )
    sequences = {
        rank: Operations(
            token=tokens[rank],
            end_ns=rows.end_ns[index],
            step=rows.step[index],
            is_timed=np.isin(rows.kind[index], _TIMED),
            has_epoch=has_epoch[rank],
        )
        for rank, index in by_rank.items()
    }
    slots, members = [np.arange(len(own))], [own]
    low, high, lost = 0, len(own), []
    for rank, index in by_rank.items():
        if rank == reference:
            continue
        pairing = pair(sequences[reference], sequences[rank])
        if pairing is None:
            lost.append(rank)
            continue
        slots.append(pairing.first)
        members.append(index[pairing.second])
        low, high = max(low, pairing.low), min(high, pairing.high)
    if lost:
        found.notes.append(
            f"Group {name}: the operations of ranks {fold_ranks(lost)} fit those of rank "
            f"{reference} at no shift."
        )
    found.num_candidates += (high - low) * len(by_rank) if high > low else len(everything)
    _join(np.concatenate(slots), np.concatenate(members), len(own), found)


def _ends(parts: Iterable[Int64Array]) -> Int64Array:
    """Where each part but the last ends once they are put one after another."""
    ends: Int64Array = np.cumsum([len(part) for part in parts])[:-1]
    return ends


def _join(slot: Int64Array, member: Int64Array, num_slots: int, found: _Found) -> None:
    """Members with one slot are one instance; rows are numbered rank by rank, so sort by them."""
    order = np.lexsort((member, slot))
    slot, member = slot[order], member[order]
    sizes = np.bincount(slot, minlength=num_slots)
    found.add(member[sizes[slot] >= 2], sizes[sizes >= 2], MatchMethod.SUBSEQUENCE)


def _tokens(rows: Rows, index: Int64Array) -> Int64Array:
    """Numbers that are equal for operations of equal kind, element type and (if it tells) bytes."""
    kind = rows.kind[index].astype(np.int64)
    size = np.where(np.isin(kind, (*_SAME_BYTES, *_MESSAGES)), rows.bytes[index], ABSENT)
    sizes, size_code = np.unique(size, return_inverse=True)
    dtype = rows.dtype[index].astype(np.int64)
    token: Int64Array = (dtype * 64 + kind) * len(sizes) + size_code
    return token


# --- messages -------------------------------------------------------------------------------------


def _match_messages(rows: Rows, index: Int64Array, ranks: Sequence[Rank], found: _Found) -> None:
    known = rows.peer[index] >= 0
    if not known.all():
        found.notes.append(
            f"{int((~known).sum())} sends and receives do not name their peer: not matched."
        )
    has_epoch = {rank.rank: rank.has_epoch for rank in ranks}
    index = index[known]
    sends = rows.kind[index] == CollectiveKind.SEND
    sent = _by_channel(index[sends], rows.rank, rows.peer)
    received = _by_channel(index[~sends], rows.peer, rows.rank)
    for channel in sorted(sent.keys() | received.keys()):
        if not has_epoch.keys() >= set(channel):
            continue  # one end is not part of the run
        empty = np.empty(0, np.int64)
        ends = (sent.get(channel, empty), received.get(channel, empty))
        _match_channel(rows, ends, tuple(has_epoch[rank] for rank in channel), found)


def _by_channel(
    index: Int64Array, source: NDArray[np.int32], destination: NDArray[np.int32]
) -> dict[tuple[int, int], Int64Array]:
    """Rows by (sender, receiver), each in order of start."""
    order = index[np.lexsort((destination[index], source[index]))]
    new = ~_same_as_before(source[order], destination[order])
    first = np.flatnonzero(new)
    parts = np.split(order, first[1:]) if len(order) else []
    channels = zip(source[order[first]].tolist(), destination[order[first]].tolist(), strict=True)
    return dict(zip(channels, parts, strict=True))


def _match_channel(
    rows: Rows,
    ends: tuple[Int64Array, Int64Array],
    has_epoch: tuple[bool, ...],
    found: _Found,
) -> None:
    """Pair the sends of one rank with the receives of another."""
    sides = [
        Operations(
            token=rows.bytes[index],
            end_ns=rows.end_ns[index],
            step=rows.step[index],
            is_timed=np.zeros(len(index), np.bool_),  # a small message is sent before it is read
            has_epoch=epoch,
        )
        for index, epoch in zip(ends, has_epoch, strict=True)
    ]
    pairing = pair(*sides)
    if pairing is None:
        found.num_candidates += len(ends[0]) + len(ends[1])
        return
    found.num_candidates += 2 * (pairing.high - pairing.low)
    both = np.stack((ends[0][pairing.first], ends[1][pairing.second]), axis=1)
    found.add(both.ravel(), np.full(len(both), 2, np.int64), MatchMethod.SUBSEQUENCE)


# --- what was found -------------------------------------------------------------------------------


def _group_notes(ranks: Sequence[Rank]) -> list[str]:
    """Say that collectives without a group were taken for collectives of all ranks."""
    unknown = [rank.rank for rank in ranks if rank.collectives.coded("group").equals("").any()]
    if not unknown:
        return []
    return [
        f"The traces of ranks {fold_ranks(unknown)} name no process group for some collectives: "
        "these are taken for collectives of all ranks."
    ]


def _assemble(
    rows: Rows, groups: Sequence[ProcessGroup], present: Int64Array, found: _Found
) -> CollectiveMatches:
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
    message = np.isin(kind, _MESSAGES)
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
