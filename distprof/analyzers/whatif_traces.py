"""A traced run as a graph of dependencies, simulated to the measured steps.

Operations are the segments of every rank's main line (:mod:`distprof.analyzers.segments`), one
after another, and what is transferred between ranks: a collective starts when the last member has
asked for it and no earlier one on its stream is still running, and a rank that needs it goes on
after its end. So waiting comes out of the simulation, and shrinks or moves when durations change.

A transfer lasts from the last member's start to the first member's end; members that end later do
so by a delay. A collective that could not be matched lasts as long as it did on its rank. Of
messages without transfer times only the time at which ranks were blocked is known: they are, from
when both ends had been posted, until the rank went on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from distprof.analyzers.context import MainLine, RankAnalysis
from distprof.analyzers.matched import RowIndex
from distprof.analyzers.segments import QUEUED_NS
from distprof.replay import Graph, Times, simulate
from distprof.run.run import Rank, Run
from distprof.schema import ABSENT, Int64Array
from distprof.terms import CollectiveKind

__all__ = ["TraceGraph", "Transfers", "trace_graph"]

_SYMMETRIC = [int(kind) for kind in CollectiveKind if kind.is_symmetric]
_MESSAGES = (int(CollectiveKind.SEND), int(CollectiveKind.RECV))


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfers:
    """Operations between ranks, J of them; their nodes follow those of the segments.

    Args:
        duration_ns: int64.
        kind: int8, a CollectiveKind.
        axis: int32, index into the graph's ``axis_names``; ABSENT for messages of unknown group.
        bytes: int64, ABSENT where unknown.
        owner: int32, position of the rank; ABSENT where several ranks take part.
        is_joined: bool, whether its members are known, so that the duration holds no waiting.
        release_ns: int64, before which it cannot start: a member asked for it outside of the line.
    """

    duration_ns: Int64Array
    kind: NDArray[np.int8]
    axis: NDArray[np.int32]
    bytes: Int64Array
    owner: NDArray[np.int32]
    is_joined: NDArray[np.bool_]
    release_ns: Int64Array

    def __len__(self) -> int:
        return len(self.duration_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceGraph:
    """A run of P ranks and W windows as S segments and J transfers.

    Args:
        ranks: Global ranks.
        owner: int32 per segment, position of its rank.
        own_ns: int64, shape ``(S, len(Own))``.
        transfers: What happens between ranks.
        axis_names: Mesh axes or group descriptions.
        graph: What waits for what; nodes are segments, then transfers.
        delay_ns: int64 per edge.
        edge_transfer: int64 per edge, the transfer whose end it passes on; ABSENT for others.
        release_ns: int64 per node.
        opens: int64, shape ``(P, W)``, the segment that each window starts with.
        closes: int64, the segment that starts at its end.
        measured_ns: int64, shape ``(P, W)``, lengths of the windows.
        asked_segment: int64 per collective of the lines, in order of rank and start: the segment
            after which it was asked for.
        asked_kind: int8, its kind.
        asked_axis: int32, its axis.
        asked_bytes: int64, its size.
    """

    ranks: tuple[int, ...]
    owner: NDArray[np.int32]
    own_ns: Int64Array
    transfers: Transfers
    axis_names: tuple[str, ...]
    graph: Graph
    delay_ns: Int64Array
    edge_transfer: Int64Array
    release_ns: Int64Array
    opens: Int64Array
    closes: Int64Array
    measured_ns: Int64Array
    asked_segment: Int64Array
    asked_kind: NDArray[np.int8]
    asked_axis: NDArray[np.int32]
    asked_bytes: Int64Array

    @property
    def num_segments(self) -> int:
        """S."""
        return len(self.owner)

    def label(self, transfer: int) -> str:
        """Kind and axis of a transfer, for example ``all_reduce dp``."""
        kind = CollectiveKind(int(self.transfers.kind[transfer])).label
        axis = int(self.transfers.axis[transfer])
        return f"{kind} {self.axis_names[axis]}" if axis != ABSENT else kind

    def classes(self) -> list[tuple[str, NDArray[np.bool_]]]:
        """Joined transfers by kind and axis, as masks over transfers; most time first."""
        known = self.transfers
        code = known.kind.astype(np.int64) * (len(self.axis_names) + 1) + known.axis + 1
        rows = np.flatnonzero(known.is_joined)
        codes, first, inverse = np.unique(code[rows], return_index=True, return_inverse=True)
        total = np.bincount(inverse, weights=known.duration_ns[rows], minlength=len(codes))
        order = [i for i in np.argsort(-total, kind="stable").tolist() if total[i] > 0]
        return [
            (self.label(int(rows[first[i]])), (code == codes[i]) & known.is_joined) for i in order
        ]

    def simulate(
        self,
        own_ns: Int64Array | None = None,
        transfer_ns: Int64Array | None = None,
        delay_ns: Int64Array | None = None,
    ) -> Times:
        """When everything happens; what is not given is as recorded.

        Args:
            own_ns: Own time per segment, all kinds together, shape ``(S,)`` or ``(S, k)``.
            transfer_ns: Per transfer, shape ``(J,)`` or ``(J, k)``.
            delay_ns: Per edge, shape ``(E,)`` or ``(E, k)``.
        """
        own = self.own_ns.sum(axis=1) if own_ns is None else own_ns
        transfer = self.transfers.duration_ns if transfer_ns is None else transfer_ns
        width = max(own.shape[1:], transfer.shape[1:], key=len)
        if width:
            own, transfer = (
                np.broadcast_to(part if part.ndim > 1 else part[:, None], (len(part), *width))
                for part in (own, transfer)
            )
        return simulate(
            self.graph,
            np.concatenate((own, transfer)),
            delay=self.delay_ns if delay_ns is None else delay_ns,
            release=self.release_ns,
        )

    def window_ns(self, times: Times) -> Int64Array:
        """Length of each window as simulated, shape ``(P, W)`` or ``(P, W, k)``."""
        spans: Int64Array = times.start[self.closes] - times.start[self.opens]
        return spans


def trace_graph(run: Run, analyses: Mapping[int, RankAnalysis]) -> TraceGraph | None:
    """The graph of the analysed windows.

    Args:
        run: The recording, with matches and clock alignment.
        analyses: By global rank; each with a main line, of equally many windows.

    Returns:
        None without any window.

    Raises:
        CycleError: If what was matched contradicts itself.
    """
    lines = {rank: analysis.line for rank, analysis in analyses.items() if analysis.line}
    num_windows = {len(line.opens) for line in lines.values()}
    if len(num_windows) != 1:
        return None
    index = RowIndex.of(run, {rank: analyses[rank] for rank in lines})
    rows = _Rows.of(run, index, [lines[rank.rank] for rank in index.ranks], analyses)
    parts = [_joined(run, rows), *_blocked_in_messages(run, rows)]
    parts.insert(1, _single(rows, parts[0].row))
    return _assemble(rows, _Parts.concat(parts), analyses)


# Rows of all ranks -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rows:
    """COLLECTIVES rows of all lines, one rank after another; times since the earliest line."""

    index: RowIndex
    lines: Sequence[MainLine]
    base: Int64Array  # first segment of each rank
    start_ns: Int64Array  # on the common clock
    end_ns: Int64Array
    is_timed: NDArray[np.bool_]
    stream: Int64Array
    kind: NDArray[np.int8]
    bytes: Int64Array
    axis: NDArray[np.int32]
    axis_names: tuple[str, ...]
    issue: Int64Array  # as in the line, numbered through; ABSENT outside
    resume: Int64Array
    exposed: NDArray[np.bool_]
    begin_ns: Int64Array  # of each rank's line, common clock
    epoch_ns: int

    @staticmethod
    def of(
        run: Run,
        index: RowIndex,
        lines: Sequence[MainLine],
        analyses: Mapping[int, RankAnalysis],
    ) -> _Rows:
        base = np.concatenate(([0], np.cumsum([len(line) for line in lines]))).astype(np.int64)
        begin = [
            int(run.clock.to_common(rank.rank, np.array([line.start_ns], np.int64))[0])
            for rank, line in zip(index.ranks, lines, strict=True)
        ]
        epoch = min(begin)
        axis, names = _axes([analyses[rank.rank] for rank in index.ranks])

        def times(column: str) -> Int64Array:
            def of_rank(rank: Rank) -> Int64Array:
                return run.clock.to_common(rank.rank, rank.collectives[column]) - epoch

            return index.column(of_rank).astype(np.int64)

        def numbered(parts: Sequence[Int64Array]) -> Int64Array:
            moved = [
                np.where(part == ABSENT, ABSENT, part + low)
                for part, low in zip(parts, base.tolist(), strict=False)
            ]
            return np.concatenate(moved).astype(np.int64)

        return _Rows(
            index=index,
            lines=lines,
            base=base,
            start_ns=times("start_ns"),
            end_ns=times("end_ns"),
            is_timed=index.column(lambda rank: rank.collectives["is_timed"]).astype(np.bool_),
            stream=index.column(lambda rank: rank.collectives["stream"]),
            kind=index.column(lambda rank: rank.collectives["kind"]).astype(np.int8),
            bytes=index.column(lambda rank: rank.collectives["bytes"]),
            axis=axis,
            axis_names=names,
            issue=numbered([line.issue for line in lines]),
            resume=numbered([line.resume for line in lines]),
            exposed=np.concatenate([line.exposed for line in lines]),
            begin_ns=np.array(begin, dtype=np.int64) - epoch,
            epoch_ns=epoch,
        )

    @property
    def inside(self) -> NDArray[np.bool_]:
        """Rows that matter to some line."""
        some: NDArray[np.bool_] = (self.issue != ABSENT) | (self.resume != ABSENT)
        return some


def _axes(analyses: Sequence[RankAnalysis]) -> tuple[NDArray[np.int32], tuple[str, ...]]:
    """Axis of each row among the names of all ranks."""
    names = tuple(sorted({name for analysis in analyses for name in analysis.row_axis_names}))
    number = {name: i for i, name in enumerate(names)}
    parts = [
        np.array([number[name] for name in analysis.row_axis_names] or [0], dtype=np.int32)[
            analysis.row_axis
        ]
        for analysis in analyses
    ]
    return np.concatenate(parts).astype(np.int32), names


# Transfers ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parts:
    """Some transfers, and the rows, segments and delays by which ranks take part in them.

    ``row``, ``of`` and ``late``: row of a member, its transfer, how much later than the transfer
    the member ends. ``asks`` and ``asks_of``: further segments that a transfer waits for, beside
    those of its members. ``goes_on`` and ``goes_on_of``: further segments that wait for it.
    """

    transfers: Transfers
    row: Int64Array
    of: Int64Array
    late: Int64Array
    asks: Int64Array
    asks_of: Int64Array
    goes_on: Int64Array
    goes_on_of: Int64Array

    @staticmethod
    def concat(parts: Sequence[_Parts]) -> _Parts:
        first = np.concatenate(([0], np.cumsum([len(part.transfers) for part in parts])))

        def column(name: str, *, shift: bool = False) -> Int64Array:
            arrays = [
                getattr(part, name) + (low if shift else 0)
                for part, low in zip(parts, first.tolist(), strict=False)
            ]
            return np.concatenate(arrays).astype(np.int64)

        transfers = {
            name: np.concatenate([getattr(part.transfers, name) for part in parts])
            for name in Transfers.__dataclass_fields__
        }
        return _Parts(
            transfers=Transfers(**transfers),
            row=column("row"),
            of=column("of", shift=True),
            late=column("late"),
            asks=column("asks"),
            asks_of=column("asks_of", shift=True),
            goes_on=column("goes_on"),
            goes_on_of=column("goes_on_of", shift=True),
        )


_NOTHING = np.empty(0, np.int64)


def _joined(run: Run, rows: _Rows) -> _Parts:
    """Matched collectives of which every member waits for the last."""
    members = rows.index.members(run.matches)
    size = np.diff(members.offsets)
    filled = np.flatnonzero(size > 0)
    first = members.offsets[:-1][filled]
    if len(filled) == 0:
        return _parts_of(rows, _NOTHING, _NOTHING, _NOTHING, _NOTHING, _NOTHING)
    row = members.row
    last_start = np.maximum.reduceat(rows.start_ns[row], first)
    first_end = np.minimum.reduceat(rows.end_ns[row], first)
    shortest = np.minimum.reduceat((rows.end_ns - rows.start_ns)[row], first)
    timed = np.minimum.reduceat(rows.is_timed[row], first) > 0
    inside = np.maximum.reduceat(rows.inside[row], first) > 0
    kind, one_clock = run.matches.kind[filled], _one_clock(run, rows, row, first)
    waits = np.isin(kind, _SYMMETRIC) | (first_end >= last_start) | ~one_clock
    chosen = timed & inside & waits & (size[filled] > 1)
    duration = np.where(one_clock, np.maximum(first_end - last_start, 0), shortest)
    end = np.where(one_clock, last_start + duration, 0)
    of = np.cumsum(chosen) - 1
    member_chosen, member_of = np.repeat(chosen, size[filled]), np.repeat(of, size[filled])
    late = rows.end_ns[row] - np.repeat(end, size[filled])
    late = np.where(np.repeat(one_clock, size[filled]), late, 0)
    return _parts_of(
        rows,
        duration[chosen],
        row[first][chosen],
        row[member_chosen],
        member_of[member_chosen],
        late[member_chosen],
        kind=kind[chosen],
    )


def _one_clock(run: Run, rows: _Rows, row: Int64Array, first: Int64Array) -> NDArray[np.bool_]:
    """Instances whose members' clocks can be compared."""
    component = np.array(
        [run.clock.component[run.clock.domain_of(rank.rank)] for rank in rows.index.ranks]
    )
    of_member = component[rows.index.rank_index[row]]
    same: NDArray[np.bool_] = np.minimum.reduceat(of_member, first) == np.maximum.reduceat(
        of_member, first
    )
    return same


def _parts_of(
    rows: _Rows,
    duration: Int64Array,
    example: Int64Array,
    row: Int64Array,
    of: Int64Array,
    late: Int64Array,
    *,
    kind: NDArray[np.int8] | None = None,
    owner: NDArray[np.int32] | None = None,
) -> _Parts:
    """Transfers of which ``example`` is one row each."""
    release = np.zeros(len(duration), dtype=np.int64)
    unasked = row[rows.issue[row] == ABSENT]
    np.maximum.at(release, of[rows.issue[row] == ABSENT], rows.start_ns[unasked])
    shared = np.full(len(duration), ABSENT, dtype=np.int32)
    return _Parts(
        transfers=Transfers(
            duration_ns=duration.astype(np.int64),
            kind=(rows.kind[example] if kind is None else kind).astype(np.int8),
            axis=rows.axis[example].astype(np.int32),
            bytes=rows.bytes[example].astype(np.int64),
            owner=shared if owner is None else owner,
            is_joined=np.full(len(duration), owner is None),
            release_ns=release,
        ),
        row=row,
        of=of,
        late=late,
        asks=_NOTHING,
        asks_of=_NOTHING,
        goes_on=_NOTHING,
        goes_on_of=_NOTHING,
    )


def _single(rows: _Rows, joined_row: Int64Array) -> _Parts:
    """Timed rows without partners: they last as long as they did."""
    alone = rows.inside & rows.is_timed
    alone[joined_row] = False
    row = np.flatnonzero(alone)
    return _parts_of(
        rows,
        (rows.end_ns - rows.start_ns)[row],
        row,
        row,
        np.arange(len(row), dtype=np.int64),
        np.zeros(len(row), np.int64),
        owner=rows.index.rank_index[row],
    )


# Messages without transfer times -----------------------------------------------------------------


def _blocked_in_messages(run: Run, rows: _Rows) -> list[_Parts]:
    """One transfer per time that a rank was blocked in sends and receives."""
    own, partner = _partners(run, rows)
    return [
        _blocked_on_rank(run, rows, position, own, partner)
        for position, line in enumerate(rows.lines)
        if len(line.wait_end_ns)
    ]


def _partners(run: Run, rows: _Rows) -> tuple[Int64Array, Int64Array]:
    """Rows of matched messages without transfer times, and the row of each other end."""
    members = rows.index.members(run.matches)
    pairs = np.flatnonzero(np.isin(run.matches.kind, _MESSAGES) & (np.diff(members.offsets) == 2))
    first = members.row[members.offsets[:-1][pairs]]
    second = members.row[members.offsets[:-1][pairs] + 1]
    own, partner = np.concatenate((first, second)), np.concatenate((second, first))
    usable = ~rows.is_timed[own] & ~rows.is_timed[partner]
    return own[usable], partner[usable]


def _blocked_on_rank(
    run: Run, rows: _Rows, position: int, own: Int64Array, partner: Int64Array
) -> _Parts:
    """Its waits: each is over after the messages that were ready before its end, not earlier."""
    line, rank = rows.lines[position], rows.index.ranks[position].rank
    start, end = (
        run.clock.to_common(rank, time) - rows.epoch_ns
        for time in (line.wait_start_ns, line.wait_end_ns)
    )
    mine = (rows.index.rank_index[own] == position) & (rows.issue[partner] != ABSENT)
    own, partner = own[mine], partner[mine]
    ready = np.maximum(rows.start_ns[own], rows.start_ns[partner])
    wait = np.searchsorted(end, ready, side="left")
    own, partner, ready = (part[wait < len(end)] for part in (own, partner, ready))
    wait = wait[wait < len(end)]
    begins = start.copy()
    np.maximum.at(begins, wait, ready)
    joined = np.zeros(len(end), dtype=np.bool_)
    joined[wait] = True
    resume = line.wait_resume + rows.base[position]
    axis = np.full(len(end), ABSENT, dtype=np.int32)
    axis[wait] = rows.axis[own]
    return _Parts(
        transfers=Transfers(
            duration_ns=np.maximum(end - begins, 0),
            kind=np.full(len(end), CollectiveKind.SEND_RECV, np.int8),
            axis=axis,
            bytes=np.full(len(end), ABSENT, np.int64),
            owner=np.full(len(end), position, np.int32),
            is_joined=joined,
            release_ns=np.zeros(len(end), np.int64),
        ),
        row=_NOTHING,
        of=_NOTHING,
        late=_NOTHING,
        asks=np.concatenate((resume - 1, rows.issue[partner])),
        asks_of=np.concatenate((np.arange(len(end), dtype=np.int64), wait)),
        goes_on=resume,
        goes_on_of=np.arange(len(end), dtype=np.int64),
    )


# The graph ---------------------------------------------------------------------------------------


def _assemble(rows: _Rows, parts: _Parts, analyses: Mapping[int, RankAnalysis]) -> TraceGraph:
    num_segments = int(rows.base[-1])
    issue, resume = rows.issue[parts.row], rows.resume[parts.row]
    asks, goes_on = issue != ABSENT, resume != ABSENT
    follower, leader, leader_late = _stream_order(rows, parts)
    chain = np.setdiff1d(np.arange(1, num_segments, dtype=np.int64), rows.base, assume_unique=True)
    none = np.full(len(chain), ABSENT, dtype=np.int64)
    edges = (
        # source, target, delay, transfer whose end it passes on
        (chain - 1, chain, 0 * chain, none),
        *(
            (source, num_segments + of, 0 * of, np.full(len(of), ABSENT, np.int64))
            for source, of in ((issue[asks], parts.of[asks]), (parts.asks, parts.asks_of))
        ),
        (num_segments + leader, num_segments + follower, leader_late, leader),
        (
            num_segments + parts.of[goes_on],
            resume[goes_on],
            parts.late[goes_on],
            parts.of[goes_on],
        ),
        (num_segments + parts.goes_on_of, parts.goes_on, 0 * parts.goes_on, parts.goes_on_of),
    )
    source, target, delay, transfer = (
        np.concatenate(column).astype(np.int64) for column in zip(*edges, strict=True)
    )
    release = np.zeros(num_segments + len(parts.transfers), dtype=np.int64)
    release[rows.base[:-1]] = rows.begin_ns
    release[num_segments:] = parts.transfers.release_ns
    asked = np.flatnonzero(rows.issue != ABSENT)
    ranks = tuple(rank.rank for rank in rows.index.ranks)
    return TraceGraph(
        ranks=ranks,
        owner=np.repeat(np.arange(len(ranks), dtype=np.int32), np.diff(rows.base)),
        own_ns=np.concatenate([line.own_ns for line in rows.lines]),
        transfers=parts.transfers,
        axis_names=rows.axis_names,
        graph=Graph.of(len(release), source, target),
        delay_ns=delay,
        edge_transfer=transfer,
        release_ns=release,
        opens=np.stack([line.opens for line in rows.lines]) + rows.base[:-1, None],
        closes=np.stack([line.closes for line in rows.lines]) + rows.base[:-1, None],
        measured_ns=np.array([[s.span_ns for s in analyses[r].steps] for r in ranks], np.int64),
        asked_segment=rows.issue[asked],
        asked_kind=rows.kind[asked],
        asked_axis=rows.axis[asked],
        asked_bytes=rows.bytes[asked],
    )


def _stream_order(rows: _Rows, parts: _Parts) -> tuple[Int64Array, Int64Array, Int64Array]:
    """Transfers that follow another on a member's stream, that one, and its delay there.

    Where the rank asked for the later one after going on from the earlier, its line says so.
    """
    rank = rows.index.rank_index[parts.row].astype(np.int64)
    stream = rows.stream[parts.row]
    order = np.lexsort((rows.start_ns[parts.row], stream, rank))
    before, after = order[:-1], order[1:]
    same = (rank[before] == rank[after]) & (stream[before] == stream[after])
    row_before, row_after = parts.row[before], parts.row[after]
    same &= (rows.end_ns[row_before] <= rows.start_ns[row_after]) & (stream[before] != ABSENT)
    known = rows.exposed[row_before] & (rows.resume[row_before] <= rows.issue[row_after])
    kept = same & ~known & (parts.of[before] != parts.of[after])
    pause = (rows.start_ns[row_after] - rows.end_ns[row_before])[kept]
    pause = np.where(pause <= QUEUED_NS, pause, 0)
    return parts.of[after[kept]], parts.of[before[kept]], parts.late[before[kept]] + pause
