"""Where ranks wait for each other: the operations that some launched and others did not.

A collective that a member never launched cannot complete on any other. The first such operation of
each group is a point; who waits there waits for those that lack it. Ranks that are waited for and
wait for nobody are where the hang began.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from distprof.run.records import FlightState
from distprof.terms import CollectiveKind
from distprof.verbs.hang.groups import JobGroup, Member
from distprof.verbs.hang.result import HangKind

__all__ = [
    "Point",
    "behind_point",
    "has_moved_on",
    "message_points",
    "roots_of",
    "silent_point",
    "unfinished_point",
    "waits",
]

_MESSAGE = re.compile(r"(send|recv) (\d+)(?:->|<-)(\d+)")
_LATEST = 2**62


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """An operation in which ranks diverge.

    Args:
        group: Its process group.
        kind: How they diverge.
        seq: Its sequence number; None for messages.
        waiting: Ranks that launched it and wait.
        missing: Ranks that dumped and did not launch it, did not finish it, or launched another.
        silent: Members that left no dump.
        example: A member that launched it, and the row of the entry; None where no ring holds it.
        first_ns: When the first rank launched it; very late when not known.
        others: What the missing ranks did instead, one sentence each.
    """

    group: JobGroup
    kind: HangKind
    seq: int | None
    waiting: tuple[int, ...]
    missing: tuple[int, ...]
    silent: tuple[int, ...] = ()
    example: tuple[Member, int] | None = None
    first_ns: int = _LATEST
    others: tuple[str, ...] = ()

    @property
    def blamed(self) -> tuple[int, ...]:
        """Who is waited for: those seen to be missing, else those that told nothing."""
        return self.missing or self.silent


def behind_point(group: JobGroup) -> Point | None:
    """The first collective that some member launched and another, which dumped, did not."""
    known = {m.rank: m.enqueued for m in group.members.values() if m.enqueued is not None}
    if known and all(m.completed is None for m in group.members.values()):
        known |= {m.rank: 0 for m in group.members.values() if m.rank not in known and m.is_whole}
    if len(known) < 2:
        return None
    front = _front(group.members.values(), known)
    low = min(known.values())
    if low >= front:
        return None
    seq = low + 1
    waiting = tuple(sorted(rank for rank, latest in known.items() if latest >= seq))
    missing = tuple(sorted(rank for rank, latest in known.items() if latest < seq))
    return _never_launched(group, seq, waiting, missing)


def _front(members: Iterable[Member], known: dict[int, int]) -> int:
    """The latest collective that an entry shows; without any entry, that a count shows."""
    seen = [int(member.seq.max()) for member in members if len(member.seq)]
    return max(seen, default=max(known.values()))


def has_moved_on(point: Point) -> bool:
    """Whether a rank has completed what others seem not to have launched.

    It cannot have: the others launched it after they dumped, so the job was running. Only a
    collective in which all wait for all tells that: the root of a broadcast may be done early.
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


def silent_point(group: JobGroup) -> Point | None:
    """What the members that dumped wait in where others left no dump."""
    if not group.silent or not group.members:
        return None
    latest = [(_waits_in(member), member) for member in group.members.values()]
    pending = [(seq, member) for seq, member in latest if seq is not None]
    if not pending:
        return None
    seq = min(seq for seq, _ in pending)
    waiting = tuple(sorted(member.rank for at, member in pending if at == seq))
    return _never_launched(group, seq, waiting, ())


def _never_launched(
    group: JobGroup, seq: int, waiting: tuple[int, ...], missing: tuple[int, ...]
) -> Point:
    example, first_ns = _example(group, seq, waiting)
    return Point(
        group=group,
        kind=HangKind.NEVER_LAUNCHED,
        seq=seq,
        waiting=waiting,
        missing=missing,
        silent=group.silent,
        example=example,
        first_ns=first_ns,
    )


def _waits_in(member: Member) -> int | None:
    """Its first collective that has not completed; of gloo, which does not tell, the latest."""
    pending = member.seq[member.pending]
    if not len(pending):
        return None
    return int(pending.min() if member.tells_completion else pending.max())


def unfinished_point(group: JobGroup) -> Point | None:
    """The first collective that every member launched and one or more did not finish."""
    told = [m for m in group.members.values() if m.tells_completion]
    waits_in = {m.rank: seq for m in told if (seq := _waits_in(m)) is not None}
    if not waits_in:
        return None
    seq = min(waits_in.values())
    at = tuple(sorted(rank for rank, first in waits_in.items() if first == seq))
    if any(m.enqueued is None or m.enqueued < seq for m in told):
        return None  # somebody has not even launched it
    states = {rank: _state(group.members[rank], seq) for rank in at}
    finished = [m.rank for m in told if m.completed is not None and m.completed >= seq]
    example, first_ns = _example(group, seq, at)
    kind, missing = _how_unfinished(states, is_finished_by_some=bool(finished))
    return Point(
        group=group,
        kind=kind,
        seq=seq,
        waiting=tuple(sorted(set(at) - set(missing))) or at,
        missing=missing,
        silent=group.silent,
        example=example,
        first_ns=first_ns,
    )


def _state(member: Member, seq: int) -> int:
    row = member.row_of(seq)
    return int(member.dump.entries["state"][row]) if row is not None else FlightState.UNKNOWN


def _how_unfinished(
    states: dict[int, int], *, is_finished_by_some: bool
) -> tuple[HangKind, tuple[int, ...]]:
    """How, and who differs from the others; nobody where all are alike."""
    started = {rank for rank, state in states.items() if state == FlightState.STARTED}
    odd = tuple(sorted(states)) if is_finished_by_some else ()
    if not started:
        return HangKind.LAUNCHED_NOT_FINISHED, odd
    waiting = set(states) - started
    if waiting:
        return HangKind.LAUNCHED_NOT_STARTED, tuple(sorted(waiting))
    return HangKind.STARTED_NOT_FINISHED, odd


def _example(
    group: JobGroup, seq: int, ranks: Sequence[int]
) -> tuple[tuple[Member, int] | None, int]:
    """The member that launched it first, with the row, and when."""
    found = []
    for rank in ranks:
        member = group.members[rank]
        row = member.row_of(seq)
        if row is not None:
            created = int(member.dump.entries["created_ns"][row])
            found.append((created if created > 0 else _LATEST, rank, member, row))
    if not found:
        return None, _LATEST
    first = min(found, key=lambda item: item[:2])
    return (first[2], first[3]), first[0]


def message_points(group: JobGroup) -> list[Point]:
    """Messages that one side posted and the other did not, by how many are under way."""
    posted: dict[tuple[int, int], dict[str, list[tuple[Member, int]]]] = defaultdict(
        lambda: {"send": [], "recv": []}
    )
    for member in group.members.values():
        names = member.dump.entries.coded("name")
        for row in member.messages.tolist():
            way = _direction(names.values[names.codes[row]], group)
            if way is not None:
                posted[way[1]][way[0]].append((member, row))
    points = (_unmatched(group, pair, sides) for pair, sides in sorted(posted.items()))
    return [point for point in points if point is not None]


def _direction(name: str, group: JobGroup) -> tuple[str, tuple[int, int]] | None:
    """``recv 3<-0`` as its side, and sender and receiver by global rank."""
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
    member, row = more[len(fewer)]
    created = int(member.dump.entries["created_ns"][row])
    return Point(
        group=group,
        kind=HangKind.NEVER_LAUNCHED,
        seq=None,
        waiting=(waiter,),
        missing=(waited,) if waited in group.members else (),
        silent=() if waited in group.members else (waited,),
        example=(member, row),
        first_ns=created if created > 0 else _LATEST,
    )


def waits(points: Iterable[Point]) -> dict[int, set[int]]:
    """Rank to the ranks it waits for."""
    found: dict[int, set[int]] = defaultdict(set)
    for point in points:
        blamed = set(point.blamed)
        for rank in point.waiting:
            found[rank] |= blamed - {rank}
    return {rank: blamed for rank, blamed in found.items() if blamed}


def roots_of(points: Sequence[Point]) -> tuple[tuple[int, ...], bool]:
    """Ranks that are waited for and wait for nobody; else those that wait in a circle.

    Returns:
        The ranks, and whether they wait in a circle.
    """
    graph = waits(points)
    waited = {rank for blamed in graph.values() for rank in blamed}
    roots = waited - graph.keys()
    if roots or not waited:
        return tuple(sorted(roots)), False
    votes = Counter(frozenset(_reach(graph, rank)) for rank in sorted(waited))
    circle = min(votes, key=lambda ranks: (len(ranks), sorted(ranks)))
    return tuple(sorted(circle)), True


def _reach(graph: dict[int, set[int]], start: int) -> set[int]:
    seen: set[int] = set()
    ahead = [start]
    while ahead:
        for rank in graph.get(ahead.pop(), ()):
            if rank not in seen:
                seen.add(rank)
                ahead.append(rank)
    return seen
