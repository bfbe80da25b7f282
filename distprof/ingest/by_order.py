"""Joining rows by their order within a process group, sends and receives within a pair of ranks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from distprof.ingest.found import MESSAGES, SAME_BYTES, Found, name_of, same_as_before
from distprof.ingest.rows import Rows
from distprof.ingest.subsequence import Operations, pair
from distprof.run.run import Rank
from distprof.run.topology import ProcessGroup
from distprof.schema import ABSENT, Int64Array
from distprof.terms import CollectiveKind, MatchMethod
from distprof.units import fold_ranks

__all__ = ["match_by_order", "match_messages"]

_TIMED = [kind for kind in CollectiveKind if kind.is_symmetric]
# Grouped messages are a collective where all members have as many of them: an all-to-all.
_EVEN_COUNT_RATIO = 0.75


def match_by_order(
    rows: Rows,
    index: Int64Array,
    ranks: Sequence[Rank],
    groups: Sequence[ProcessGroup],
    present: Int64Array,
    found: Found,
) -> None:
    """Join rows by their order within each process group.

    Args:
        rows: The rows of all ranks.
        index: Those to join, ascending.
        ranks: Ranks of the run, ascending.
        groups: Groups of the run's topology.
        present: How many ranks of the run are in each group.
        found: Takes what is found.
    """
    has_epoch = {rank.rank: rank.has_epoch for rank in ranks}
    for group in np.unique(rows.group[index]).tolist():
        of_group = index[rows.group[index] == group]
        by_rank = _split_by(rows.rank[of_group], of_group)
        by_rank, uneven = _without_uneven_messages(rows, by_rank, present[group])
        if uneven:
            found.notes.append(
                f"Grouped sends and receives of group {name_of(groups[group])} are not matched: "
                "the trace does not tell who exchanged with whom."
            )
        if len(by_rank) >= 2:
            _match_group(rows, by_rank, has_epoch, name_of(groups[group]), found)


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
    found: Found,
) -> None:
    """Pair every rank with the one that has the most operations; join what meets in it."""
    reference = max(by_rank, key=lambda rank: (len(by_rank[rank]), -rank))
    own = by_rank[reference]
    sequences = _sequences(rows, by_rank, has_epoch)
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
    apart = high <= low
    num_rows = sum(len(index) for index in by_rank.values())
    found.num_candidates += num_rows if apart else (high - low) * len(by_rank)
    _join(np.concatenate(slots), np.concatenate(members), len(own), found)


def _sequences(
    rows: Rows, by_rank: dict[int, Int64Array], has_epoch: dict[int, bool]
) -> dict[int, Operations]:
    tokens = _tokens(rows, np.concatenate(list(by_rank.values())))
    parts = np.split(tokens, _ends(by_rank.values()))
    return {
        rank: Operations(
            token=part,
            end_ns=rows.end_ns[index],
            step=rows.step[index],
            is_timed=np.isin(rows.kind[index], _TIMED),
            has_epoch=has_epoch[rank],
        )
        for (rank, index), part in zip(by_rank.items(), parts, strict=True)
    }


def _ends(parts: Iterable[Int64Array]) -> Int64Array:
    """Where each part but the last ends once they are put one after another."""
    ends: Int64Array = np.cumsum([len(part) for part in parts])[:-1]
    return ends


def _join(slot: Int64Array, member: Int64Array, num_slots: int, found: Found) -> None:
    """Members with one slot are one instance; rows are numbered rank by rank, so sort by them."""
    order = np.lexsort((member, slot))
    slot, member = slot[order], member[order]
    sizes = np.bincount(slot, minlength=num_slots)
    found.add(member[sizes[slot] >= 2], sizes[sizes >= 2], MatchMethod.SUBSEQUENCE)


def _tokens(rows: Rows, index: Int64Array) -> Int64Array:
    """Numbers that are equal for operations of equal kind, element type and (if it tells) bytes."""
    kind = rows.kind[index].astype(np.int64)
    size = np.where(np.isin(kind, (*SAME_BYTES, *MESSAGES)), rows.bytes[index], ABSENT)
    sizes, size_code = np.unique(size, return_inverse=True)
    dtype = rows.dtype[index].astype(np.int64)
    token: Int64Array = (dtype * 64 + kind) * len(sizes) + size_code
    return token


# --- messages -------------------------------------------------------------------------------------


def match_messages(rows: Rows, index: Int64Array, ranks: Sequence[Rank], found: Found) -> None:
    """Join the sends of each rank with the receives of each other rank.

    Args:
        rows: The rows of all ranks.
        index: Sends and receives among them, ascending.
        ranks: Ranks of the run, ascending.
        found: Takes what is found.
    """
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
    new = ~same_as_before(source[order], destination[order])
    first = np.flatnonzero(new)
    parts = np.split(order, first[1:]) if len(order) else []
    channels = zip(source[order[first]].tolist(), destination[order[first]].tolist(), strict=True)
    return dict(zip(channels, parts, strict=True))


def _match_channel(
    rows: Rows,
    ends: tuple[Int64Array, Int64Array],
    has_epoch: tuple[bool, ...],
    found: Found,
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
