"""Finds where ranks diverge: operations that some ranks launched and others did not.

A collective that one member never launched cannot complete on the others. The first such operation
of a group is its point: the ranks that launched it wait for those that did not. The hang began on
the ranks that others wait for and that wait for no rank themselves. Members may also launch
different operations, sizes or data types under one sequence number.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from distprof.artefacts.record import grouped
from distprof.run.records import FlightState
from distprof.run.tables import runs_of, same_as_before
from distprof.schema import ABSENT, Int64Array
from distprof.terms import CollectiveKind
from distprof.units import name_ranks
from distprof.verbs.hang import HangKind
from distprof.verbs.hang.groups import JobGroup, Member

_MESSAGE = re.compile(r"(send|recv) (\d+)(?:->|<-)(\d+)")

_LATEST = 2**62
MISMATCHES = (HangKind.KIND_MISMATCH, HangKind.SIZE_MISMATCH, HangKind.DTYPE_MISMATCH)


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """An operation in which ranks diverge."""

    group: JobGroup  # Process group of the operation.
    kind: HangKind  # How they diverge.
    seq: int | None  # Its sequence number; None for messages.
    waiting: tuple[int, ...]  # Ranks that launched it and wait.
    # Ranks that left a dump and did not launch it, did not finish it, or launched a different
    # operation.
    missing: tuple[int, ...]
    silent: tuple[int, ...] = ()  # Members that left no dump.
    # A member that launched it, and the row of its entry; None if no ring holds it.
    example: tuple[Member, int] | None = None
    # Operations that the missing ranks launched instead, one sentence each.
    others: tuple[str, ...] = ()

    @property
    def blamed(self) -> tuple[int, ...]:
        """Ranks that others wait for: the missing ranks, or else those without a dump."""
        return self.missing or self.silent

    @property
    def first_ns(self) -> int:
        """When the first rank launched it; far in the future if unknown, 0 for mismatches."""
        created = _LATEST if self.example is None else _created_ns(*self.example)
        return created if created > 0 or self.kind in MISMATCHES else _LATEST


def behind_point(group: JobGroup) -> Point | None:
    """The first collective that a member launched and another member with a dump did not."""
    known = {m.rank: m.enqueued for m in group.members.values() if m.enqueued is not None}
    if known and all(m.completed is None for m in group.members.values()):
        known |= {m.rank: 0 for m in group.members.values() if m.rank not in known and m.is_whole}
    if len(known) < 2:
        return None
    # The latest collective in the entries, or in the counts if there are no entries
    recorded = [int(member.seq.max()) for member in group.members.values() if len(member.seq)]
    front = max(recorded, default=max(known.values()))
    low = min(known.values())
    if low >= front:
        return None
    seq = low + 1
    waiting = tuple(sorted(rank for rank, latest in known.items() if latest >= seq))
    missing = tuple(sorted(rank for rank, latest in known.items() if latest < seq))
    return _in_group(group, HangKind.NEVER_LAUNCHED, seq, waiting, missing)


def has_moved_on(point: Point) -> bool:
    """Whether a rank has completed an operation that others seem not to have launched.

    This cannot happen in a hang: the others launched it after they wrote their dumps, so the job
    was running. Only symmetric collectives, in which every rank waits for all others, show this.
    The root of a broadcast may finish early.
    """
    if point.seq is None:
        return False
    members = [point.group.members[rank] for rank in point.waiting]
    done = [m for m in members if m.completed is not None and m.completed >= point.seq]
    return any(_waits_for_all(member, point.seq) for member in done)


def _waits_for_all(member: Member, seq: int) -> bool:
    row = member.row_of(seq)
    kind = CollectiveKind(int(member.dump.entries["kind"][row])) if row is not None else None
    return kind is None or kind.is_symmetric


def waits_for_all(point: Point) -> bool:
    """Whether the operation is known to complete on a rank only after every rank has joined it."""
    if point.example is None or point.seq is None:
        return False
    return _waits_for_all(point.example[0], point.seq)


def silent_point(group: JobGroup) -> Point | None:
    """The operation in which members with a dump wait while other members left no dump."""
    if not group.silent or not group.members:
        return None
    latest = [(_waits_in(member), member) for member in group.members.values()]
    pending = [(seq, member) for seq, member in latest if seq is not None]
    if not pending:
        return None
    seq = min(seq for seq, _ in pending)
    waiting = tuple(sorted(member.rank for at, member in pending if at == seq))
    return _in_group(group, HangKind.NEVER_LAUNCHED, seq, waiting, ())


def _in_group(
    group: JobGroup, kind: HangKind, seq: int, waiting: tuple[int, ...], missing: tuple[int, ...]
) -> Point:
    """A point with the entry of the member that launched it first, if a ring holds one."""
    members = [group.members[rank] for rank in sorted((*waiting, *missing))]
    launches = [(member, row) for member in members if (row := member.row_of(seq)) is not None]
    return Point(
        group=group,
        kind=kind,
        seq=seq,
        waiting=waiting,
        missing=missing,
        silent=group.silent,
        example=min(launches, key=lambda one: _created_ns(*one) or _LATEST, default=None),
    )


def _created_ns(member: Member, row: int) -> int:
    """When a member launched an operation; 0 if unknown."""
    return max(int(member.dump.entries["created_ns"][row]), 0)


def _waits_in(member: Member) -> int | None:
    """The first pending collective, or the last one for gloo, which does not record completion."""
    pending = member.seq[member.pending]
    if not len(pending):
        return None
    return int(pending.min() if member.records_completion else pending.max())


def unfinished_point(group: JobGroup) -> Point | None:
    """The first collective that every member launched and some did not finish."""
    recording = [m for m in group.members.values() if m.records_completion]
    waits_in = {m.rank: seq for m in recording if (seq := _waits_in(m)) is not None}
    if not waits_in:
        return None
    seq = min(waits_in.values())
    at = tuple(sorted(rank for rank, first in waits_in.items() if first == seq))
    if any(m.enqueued is None or m.enqueued < seq for m in recording):
        return None  # a rank has not even launched it
    states = {rank: _state(group.members[rank], seq) for rank in at}
    finished = [m.rank for m in recording if m.completed is not None and m.completed >= seq]
    kind, missing = _how_unfinished(states, is_finished_by_some=bool(finished))
    waiting = tuple(rank for rank in at if rank not in missing) or at
    return _in_group(group, kind, seq, waiting, missing)


def _state(member: Member, seq: int) -> int:
    row = member.row_of(seq)
    return int(member.dump.entries["state"][row]) if row is not None else FlightState.UNKNOWN


def _how_unfinished(
    states: dict[int, int], *, is_finished_by_some: bool
) -> tuple[HangKind, tuple[int, ...]]:
    """How it is unfinished, and the ranks that differ; none if all are in the same state."""
    started = {rank for rank, state in states.items() if state == FlightState.STARTED}
    odd = tuple(sorted(states)) if is_finished_by_some else ()
    if not started:
        return HangKind.LAUNCHED_NOT_FINISHED, odd
    waiting = set(states) - started
    if waiting:
        return HangKind.LAUNCHED_NOT_STARTED, tuple(sorted(waiting))
    return HangKind.STARTED_NOT_FINISHED, odd


def message_points(group: JobGroup) -> list[Point]:
    """Messages that one side posted and the other did not, by the number in flight on each side."""
    posted: dict[tuple[int, int], dict[str, list[tuple[Member, int]]]] = defaultdict(
        lambda: {"send": [], "recv": []}
    )
    for member in group.members.values():
        names = member.dump.entries.coded("name")
        for row in member.messages.tolist():
            parsed = _direction(names.at(row), group)
            if parsed is not None:
                side, pair = parsed
                posted[pair][side].append((member, row))
    points = (_unmatched(group, pair, sides) for pair, sides in sorted(posted.items()))
    return [point for point in points if point is not None]


def _direction(name: str, group: JobGroup) -> tuple[str, tuple[int, int]] | None:
    """Parse ``recv 3<-0`` into its side and the global ranks of sender and receiver."""
    match = _MESSAGE.search(name)
    if match is None or not group.knows_ranks:
        return None
    own, peer = int(match[2]), int(match[3])
    if max(own, peer) >= len(group.ranks):
        return None
    pair = (own, peer) if match[1] == "send" else (peer, own)
    return match[1], (group.ranks[pair[0]], group.ranks[pair[1]])


def _unmatched(
    group: JobGroup, pair: tuple[int, int], sides: dict[str, list[tuple[Member, int]]]
) -> Point | None:
    sends, receives = sides["send"], sides["recv"]
    if len(sends) == len(receives):
        return None
    more, fewer = (sends, receives) if len(sends) > len(receives) else (receives, sends)
    waiter, waited = pair if more is sends else pair[::-1]
    return Point(
        group=group,
        kind=HangKind.NEVER_LAUNCHED,
        seq=None,
        waiting=(waiter,),
        missing=(waited,) if waited in group.members else (),
        silent=() if waited in group.members else (waited,),
        example=more[len(fewer)],
    )


def waits(points: Iterable[Point]) -> dict[int, set[int]]:
    """For each waiting rank, the ranks it waits for."""
    graph: dict[int, set[int]] = defaultdict(set)
    for point in points:
        blamed = set(point.blamed)
        for rank in point.waiting:
            graph[rank] |= blamed - {rank}
    return {rank: blamed for rank, blamed in graph.items() if blamed}


def roots_of(points: Sequence[Point]) -> tuple[tuple[int, ...], bool]:
    """Ranks that others wait for and that wait for no rank, or else the ranks of a deadlock."""
    graph = waits(points)
    waited = {rank for blamed in graph.values() for rank in blamed}
    roots = waited - graph.keys()
    if roots or not waited:
        return tuple(sorted(roots)), False
    votes = Counter(frozenset(reached_from(graph, rank)) for rank in sorted(waited))
    circle = min(votes, key=lambda ranks: (len(ranks), sorted(ranks)))
    return tuple(sorted(circle)), True


def reached_from(graph: Mapping[int, set[int]], start: int) -> set[int]:
    """Ranks that ``start`` waits for, directly or through others."""
    seen: set[int] = set()
    ahead = [start]
    while ahead:
        for rank in graph.get(ahead.pop(), ()):
            if rank not in seen:
                seen.add(rank)
                ahead.append(rank)
    return seen


_EQUAL_SIZES = (CollectiveKind.ALL_REDUCE, CollectiveKind.REDUCE, CollectiveKind.BROADCAST)

_EQUAL_IN_ONE_TENSOR = (CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER)

_ONE_TENSOR = ("_base", "tensor", "single")

_GLOO_LOOKBACK = 64  # gloo does not record completion, but it fails soon after a mismatch

_MOST_NAMED = 3


def mismatch_point(group: JobGroup) -> Point | None:
    """The first collective in flight whose kind, size or data type differs between members.

    Sizes are compared only if they must agree: not in all-to-all, gather and scatter, nor in
    gathers of tensor lists, whose parts may be uneven.
    """
    members = [member for member in group.members.values() if len(member.seq)]
    if len(members) < 2:
        return None
    rows = _Rows(members)
    for kind, values in (
        (HangKind.KIND_MISMATCH, rows.kind),
        (HangKind.SIZE_MISMATCH, rows.elements),
        (HangKind.DTYPE_MISMATCH, rows.dtype),
    ):
        seq = rows.first_difference(values)
        if seq is not None:
            return _point(group, kind, seq, rows.at(seq, values))
    return None


class _Rows:
    """Collectives of all members by sequence number, keeping the first per rank and number."""

    def __init__(self, members: Sequence[Member]) -> None:
        self.members = members
        which = np.repeat(np.arange(len(members)), [len(m.seq) for m in members])
        seq = np.concatenate([member.seq for member in members])
        pending = np.concatenate([member.pending for member in members])
        order = np.lexsort((which, seq))
        chosen = order[~same_as_before(seq[order], which[order])]
        self.which, self.seq, self.pending = which[chosen], seq[chosen], pending[chosen]
        kind = _column(members, lambda m: m.dump.entries["kind"][m.collectives].astype(np.int64))
        self.kind = np.where(kind == CollectiveKind.UNKNOWN, ABSENT, kind)[chosen]
        self.elements = _column(members, _elements)[chosen]
        codes = {"": ABSENT}  # consistent across all dumps
        self.dtype = _column(
            members,
            lambda m: m.dump.entries.coded("in_dtype").take(m.collectives).numbered(codes),
        )[chosen]
        self.starts = runs_of(self.seq)[0]

    def first_difference(self, values: Int64Array) -> int | None:
        """The first sequence number in flight at which the known values differ."""
        known = values != ABSENT
        low = np.minimum.reduceat(np.where(known, values, np.iinfo(np.int64).max), self.starts)
        high = np.maximum.reduceat(np.where(known, values, ABSENT), self.starts)
        is_recorded = np.array([member.records_completion for member in self.members])[self.which]
        may = self.pending & (is_recorded | (self.seq >= self.seq.max() - _GLOO_LOOKBACK))
        pending = np.logical_or.reduceat(may, self.starts)
        differs = np.flatnonzero((high > low) & pending)
        return int(self.seq[self.starts[differs[0]]]) if len(differs) else None

    def at(self, seq: int, values: Int64Array) -> list[tuple[Member, int]]:
        """Members that launched number ``seq``, with their values."""
        found = np.flatnonzero((self.seq == seq) & (values != ABSENT))
        return [(self.members[self.which[i]], int(values[i])) for i in found]


def _column(members: Sequence[Member], of: Any) -> Int64Array:
    return np.concatenate([of(member) for member in members])


def _elements(member: Member) -> Int64Array:
    entries, rows = member.dump.entries, member.collectives
    kind = entries["kind"][rows]
    names = entries.coded("name")
    one = names.take(rows).where([any(w in v for w in _ONE_TENSOR) for v in names.values])
    compared = np.isin(kind, _EQUAL_SIZES) | (np.isin(kind, _EQUAL_IN_ONE_TENSOR) & one)
    return np.where(compared, entries["in_elements"][rows], ABSENT)


def _point(group: JobGroup, kind: HangKind, seq: int, found: list[tuple[Member, int]]) -> Point:
    counts = Counter(value for _, value in found)
    usual, number = counts.most_common(1)[0]
    is_majority = 2 * number > len(found)
    odd = [m for m, value in found if value != usual] if is_majority else [m for m, _ in found]
    example = next(member for member, value in found if value == usual)
    row = example.row_of(seq)
    return Point(
        group=group,
        kind=kind,
        seq=seq,
        waiting=tuple(m.rank for m, value in found if value == usual) if is_majority else (),
        missing=tuple(sorted(member.rank for member in odd)),
        silent=group.silent,
        example=None if row is None else (example, row),
        others=tuple(_others(odd, seq)),
    )


def _others(odd: Sequence[Member], seq: int) -> list[str]:
    """The operations that the differing ranks launched instead, one sentence per variant."""
    rows = ((member, member.row_of(seq)) for member in odd)
    by_what = grouped([(described(one, row), one.rank) for one, row in rows if row is not None])
    sentences = [f"{name_ranks(ranks)} launched {what}" for what, ranks in by_what.items()]
    more = len(sentences) - _MOST_NAMED
    return sentences[:_MOST_NAMED] + ([f"and {more} more variants"] if more > 0 else [])


def described(member: Member, row: int) -> str:
    """Name, sizes and data type of an operation."""
    columns = map(member.dump.entries.coded, ("name", "shape", "in_dtype"))
    name, shape, dtype = (column.at(row) for column in columns)
    inside = " ".join(part for part in (shape, dtype) if part)
    return f"{name} of {inside}" if inside else name
