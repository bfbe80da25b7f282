"""A traced run as a graph of dependencies, simulated to the measured steps, and its critical path.

Operations are the segments of every rank's main line, one after another
(:mod:`distprof.sections.whatif.segments`), and the transfers between ranks. A collective starts
when the last member has issued it and no earlier one on its stream is still running. A rank that
needs it continues after its end. Waiting is therefore a result of the simulation, and shrinks or
moves if durations change.

A transfer lasts from the last member's start to the first member's end; members that end later have
an additional delay. A collective that could not be matched keeps its duration on its rank, and a
message without a transfer time lasts from when both ends had been posted until the rank continued.

The critical path is the chain of operations that the run's end waited for. Waiting on it means
unknown causes, collectives that could not be matched, and messages whose other end was not seen.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from distprof.replay import Graph, Times, critical_path, simulate
from distprof.run.run import Run
from distprof.schema import ABSENT, Bools, Floats, Int64Array
from distprof.sections.context import LaunchBounds, MainLine, Own, Part, RankAnalysis
from distprof.sections.matched import RowIndex
from distprof.sections.whatif import PathShare
from distprof.sections.whatif.line_rows import LineRows, TransferParts, Transfers, transfers_of
from distprof.sections.whatif.segments import QUEUED_NS
from distprof.terms import CollectiveKind

_NEVER = -(1 << 52)
"""Delay of an edge that holds nothing back."""


class CopyEdges(msgspec.Struct, frozen=True, kw_only=True):
    """Edges to collectives that waited for a copy from the CPU, arrays of equal length."""

    position: NDArray[np.int32]  # int32, position of the rank that copied.
    held: Int64Array  # int64, the edge by which the collective waits for the copy.
    unheld: Int64Array  # int64, the edge by which it waits for all the rest.
    wait_ns: Int64Array  # int64, how long it waited for the copy.

    def left(self, num_ranks: int) -> Floats:
        """Share of each rank's waits that is left if it copies as fast as the median of all."""
        total = np.bincount(self.position, weights=self.wait_ns, minlength=num_ranks)
        usual = float(np.median(total))
        return np.minimum(usual / np.maximum(total, 1.0), 1.0)


class TraceGraph(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """A run of P ranks and W windows as S segments and J transfers."""

    ranks: tuple[int, ...]  # Global ranks.
    owner: NDArray[np.int32]  # int32 per segment, position of its rank.
    own_ns: Int64Array  # int64, shape ``(S, len(Own))``.
    parts_ns: Mapping[Part, Int64Array]  # Named parts of own time, int64 per segment.
    stage_ns: Int64Array  # int64 per segment, computation inside the marks of pipeline stages.
    # int32 per segment, the stage that computes most in it; ABSENT for none.
    stage: NDArray[np.int32]
    transfers: Transfers  # Transfers between ranks.
    axis_names: tuple[str, ...]  # Mesh axes or group descriptions.
    graph: Graph  # Dependencies; nodes are segments, then transfers.
    delay_ns: Int64Array  # int64 per edge.
    # int64 per edge, the transfer whose end it propagates; ABSENT for others.
    edge_transfer: Int64Array
    # int32 per edge, position of the rank whose CPU launches the target no sooner; ABSENT for
    # others.
    launcher: NDArray[np.int32]
    copies: CopyEdges  # Collectives that waited for copies from the CPU.
    # int64, shape ``(P,)``: how much longer than its own time launches would make a window of each
    # rank, mean over analysed windows.
    held_ns: Int64Array
    release_ns: Int64Array  # int64 per node.
    opens: Int64Array  # int64, shape ``(P, W)``, the segment that each window starts with.
    closes: Int64Array  # int64, the segment that starts at its end.
    measured_ns: Int64Array  # int64, shape ``(P, W)``, lengths of the windows.
    # int64 per collective of the lines, ascending: the segment after which it was issued.
    issued_segment: Int64Array
    issued_kind: NDArray[np.int8]  # int8, its kind.
    issued_axis: NDArray[np.int32]  # int32, its axis.
    issued_bytes: Int64Array  # int64, its size.
    first_window: int  # Index of the first of the W windows among the analysed ones.
    num_analysed: int  # Analysed windows, W unless these are a sample of them.

    @cached_property
    def own_total_ns(self) -> Int64Array:
        """Own time of each segment, int64; read-only."""
        own: Int64Array = self.own_ns.sum(axis=1)
        own.setflags(write=False)
        return own

    @property
    def usual(self) -> dict[str, Int64Array]:
        """What a change can replace, by its name in a change and in :meth:`simulate`."""
        return {
            "own_ns": self.own_total_ns,
            "transfer_ns": self.transfers.duration_ns,
            "delay_ns": self.delay_ns,
            "release_ns": self.release_ns,
        }

    @property
    def is_sample(self) -> bool:
        """Whether some analysed windows are not part of it."""
        return bool(self.opens.shape[1] < self.num_analysed)

    @property
    def windows(self) -> slice:
        """Its windows among the analysed ones."""
        return slice(self.first_window, self.first_window + self.opens.shape[1])

    @property
    def num_segments(self) -> int:
        """S."""
        return len(self.owner)

    def label(self, transfer: int) -> str:
        """Kind and axis of a transfer, for example ``all_reduce dp``."""
        kind = CollectiveKind(int(self.transfers.kind[transfer])).label
        axis = int(self.transfers.axis[transfer])
        return f"{kind} {self.axis_names[axis]}" if axis != ABSENT else kind

    def classes(self) -> list[tuple[str, Bools]]:
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

    @property
    def begins(self) -> Int64Array:
        """The first segment of each rank."""
        return np.searchsorted(self.owner, np.arange(len(self.ranks)))

    def launched_in_time(self, positions: Collection[int] | None = None) -> Int64Array | None:
        """Delays of edges if the CPUs of these ranks, or of all, hold nothing back."""
        held = self.launcher != ABSENT
        if positions is not None:
            held &= np.isin(self.launcher, list(positions))
        return np.where(held, _NEVER, self.delay_ns) if held.any() else None

    def copied_in_time(
        self, delay_ns: Int64Array | None, positions: Collection[int] | None = None
    ) -> Int64Array | None:
        """Delays of edges if no collective waits for a copy; None for no change.

        Ranks at these positions copy as fast as the median of all, instead of all ranks instantly.
        """
        copies = self.copies
        chosen = np.ones(len(copies.held), dtype=np.bool_)
        left = np.zeros(len(self.ranks))
        if positions is not None:
            chosen = np.isin(copies.position, list(positions))
            left = copies.left(len(self.ranks))
        if not chosen.any():
            return delay_ns
        result = (self.delay_ns if delay_ns is None else delay_ns).copy()
        result[copies.held[chosen]] = _NEVER
        wait_ns = copies.wait_ns[chosen] * left[copies.position[chosen]]
        result[copies.unheld[chosen]] = np.rint(wait_ns)
        return result

    def kept_up(self, positions: Collection[int]) -> Int64Array | None:
        """Delays of edges if the CPUs of ranks launch in time, and their copies take no longer."""
        return self.copied_in_time(self.launched_in_time(positions), positions)

    def without_launch_bounds(self) -> TraceGraph:
        """The same run with all launches in time, except for idle time in own time."""
        delay = self.launched_in_time()
        return self if delay is None else replace(self, delay_ns=delay)

    def simulate(
        self,
        own_ns: Int64Array | None = None,
        transfer_ns: Int64Array | None = None,
        delay_ns: Int64Array | None = None,
        release_ns: Int64Array | None = None,
    ) -> Times:
        """Simulated times of all operations; arguments not given are as recorded.

        Values are per segment, transfer, edge and node, for example ``(S,)`` or ``(S, k)``.
        """
        own = self.own_total_ns if own_ns is None else own_ns
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
            release=self.release_ns if release_ns is None else release_ns,
        )

    def window_ns(self, times: Times) -> Int64Array:
        """Length of each window as simulated, shape ``(P, W)`` or ``(P, W, k)``."""
        spans: Int64Array = times.start[self.closes] - times.start[self.opens]
        return spans


def trace_graph(run: Run, analyses: Mapping[int, RankAnalysis]) -> TraceGraph | None:
    """The graph of the analysed windows; None without any, CycleError for contradictory matches."""
    lines = {rank: analysis.line for rank, analysis in analyses.items() if analysis.line}
    spans = {(line.first_window, len(line.opens)) for line in lines.values()}
    if len(spans) != 1:
        return None
    index = RowIndex.of(run, {rank: analyses[rank] for rank in lines})
    of_ranks = [lines[rank.rank] for rank in index.ranks]
    num_analysed = max(len(analysis.steps) for analysis in analyses.values())
    if next(iter(spans))[1] < num_analysed:
        # The rows that affect lines which cover a part of the recording
        low = np.array([line.first_row for line in of_ranks], dtype=np.int64)
        length = np.array([len(line.issue) for line in of_ranks], dtype=np.int64)
        index = index.cut(low, low + length)
    rows = LineRows.of(run, index, of_ranks, analyses)
    return _assemble(rows, transfers_of(run, rows), analyses)


# The graph ---------------------------------------------------------------------------------------


def _assemble(
    rows: LineRows, parts: TransferParts, analyses: Mapping[int, RankAnalysis]
) -> TraceGraph:
    num_segments = int(rows.base[-1])
    issue, resume = rows.issue[parts.row], rows.resume[parts.row]
    has_issue, has_resume = issue != ABSENT, resume != ABSENT
    follower, leader, leader_late = (
        np.concatenate(both)
        for both in zip(_stream_order(rows, parts), _results(rows, parts), strict=True)
    )
    chain = np.setdiff1d(np.arange(1, num_segments, dtype=np.int64), rows.base, assume_unique=True)
    launched = _launch_edges(rows)
    copied = np.flatnonzero(has_issue & (rows.unheld[parts.row] != ABSENT))
    first = num_segments  # of the transfers
    edges = (
        # source, target, delay, transfer whose end it propagates
        (chain - 1, chain, 0, ABSENT),
        (issue[has_issue], first + parts.of[has_issue], 0, ABSENT),
        (parts.needs, first + parts.needs_of, 0, ABSENT),
        (first + leader, first + follower, leader_late, leader),
        (first + parts.sent, first + parts.received, 0, parts.sent),
        (
            first + parts.of[has_resume],
            resume[has_resume],
            parts.late[has_resume],
            parts.of[has_resume],
        ),
        (first + parts.unblocks_of, parts.unblocks, 0, parts.unblocks_of),
        (rows.unheld[parts.row[copied]], first + parts.of[copied], 0, ABSENT),
        (launched.after, launched.segment, launched.delay_ns, ABSENT),
    )
    source, target, delay, transfer = (
        np.concatenate(column).astype(np.int64)
        for column in zip(*(np.broadcast_arrays(*edge) for edge in edges), strict=True)
    )
    release = np.zeros(num_segments + len(parts.transfers), dtype=np.int64)
    release[rows.base[:-1]] = rows.begin_ns
    release[num_segments:] = parts.transfers.release_ns
    issued = np.flatnonzero(rows.issue != ABSENT)
    issued = issued[np.argsort(rows.issue[issued], kind="stable")]  # one may start before its turn
    ranks = tuple(rank.rank for rank in rows.index.ranks)
    first, num = rows.lines[0].first_window, len(rows.lines[0].opens)
    owner = np.repeat(np.arange(len(ranks), dtype=np.int32), np.diff(rows.base))
    launcher = np.full(len(source), ABSENT, dtype=np.int32)
    launcher[len(source) - len(launched.after) :] = owner[launched.segment]
    return TraceGraph(
        ranks=ranks,
        owner=owner,
        own_ns=np.concatenate([line.own_ns for line in rows.lines]),
        parts_ns=_by_segment(rows.lines),
        stage_ns=np.concatenate([line.stage_ns for line in rows.lines]),
        stage=np.concatenate([line.stage for line in rows.lines]),
        transfers=parts.transfers,
        axis_names=rows.axis_names,
        graph=Graph.of(len(release), source, target),
        delay_ns=delay,
        edge_transfer=transfer,
        launcher=launcher,
        copies=CopyEdges(
            position=owner[rows.unheld[parts.row[copied]]],
            held=len(chain) + (np.cumsum(has_issue) - 1)[copied],
            unheld=len(source) - len(launched.after) - len(copied) + np.arange(len(copied)),
            wait_ns=rows.copy_ns[parts.row[copied]],
        ),
        held_ns=np.array([round(line.held_ns.mean()) for line in rows.lines], np.int64),
        release_ns=release,
        opens=np.stack([line.opens for line in rows.lines]) + rows.base[:-1, None],
        closes=np.stack([line.closes for line in rows.lines]) + rows.base[:-1, None],
        measured_ns=np.array(
            [[s.span_ns for s in analyses[r].steps[first : first + num]] for r in ranks], np.int64
        ),
        issued_segment=rows.issue[issued],
        issued_kind=rows.kind[issued],
        issued_axis=rows.axis[issued],
        issued_bytes=rows.bytes[issued],
        first_window=first,
        num_analysed=max(len(analyses[r].steps) for r in ranks),
    )


def _by_segment(lines: Sequence[MainLine]) -> dict[Part, Int64Array]:
    """Named parts of own time, for the segments of all lines."""
    return {
        part: np.concatenate(
            [line.parts_ns.get(part, np.zeros(len(line), np.int64)) for line in lines]
        )
        for part in dict.fromkeys(part for line in lines for part in line.parts_ns)
    }


def _launch_edges(rows: LineRows) -> LaunchBounds:
    """The bounds of all lines, with segments numbered across ranks."""
    parts = [line.bounds for line in rows.lines]
    base = np.repeat(rows.base[:-1], [len(part.after) for part in parts])
    return LaunchBounds(
        after=np.concatenate([part.after for part in parts]) + base,
        segment=np.concatenate([part.segment for part in parts]) + base,
        delay_ns=np.concatenate([part.delay_ns for part in parts]),
        excess_ns=np.concatenate([part.excess_ns for part in parts]),
    )


def _stream_order(
    rows: LineRows, parts: TransferParts
) -> tuple[Int64Array, Int64Array, Int64Array]:
    """Transfers that follow another on a member's stream, the earlier one, and its delay there."""
    # Pairs whose order is already in the rank's line are left out.
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


def _results(rows: LineRows, parts: TransferParts) -> tuple[Int64Array, Int64Array, Int64Array]:
    """Transfers that wait for one on another stream of a member, that transfer, and its delay."""
    transfer = np.full(len(rows.kind), ABSENT, dtype=np.int64)
    late = np.zeros(len(rows.kind), dtype=np.int64)
    transfer[parts.row], late[parts.row] = parts.of, parts.late
    row = np.flatnonzero((rows.leader != ABSENT) & (transfer != ABSENT))
    leader = rows.leader[row]
    known = (transfer[leader] != ABSENT) & (transfer[leader] != transfer[row])
    row, leader = row[known], leader[known]
    pause = rows.start_ns[row] - rows.end_ns[leader]
    return transfer[row], transfer[leader], late[leader] + pause


# The critical path --------------------------------------------------------------------------------

_Class = tuple[int | None, str, str]  # rank, kind, name

_OWN = {
    Own.COMPUTATION: ("compute", "computation"),
    Own.COPY: ("compute", "copies"),
    Own.HOST: ("launch", "late launches"),
    Own.INPUT: ("other", "input"),
    Own.SYNC: ("launch", "synchronising call"),
    Own.PAUSE: ("launch", "pause of the CPU"),
    Own.OTHER: ("other", "idle"),
}


def node_names(graph: TraceGraph, nodes: Int64Array) -> Iterator[str]:
    """Readable name of each operation: ``rank 3: computation``, ``transfer, all_reduce dp``."""
    for node in nodes.tolist():
        if node < graph.num_segments:
            kind = _OWN[Own(int(graph.own_ns[node].argmax()))][1]
            yield f"rank {graph.ranks[graph.owner[node]]}: {kind}"
            continue
        transfer = node - graph.num_segments
        owner = int(graph.transfers.owner[transfer])
        of = "" if owner == ABSENT else f"rank {graph.ranks[owner]}: "
        what = "transfer" if graph.transfers.is_joined[transfer] else "unmatched"
        yield f"{of}{what}, {graph.label(transfer)}"


def path_shares(graph: TraceGraph, times: Times, step_ns: int) -> tuple[PathShare, ...]:
    """The path by rank and class, largest share first; the times add up to the step exactly."""
    path = critical_path(graph.graph, times, delay=graph.delay_ns)
    if len(path) == 0:
        return ()
    begin = times.start[path]
    length = np.diff(begin, append=times.end[path[-1]])
    total = float(length.sum())
    if total <= 0:
        return ()
    found: dict[_Class, float] = defaultdict(float)
    is_segment = path < graph.num_segments
    # own time of ranks, by how each segment was spent
    segments = path[is_segment]
    own = graph.own_ns[segments].astype(np.float64)
    own *= (length[is_segment] / np.maximum(own.sum(axis=1), 1))[:, None]
    for position in np.unique(graph.owner[segments]).tolist():
        of_rank = own[graph.owner[segments] == position].sum(axis=0)
        for column, (kind, name) in _OWN.items():
            if of_rank[column] > 0:
                found[graph.ranks[position], kind, name] += float(of_rank[column])
    _add_transfers(graph, path[~is_segment] - graph.num_segments, length[~is_segment], found)
    order = sorted(found, key=lambda key: (-found[key], str(key)))
    shares = [found[key] / total for key in order]
    # Integer parts that add up to the total: rounded down, the largest take the remainder
    parts = [int(share * step_ns) for share in shares]
    for i in range(min(step_ns - sum(parts), len(parts))):
        parts[i] += 1
    return tuple(
        PathShare(rank=rank, kind=kind, name=name, ns_per_step=ns, share_ratio=share)
        for (rank, kind, name), ns, share in zip(order, parts, shares, strict=True)
    )


def _add_transfers(
    graph: TraceGraph, transfers: Int64Array, length: Int64Array, found: dict[_Class, float]
) -> None:
    """Add transfers by class, and unmatched ones by rank."""
    known = graph.transfers
    columns = (known.kind, known.axis, known.owner, known.is_joined)
    keys = np.stack([column[transfers].astype(np.int64) for column in columns], axis=1)
    classes, first, inverse = np.unique(keys, axis=0, return_index=True, return_inverse=True)
    total = np.bincount(inverse.ravel(), weights=length, minlength=len(classes))
    for (_, _, owner, is_joined), where, ns in zip(classes.tolist(), first, total, strict=True):
        if ns > 0:
            rank = graph.ranks[owner] if owner != ABSENT else None
            label = graph.label(int(transfers[where]))
            found[rank, "transfer" if is_joined else "wait", label] += float(ns)
