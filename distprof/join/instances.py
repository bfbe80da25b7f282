"""The rows to match, the builder that collects matched instances, and its result."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from distprof.join.topology import group_key, groups_of_rows, world_size_of
from distprof.join.waits import blocks_of, joined, looked_up
from distprof.run.run import CollectiveMatches, Rank
from distprof.run.tables import DistinctRows
from distprof.run.topology import ProcessGroup
from distprof.schema import Bools, Coded, Int64Array
from distprof.terms import CollectiveKind, MatchMethod, StepSource

NO_STEP = np.iinfo(np.int64).min
_INT32 = np.iinfo(np.int32)


class Rows(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """One entry per COLLECTIVES row of any rank, rank by rank, in order of start."""

    ranks: Sequence[Rank]  # The ranks, ascending.
    rank: NDArray[np.int32]  # int32, rank number.
    group: NDArray[np.int32]  # int32, index into the topology's groups.
    kind: NDArray[np.int8]  # int8, a CollectiveKind.
    bytes: Int64Array  # int64, ABSENT if unknown.
    seq: Int64Array | NDArray[np.int32]  # int64, or int32 if all values fit; ABSENT if unknown.
    peer: NDArray[np.int32]  # int32, ABSENT if unknown.
    end_ns: Int64Array  # int64, end on the rank's own clock.

    # Computed on demand: only matching without sequence numbers needs these columns.

    @cached_property
    def dtype(self) -> NDArray[np.int32]:
        """A code per element type, the same on every rank."""
        return Coded.concat([rank.collectives.coded("dtype") for rank in self.ranks]).codes

    @cached_property
    def step(self) -> Int64Array:
        """int64, number of the step that each row belongs to, NO_STEP if unknown."""
        return np.concatenate([step_labels(rank) for rank in self.ranks])

    def row(self, members: NDArray[Any]) -> Int64Array:
        """Row in its rank's table of each entry."""
        numbers = np.array([rank.rank for rank in self.ranks], np.int64)
        return members - looked_up(numbers, self._first, self.rank[members])

    @cached_property
    def _first(self) -> Int64Array:
        lengths = np.array([len(rank.collectives) for rank in self.ranks], np.int64)
        return np.cumsum(lengths) - lengths


def gather_rows(ranks: Sequence[Rank], groups: Sequence[ProcessGroup]) -> Rows:
    """The rows of all ranks, which ascend; ValueError if a row's group is not among ``groups``."""
    tables = [rank.collectives for rank in ranks]
    lengths = [len(table) for table in tables]
    return Rows(
        ranks=ranks,
        rank=np.repeat(np.array([rank.rank for rank in ranks], np.int32), lengths),
        group=_group_index(ranks, groups),
        kind=joined([table["kind"] for table in tables]),
        bytes=joined([table["bytes"] for table in tables]),
        seq=_joined_small([table["seq"] for table in tables]),
        peer=joined([table["peer"] for table in tables]),
        end_ns=joined([table["end_ns"] for table in tables]),
    )


def _joined_small(parts: Sequence[Int64Array]) -> Int64Array | NDArray[np.int32]:
    """The parts concatenated, as int32 if the values fit."""
    most = max((int(part.max()) for part in parts if len(part)), default=0)
    least = min((int(part.min()) for part in parts if len(part)), default=0)
    if least < _INT32.min or most > _INT32.max or all(part.strides == (0,) for part in parts):
        return joined(parts)
    return np.concatenate(parts, dtype=np.int32, casting="same_kind")


def step_labels(rank: Rank) -> Int64Array:
    """Number of the step that each collective of a rank belongs to, NO_STEP if unknown.

    A CPU step window contains the time at which a collective is enqueued, a GPU step window its
    start. Numbers of other sources may differ between ranks.
    """
    table, steps = rank.collectives, rank.steps
    if rank.step_source not in (StepSource.PROFILER_STEP, StepSource.DEVICE) or not len(steps):
        return np.full(len(table), NO_STEP, np.int64)
    time = table["start_ns"]
    if rank.step_source is StepSource.PROFILER_STEP:
        time = np.where(table["enqueue_ns"] >= 0, table["enqueue_ns"], time)
    index = np.searchsorted(steps["start_ns"], time, side="right") - 1
    inside = (index >= 0) & (time < steps["end_ns"][np.maximum(index, 0)])
    if rank.step_source is StepSource.DEVICE:
        # Receives that only receives follow may belong to the next step: a GPU step begins with
        # computation, which on an inner pipeline stage waits for a receive.
        receives = table["kind"] == CollectiveKind.RECV
        place = np.arange(len(table))
        last = np.full(int(index.max(initial=0)) + 2, -1, dtype=np.int64)
        np.maximum.at(last, index[~receives] + 1, place[~receives])
        trailing: Bools = receives & (place > last[index + 1])
        inside &= ~trailing
    return np.where(inside, steps["step"][np.maximum(index, 0)], NO_STEP)


def _group_index(ranks: Sequence[Rank], groups: Sequence[ProcessGroup]) -> NDArray[np.int32]:
    known = {group_key(group): index for index, group in enumerate(groups)}
    world_size = world_size_of(ranks)
    seen: dict[int, tuple[ProcessGroup, int]] = {}  # a key is as long as the group is large

    def number(group: ProcessGroup) -> int:
        if id(group) not in seen:
            seen[id(group)] = group, known[group_key(group)]
        return seen[id(group)][1]

    parts, rows = [], DistinctRows()
    for rank in ranks:
        found, index = groups_of_rows(rank, world_size, rows)
        try:
            lookup = np.array([number(group) for group in found], np.int32)
        except KeyError as error:
            raise ValueError(f"rank {rank.rank}: group {error} is not in the topology") from None
        parts.append(lookup[index] if len(found) else np.empty(0, np.int32))
    return np.concatenate(parts)


# Instances ----------------------------------------------------------------------------------------

# All members of these collectives report the same bytes; those of an all-to-all may differ.
SAME_BYTES = (
    CollectiveKind.ALL_REDUCE,
    CollectiveKind.ALL_GATHER,
    CollectiveKind.REDUCE_SCATTER,
    CollectiveKind.BROADCAST,
    CollectiveKind.REDUCE,
)

MESSAGES = (CollectiveKind.SEND, CollectiveKind.RECV)


def are_messages(kind: NDArray[np.int8], peer: NDArray[np.int32]) -> Bools:
    """Mask of the rows between two ranks: a message, or a kernel that both sends and receives."""
    both_ways = (kind == CollectiveKind.SEND_RECV) & (peer >= 0)
    of_two: Bools = np.isin(kind, MESSAGES) | both_ways
    return of_two


class MatchBuilder:
    """Instances found so far: members as positions in the rows, instance after instance.

    ``ambiguous`` ranks have rows that fit in several ways; numbers of ``misnumbered`` ones are
    wrong.
    """

    def __init__(self) -> None:
        self.members: list[NDArray[Any]] = []
        self.sizes: list[Int64Array] = []
        self.methods: list[NDArray[np.int8]] = []
        self.num_candidates = 0
        self.ambiguous: set[int] = set()
        self.misnumbered: set[int] = set()
        self.notes: list[str] = []

    def add(self, members: NDArray[Any], sizes: Int64Array, method: MatchMethod) -> None:
        """Add instances: their concatenated members, and the number of members of each."""
        self.members.append(members)
        self.sizes.append(sizes)
        self.methods.append(np.full(len(sizes), method, np.int8))


def name_of(group: ProcessGroup) -> str:
    """Name of a group in notes."""
    return group.description or group.name or "of all ranks"


def matches_of(
    rows: Rows, groups: Sequence[ProcessGroup], present: Int64Array, builder: MatchBuilder
) -> CollectiveMatches:
    """The matched instances, in order of time."""
    members = np.concatenate([np.empty(0, np.int32), *builder.members])
    sizes = np.concatenate([np.empty(0, np.int64), *builder.sizes])
    begin = np.cumsum(sizes) - sizes
    order = np.argsort(rows.end_ns[members[begin]], kind="stable")
    first, begin, sizes = members[begin][order], begin[order], sizes[order]
    method = np.concatenate([np.empty(0, np.int8), *builder.methods])[order]
    group, kind = rows.group[first], rows.kind[first]
    message = are_messages(kind, rows.peer[first])
    group_size = np.array([len(g.ranks) or g.size or 0 for g in groups], np.int64)
    complete = message | (sizes == group_size[group])
    whole = complete | (sizes == present[group])
    offsets = np.concatenate(([0], np.cumsum(sizes))).astype(np.int64)
    member_rank, member_row = (np.empty(len(members), np.int32) for _ in range(2))
    largest = np.empty(len(sizes), np.int64)
    for low, high in blocks_of(offsets):
        size = sizes[low:high]
        place = np.repeat(begin[low:high] - offsets[low:high], size)
        place += np.arange(offsets[low], offsets[high])
        of_block, part = members[place], slice(int(offsets[low]), int(offsets[high]))
        member_rank[part], member_row[part] = rows.rank[of_block], rows.row(of_block)
        start = offsets[low:high] - offsets[low]
        largest[low:high] = np.maximum.reduceat(rows.bytes[of_block], start)
    return CollectiveMatches(
        offsets=offsets,
        member_rank=member_rank,
        member_row=member_row,
        group=group,
        kind=kind,
        bytes=largest,
        method=method,
        complete=complete,
        num_candidates=builder.num_candidates,
        num_matched=int(sizes[whole].sum()),
        ambiguous_ranks=tuple(sorted(builder.ambiguous)),
        misnumbered_ranks=tuple(sorted(builder.misnumbered)),
        notes=tuple(builder.notes),
    )
