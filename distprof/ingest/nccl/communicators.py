"""Members of each communicator, and their connections.

Since NCCL 2.17, every initialisation line names the communicator's id. Older versions print a
pointer that is local to the process, and only after the connections. Their members are then grouped
by communicator size. If several communicators have the same size, the members of each are unknown.
"""

from __future__ import annotations

from collections import Counter, defaultdict

import msgspec

from distprof.ingest.nccl.messages import (
    Channels,
    Connection,
    Event,
    Initialised,
    Nodes,
    Ring,
    Timing,
    Trees,
)
from distprof.run.logs import NcclCommunicator, NcclEdge, NcclMember

MAX_EDGES = 1 << 20
MAX_COMMUNICATORS = 1 << 17
MAX_MEMBERS = 1 << 20
MAX_PLACES = 1 << 22
"""Ranks in rings and trees."""

_NO_ONE = -1


class _Open(msgspec.Struct):
    """A communicator while the log is read."""

    identity: str
    num_ranks: int
    members: dict[int, NcclMember] = msgspec.field(default_factory=dict)
    init_ns: int | None = None
    channels: Channels | None = None
    num_nodes: int | None = None
    rings: dict[int, tuple[int, ...]] = msgspec.field(default_factory=dict)
    trees: dict[int, dict[int, int]] = msgspec.field(default_factory=lambda: defaultdict(dict))


class _Writer(msgspec.Struct):
    """State of one process, with data of a communicator that it has not named yet."""

    current: int | None = None
    # Own rank in each communicator, the latest last.
    ranks: dict[int, int] = msgspec.field(default_factory=dict)
    pointers: dict[str, int] = msgspec.field(default_factory=dict)
    edges: dict[Connection, int] = msgspec.field(default_factory=dict)
    events: list[Event] = msgspec.field(default_factory=list)


class Communicators:
    """Collects events about communicators, in order."""

    def __init__(self) -> None:
        self.num_left = 0
        self.num_nodes: int | None = None
        self._all: list[_Open] = []
        self._by_identity: dict[tuple[str, int], int] = {}
        self._by_size: dict[int, list[int]] = defaultdict(list)
        self._first_free: dict[tuple[int, int], int] = {}
        self._writers: dict[int, _Writer] = defaultdict(_Writer)
        self._edges: dict[tuple[int | None, int, Connection], int] = defaultdict(int)
        self._same_members: dict[int, bool] = {}
        self._num_waiting = 0
        self._num_members = 0
        self._num_places = 0

    def connect(self, process: int, event: Connection, number: int = 1) -> None:
        """Add a number of channels between two ranks that a process logged."""
        writer = self._writers[process]
        if writer.current is not None and not event.pointer:
            self._count_edge(self._fitting(writer, event), process, event, number)
        elif event.pointer in writer.pointers:
            self._count_edge(writer.pointers[event.pointer], process, event, number)
        elif event in writer.edges:
            writer.edges[event] += number
        elif self._num_waiting < MAX_EDGES:
            self._num_waiting += 1
            writer.edges[event] = number
        else:
            self.num_left += number

    def keep(self, process: int, event: Event) -> None:
        """Add any other event about a communicator."""
        writer = self._writers[process]
        if isinstance(event, Initialised):
            self._initialised(process, writer, event)
        elif isinstance(event, Nodes):
            self.num_nodes = max(self.num_nodes or 0, event.num_nodes)
            self._describe(writer.pointers.get(event.pointer, writer.current), event)
        elif isinstance(event, Timing):
            own = (event.rank, event.num_ranks)
            found = (
                i
                for i in reversed(writer.ranks)
                if own == (writer.ranks[i], self._all[i].num_ranks)
            )
            self._describe(next(found, None), event)
        elif writer.current is not None:
            self._describe(writer.current, event)
        elif len(writer.events) < 1000:
            writer.events.append(event)

    def result(self) -> tuple[tuple[NcclCommunicator, ...], tuple[NcclEdge, ...]]:
        """Communicators in order of appearance, and their connections."""
        for process, writer in self._writers.items():
            self._flush(process, writer, None)
        made = tuple(self._made(index, one) for index, one in enumerate(self._all))
        edges = (
            NcclEdge(
                communicator=index,
                process=None if process == _NO_ONE else process,
                source=event.source,
                target=event.target,
                transport=event.transport,
                has_gdr=event.has_gdr,
                card=event.card,
                direction=event.direction,
                num_lines=number,
            )
            for (index, process, event), number in self._edges.items()
        )
        return made, tuple(edges)

    def world_ranks(self, made: tuple[NcclCommunicator, ...]) -> dict[int, int]:
        """Process to its rank in the largest communicator, if that rank is unambiguous."""
        largest = max((one.num_ranks for one in made), default=0)
        members = (member for one in made if one.num_ranks == largest for member in one.members)
        pairs = {(member.rank, member.process) for member in members}
        of_rank = Counter(rank for rank, _ in pairs)
        of_process = Counter(process for _, process in pairs)
        return {
            process: rank
            for rank, process in pairs
            if of_rank[rank] == of_process[process] == 1 and process >= 0
        }

    def _initialised(self, process: int, writer: _Writer, event: Initialised) -> None:
        index = writer.pointers.get(event.pointer)
        if event.what in ("Destroy COMPLETE", "Abort COMPLETE"):
            writer.pointers.pop(event.pointer, None)
            return
        if index is None or self._all[index].num_ranks != event.num_ranks:
            index = self._place(process, event)
        if index is None:
            self.num_left += 1
            return
        one = self._all[index]
        before = one.members.get(event.rank)
        is_complete = event.what == "Init COMPLETE" or bool(before and before.is_complete)
        self._num_members += before is None
        one.members[event.rank] = NcclMember(
            rank=event.rank,
            process=process,
            device=event.device,
            bus_id=event.bus_id,
            is_complete=is_complete,
        )
        writer.pointers[event.pointer] = index
        writer.ranks.pop(index, None)
        writer.ranks[index] = event.rank
        self._flush(process, writer, index)
        # Without an id, nothing announces the next communicator: later events wait for its name.
        writer.current = index if event.identity else None

    def _place(self, process: int, event: Initialised) -> int | None:
        """The communicator that a process refers to, created if necessary."""
        if event.identity:
            key = (event.identity, event.num_ranks)
            if key not in self._by_identity:
                self._by_identity[key] = len(self._all)
                return self._new(event)
            index = self._by_identity[key]
            holder = self._all[index].members.get(event.rank)
            if holder is None or holder.process == process:
                return index
            self._by_identity[key] = len(self._all)  # another run that has the same id by chance
            return self._new(event)
        return self._place_by_size(event)

    def _place_by_size(self, event: Initialised) -> int | None:
        """The first communicator of that size in which the rank is free."""
        same = self._by_size[event.num_ranks]
        position = self._first_free.get((event.num_ranks, event.rank), 0)
        self._first_free[event.num_ranks, event.rank] = position + 1
        if position < len(same):
            return same[position]
        index = self._new(event)
        if index is not None:
            same.append(index)
        return index

    def _new(self, event: Initialised) -> int | None:
        if len(self._all) >= MAX_COMMUNICATORS or self._num_members >= MAX_MEMBERS:
            return None
        self._all.append(_Open(event.identity, event.num_ranks))
        return len(self._all) - 1

    def _flush(self, process: int, writer: _Writer, index: int | None) -> None:
        """Assign waiting edges and events to the communicator that was named."""
        for event, number in writer.edges.items():
            self._count_edge(self._fitting(writer, event, index), process, event, number)
        self._num_waiting -= len(writer.edges)
        writer.edges.clear()
        for waiting in writer.events:
            self._describe(index, waiting)
        writer.events.clear()

    def _fitting(self, writer: _Writer, event: Connection, named: int | None = None) -> int | None:
        """The latest communicator in which the connection ends at the writer's own rank."""
        if event.pointer:
            return writer.pointers.get(event.pointer)
        candidates = [named] if named is not None else [*reversed(writer.ranks)][:64]
        for index in candidates:
            ends = {event.source, event.target} - {None}
            own, size = writer.ranks.get(index), self._all[index].num_ranks
            if own in ends and max(end for end in ends if end is not None) < size:
                return index
        return None

    def _count_edge(
        self, index: int | None, process: int, event: Connection, number: int = 1
    ) -> None:
        key = (index, process, event)
        if key in self._edges or len(self._edges) < MAX_EDGES:
            self._edges[key] += number
        else:
            self.num_left += number

    def _describe(self, index: int | None, event: Event) -> None:
        if index is None:
            return
        one = self._all[index]
        match event:
            case Timing(total_ns=total_ns):
                one.init_ns = max(one.init_ns or 0, total_ns)
            case Channels():
                one.channels = event
            case Nodes(num_nodes=num_nodes):
                one.num_nodes = num_nodes
            case Ring(channel=channel, ranks=ranks) if self._has_room(len(ranks)):
                one.rings[channel] = ranks
            case Trees(places=places) if self._has_room(len(places)):
                for channel, rank, above in places:
                    one.trees[channel][rank] = above

    def _has_room(self, number: int) -> bool:
        self._num_places += number
        if self._num_places <= MAX_PLACES:
            return True
        self.num_left += 1
        return False

    def _made(self, index: int, one: _Open) -> NcclCommunicator:
        everyone = set(range(one.num_ranks)) if one.rings and one.num_ranks < MAX_MEMBERS else set()
        rings = [one.rings[c] for c in sorted(one.rings) if set(one.rings[c]) == everyone]
        depths = (_depth(above, one.num_ranks) for _, above in sorted(one.trees.items()))
        return NcclCommunicator(
            name=one.identity or str(index),
            num_ranks=one.num_ranks,
            members=tuple(member for _, member in sorted(one.members.items())),
            is_certain=bool(one.identity) or self._have_same_members(one.num_ranks),
            init_ns=one.init_ns,
            num_channels=one.channels.collective if one.channels else None,
            num_nvls_channels=one.channels.nvls if one.channels else None,
            rings=tuple(rings),
            tree_depths=tuple(depth for depth in depths if depth is not None),
            num_nodes=one.num_nodes,
        )

    def _have_same_members(self, num_ranks: int) -> bool:
        """Whether all communicators of a size without an id have the same members."""
        if num_ranks not in self._same_members:
            first, *others = [self._all[index] for index in self._by_size[num_ranks]]
            members = {rank: member.process for rank, member in first.members.items()}
            self._same_members[num_ranks] = all(
                members.get(rank) == member.process
                for other in others
                for rank, member in other.members.items()
            )
        return self._same_members[num_ranks]


def _depth(above: dict[int, int], num_ranks: int) -> int | None:
    """Steps from the root of a tree to its farthest rank; None if the tree is incomplete."""
    if len(above) != num_ranks or sum(up == _NO_ONE for up in above.values()) != 1:
        return None
    depth: dict[int, int] = {_NO_ONE: -1}
    for rank in above:
        path = []
        while rank not in depth:
            path.append(rank)
            if len(path) > num_ranks or rank not in above:
                return None
            rank = above[rank]
        first = depth[rank] + 1
        depth.update({passed: first + i for i, passed in enumerate(reversed(path))})
    return max(depth.values())
