"""Collectives of the main lines of all ranks, as columns, from which a run's graph is built."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from distprof.run.run import Rank, Run
from distprof.schema import ABSENT, Bools, Int64Array
from distprof.sections.context import MainLine, RankAnalysis
from distprof.sections.gradients.measure import needless_rows, unhidden_rows
from distprof.sections.matched import RowIndex, places
from distprof.terms import CollectiveKind


class LineRows(msgspec.Struct, frozen=True, kw_only=True):
    """COLLECTIVES rows of all lines, one rank after another; times since the earliest line."""

    index: RowIndex
    lines: Sequence[MainLine]
    base: Int64Array  # first segment of each rank
    start_ns: Int64Array  # on the common clock
    end_ns: Int64Array
    is_timed: Bools
    stream: Int64Array
    kind: NDArray[np.int8]
    bytes: Int64Array
    step: NDArray[np.int32]
    axis: NDArray[np.int32]
    axis_names: tuple[str, ...]
    issue: Int64Array  # as in the line, numbered across ranks; ABSENT outside
    leader: Int64Array  # row on another stream whose end each waited for; ABSENT for none
    unheld: Int64Array  # where each would have been issued without a copy; ABSENT for no copy
    copy_ns: Int64Array
    resume: Int64Array
    exposed: Bools
    begin_ns: Int64Array  # of each rank's line, common clock
    epoch_ns: int
    is_needless: Bools  # gradients that are reduced again before the update
    unhidden: NDArray[np.float32]  # share that cannot overlap: the last bucket's

    @staticmethod
    def of(
        run: Run, index: RowIndex, lines: Sequence[MainLine], analyses: Mapping[int, RankAnalysis]
    ) -> LineRows:
        """Rows of the ranks in ``index``, with ``lines`` in the same order."""
        base = np.concatenate(([0], np.cumsum([len(line) for line in lines]))).astype(np.int64)
        line_of = {rank.rank: line for rank, line in zip(index.ranks, lines, strict=True)}
        begin = np.array(
            [
                int(run.clock.to_common(rank, np.array([line.start_ns], np.int64))[0])
                for rank, line in line_of.items()
            ],
            dtype=np.int64,
        )
        epoch = int(begin.min())
        first_segment = np.repeat(base[:-1], np.diff(index.base))

        def times(name: str) -> Int64Array:
            common = index.column(
                lambda rank: run.clock.to_common(rank.rank, rank.collectives[name]) - epoch
            )
            return common.astype(np.int64)

        def column(name: str) -> NDArray[Any]:
            return index.column(lambda rank: rank.collectives[name])

        def of_line(name: str) -> NDArray[Any]:
            return index.column(
                lambda rank: line_of[rank.rank].row_column(name, len(rank.collectives))
            )

        def segments(name: str) -> Int64Array:
            own = of_line(name)
            return np.where(own == ABSENT, ABSENT, own + first_segment).astype(np.int64)

        def measured(of: Callable[[RankAnalysis], NDArray[Any]]) -> NDArray[Any]:
            return index.column(lambda rank: of(analyses[rank.rank]))

        axis, names = _axes(index, analyses)
        return LineRows(
            index=index,
            lines=lines,
            base=base,
            start_ns=times("start_ns"),
            end_ns=times("end_ns"),
            is_timed=column("is_timed").astype(np.bool_),
            stream=column("stream"),
            kind=column("kind").astype(np.int8),
            bytes=column("bytes"),
            step=measured(_step_numbers),
            axis=axis,
            axis_names=names,
            issue=segments("issue"),
            leader=_leaders(index, of_line("leader")),
            unheld=segments("unheld"),
            copy_ns=of_line("copy_ns"),
            resume=segments("resume"),
            exposed=of_line("exposed"),
            begin_ns=begin - epoch,
            epoch_ns=epoch,
            is_needless=measured(needless_rows).astype(np.bool_),
            unhidden=measured(unhidden_rows).astype(np.float32),
        )

    @property
    def inside(self) -> Bools:
        """Rows that affect a line."""
        mask: Bools = (self.issue != ABSENT) | (self.resume != ABSENT)
        return mask


def _step_numbers(analysis: RankAnalysis) -> NDArray[np.int32]:
    """Number of the step of each row, ABSENT outside of all."""
    numbers = np.array([*(step.step for step in analysis.steps), ABSENT], dtype=np.int32)
    inside = analysis.collective_step >= 0
    return numbers[np.where(inside, analysis.collective_step, len(numbers) - 1)]


def _leaders(index: RowIndex, row: Int64Array) -> Int64Array:
    """The row that each waited for, numbered across ranks; ABSENT if there is none here."""
    length = np.diff(index.base)
    inside = row - np.repeat(index.low, length)
    known = (row != ABSENT) & (inside >= 0) & (inside < np.repeat(length, length))
    return np.where(known, inside + np.repeat(index.base[:-1], length), ABSENT).astype(np.int64)


def _axes(
    index: RowIndex, analyses: Mapping[int, RankAnalysis]
) -> tuple[NDArray[np.int32], tuple[str, ...]]:
    """Axis of each row, as an index into the names of all ranks, and these names."""
    found = [analyses[rank.rank].row_axis_names for rank in index.ranks]
    names = tuple(sorted({name for of_rank in found for name in of_rank}))
    number = {name: i for i, name in enumerate(names)}

    def of_rank(rank: Rank) -> NDArray[np.int32]:
        analysis = analyses[rank.rank]
        numbers = [number[name] for name in analysis.row_axis_names] or [0]
        return np.array(numbers, dtype=np.int32)[analysis.row_axis]

    return index.column(of_rank).astype(np.int32), names


# Transfers between ranks and their members, from matched collectives and messages ----------------

_SYMMETRIC = [int(kind) for kind in CollectiveKind if kind.is_symmetric]
_MESSAGES = (int(CollectiveKind.SEND), int(CollectiveKind.RECV))
NOWHERE = np.iinfo(np.int64).min
_NOTHING = np.empty(0, np.int64)


class Transfers(msgspec.Struct, frozen=True, kw_only=True):
    """Operations between ranks, J of them; their nodes follow those of the segments."""

    duration_ns: Int64Array  # int64.
    kind: NDArray[np.int8]  # int8, a CollectiveKind.
    step: NDArray[np.int32]  # int32, number of the step of a member, ABSENT outside of all.
    # int32, index into the graph's ``axis_names``; ABSENT for messages of unknown group.
    axis: NDArray[np.int32]
    bytes: Int64Array  # int64, ABSENT if unknown.
    owner: NDArray[np.int32]  # int32, position of the rank; ABSENT if several ranks take part.
    # bool, whether its members are known, so the duration contains no waiting.
    is_joined: Bools
    # bool, whether they are known and one was not recorded: the others may have waited for it.
    lacks_members: Bools
    # int64, earliest start, from a member that issued it outside of the line.
    release_ns: Int64Array
    # bool, whether it reduces gradients that are reduced again before their update.
    is_needless: Bools
    # int64, place of its members, from :func:`~distprof.sections.matched.places`; ``NOWHERE`` if
    # they are unknown.
    place: Int64Array
    # float32, share of the duration that cannot overlap with anything: that of the last bucket of
    # gradients, which is ready only when backward has ended.
    unhidden: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.duration_ns)

    @property
    def is_transfer(self) -> Bools:
        """Joined ones but those that lack a member along an axis where others have all.

        A member alone keeps its wait for one that was not recorded, so several together keep it.
        Where none has all members, as in a recording of one node of many, waits stay unknown.
        """
        whole = self.is_joined & ~self.lacks_members
        return whole | (self.is_joined & ~np.isin(self.axis, self.axis[whole]))


class TransferParts(msgspec.Struct, frozen=True, kw_only=True):
    """Transfers, and the rows, segments and delays that connect ranks with them."""

    transfers: Transfers
    row: Int64Array = _NOTHING  # Row of a member.
    of: Int64Array = _NOTHING  # Its transfer.
    late: Int64Array = _NOTHING  # How much later than the transfer the member ends.
    # Additional segments that a transfer waits for, and the transfer.
    needs: Int64Array = _NOTHING
    needs_of: Int64Array = _NOTHING
    # Additional segments that wait for a transfer, and the transfer.
    unblocks: Int64Array = _NOTHING
    unblocks_of: Int64Array = _NOTHING
    # Pairs of transfers, the second of which waits for the first.
    sent: Int64Array = _NOTHING
    received: Int64Array = _NOTHING

    @staticmethod
    def concat(parts: Sequence[TransferParts]) -> TransferParts:
        """All parts, one after another, their transfers renumbered."""
        first = np.concatenate(([0], np.cumsum([len(part.transfers) for part in parts]))).tolist()
        transfers = {
            name: np.concatenate([getattr(part.transfers, name) for part in parts])
            for name in Transfers.__struct_fields__
        }
        columns = {
            name: np.concatenate(
                [
                    getattr(part, name) + (low if name in _NUMBERS else 0)
                    for part, low in zip(parts, first, strict=False)
                ]
            ).astype(np.int64)
            for name in TransferParts.__struct_fields__[1:]
        }
        return TransferParts(transfers=Transfers(**transfers), **columns)


_NUMBERS = ("of", "needs_of", "unblocks_of", "sent", "received")
"""Columns that number transfers."""


def transfers_of(run: Run, rows: LineRows) -> TransferParts:
    """All transfers between ranks."""
    sent = _sent(run, rows)
    joined = _joined(run, rows, sent.row)
    # Timed rows without partners, which keep their duration
    alone = rows.inside & rows.is_timed
    alone[np.concatenate((joined.row, sent.row))] = False
    row = np.flatnonzero(alone)
    single = _of_one_rank(rows, row, (rows.end_ns - rows.start_ns)[row], np.zeros_like(row))
    return TransferParts.concat([joined, single, sent, *_blocked_in_messages(run, rows)])


def _joined(run: Run, rows: LineRows, others: Int64Array) -> TransferParts:
    """Matched collectives whose members all wait for the last one, without those in ``others``."""
    members = rows.index.members(run.matches)
    size = np.diff(members.offsets)
    filled = np.flatnonzero(size > 0)
    first = members.offsets[:-1][filled]
    if len(filled) == 0:
        return _of_one_rank(rows, _NOTHING, _NOTHING, _NOTHING)
    row = members.row
    last_start = np.maximum.reduceat(rows.start_ns[row], first)
    first_end = np.minimum.reduceat(rows.end_ns[row], first)
    shortest = np.minimum.reduceat((rows.end_ns - rows.start_ns)[row], first)
    timed = np.minimum.reduceat(rows.is_timed[row], first) > 0
    inside = np.maximum.reduceat(rows.inside[row], first) > 0
    kind, one_clock = run.matches.kind[filled], _one_clock(run, rows, row, first)
    waits = np.isin(kind, _SYMMETRIC) | (first_end >= last_start) | ~one_clock
    other = np.zeros(len(rows.kind), dtype=np.bool_)
    other[others] = True
    chosen = timed & inside & waits & (size[filled] > 1) & ~other[row[first]]
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
        place=places(run.matches)[filled][chosen],
        lacks=~run.matches.complete[filled][chosen],
    )


def _one_clock(run: Run, rows: LineRows, row: Int64Array, first: Int64Array) -> Bools:
    """Instances whose members' clocks can be compared."""
    clock = run.clock
    of_rank = np.array([clock.component[clock.domain_of(r.rank)] for r in rows.index.ranks])
    of_member = of_rank[rows.index.rank_index[row]]
    low, high = np.minimum.reduceat(of_member, first), np.maximum.reduceat(of_member, first)
    same: Bools = low == high
    return same


def _parts_of(
    rows: LineRows,
    duration: Int64Array,
    example: Int64Array,
    row: Int64Array,
    of: Int64Array,
    late: Int64Array,
    *,
    kind: NDArray[np.int8] | None = None,
    owner: NDArray[np.int32] | None = None,
    place: Int64Array | None = None,
    lacks: Bools | None = None,
) -> TransferParts:
    """Transfers with the kind, axis and size of their row in ``example``."""
    release = np.zeros(len(duration), dtype=np.int64)
    outside = rows.issue[row] == ABSENT
    np.maximum.at(release, of[outside], rows.start_ns[row[outside]])
    shared = np.full(len(duration), ABSENT, dtype=np.int32)
    transfers = Transfers(
        duration_ns=duration.astype(np.int64),
        kind=(rows.kind[example] if kind is None else kind).astype(np.int8),
        step=rows.step[example],
        axis=rows.axis[example].astype(np.int32),
        bytes=rows.bytes[example].astype(np.int64),
        owner=shared if owner is None else owner,
        is_joined=np.full(len(duration), owner is None),
        lacks_members=np.zeros(len(duration), np.bool_) if lacks is None else lacks,
        release_ns=release,
        is_needless=rows.is_needless[example],
        place=np.full(len(duration), NOWHERE, np.int64) if place is None else place,
        unhidden=rows.unhidden[example],
    )
    return TransferParts(transfers=transfers, row=row, of=of, late=late)


def _of_one_rank(
    rows: LineRows, row: Int64Array, duration: Int64Array, late: Int64Array
) -> TransferParts:
    """A transfer of each row on its rank alone."""
    owner = rows.index.rank_index[row]
    number = np.arange(len(row), dtype=np.int64)
    return _parts_of(rows, duration, row, row, number, late, owner=owner)


# Messages that wait in a buffer -------------------------------------------------------------------


def _sent(run: Run, rows: LineRows) -> TransferParts:
    """Messages whose senders do not wait for their receivers: one transfer for each end."""
    sender, receiver, group = _ends(run, rows)
    through = rows.end_ns[sender] < rows.start_ns[receiver]
    chosen = np.isin(group, np.unique(group[through]))
    sender, receiver = sender[chosen], receiver[chosen]
    number = np.arange(len(sender), dtype=np.int64)
    arrives = np.maximum(rows.start_ns[receiver], rows.end_ns[sender])
    row = np.concatenate((sender, receiver))
    length = rows.end_ns[row] - np.concatenate((rows.start_ns[sender], arrives))
    parts = _of_one_rank(rows, row, np.maximum(length, 0), np.minimum(length, 0))
    known = replace(parts.transfers, is_joined=np.ones(len(row), dtype=np.bool_))
    return replace(parts, transfers=known, sent=number, received=number + len(number))


def _pairs(run: Run, rows: LineRows) -> tuple[Int64Array, Int64Array]:
    """Rows of matched messages with both ends, shape ``(n, 2)``, and their groups."""
    members = rows.index.members(run.matches)
    pairs = np.flatnonzero(np.isin(run.matches.kind, _MESSAGES) & (np.diff(members.offsets) == 2))
    low = members.offsets[:-1][pairs]
    ends = np.stack((members.row[low], members.row[low + 1]), axis=1)
    return ends, run.matches.group[pairs].astype(np.int64)


def _ends(run: Run, rows: LineRows) -> tuple[Int64Array, Int64Array, Int64Array]:
    """Timed rows of sends, of their matched receives, and their groups."""
    ends, group = _pairs(run, rows)
    sends = rows.kind[ends] == CollectiveKind.SEND
    usable = (sends.sum(axis=1) == 1) & (rows.kind[ends] == CollectiveKind.RECV).any(axis=1)
    usable &= rows.is_timed[ends].all(axis=1) & rows.inside[ends].any(axis=1)
    usable &= _one_clock(run, rows, ends.ravel(), 2 * np.arange(len(ends), dtype=np.int64))
    ends, sends = ends[usable], sends[usable]
    return ends[sends], ends[~sends], group[usable]


# Messages without transfer times -----------------------------------------------------------------


def _blocked_in_messages(run: Run, rows: LineRows) -> list[TransferParts]:
    """One transfer for each time that a rank was blocked in sends and receives."""
    ends, _ = _pairs(run, rows)
    ends = ends[~rows.is_timed[ends].any(axis=1)]
    own, partner = ends.T.ravel(), ends.T[::-1].ravel()
    return [
        _blocked_on_rank(run, rows, position, own, partner)
        for position, line in enumerate(rows.lines)
        if len(line.wait_end_ns)
    ]


def _blocked_on_rank(
    run: Run, rows: LineRows, position: int, own: Int64Array, partner: Int64Array
) -> TransferParts:
    """Waits of one rank: each ends only after the messages that were ready before its end."""
    line, rank = rows.lines[position], rows.index.ranks[position].rank
    begins, end = (
        run.clock.to_common(rank, time) - rows.epoch_ns
        for time in (line.wait_start_ns, line.wait_end_ns)
    )
    mine = (rows.index.rank_index[own] == position) & (rows.issue[partner] != ABSENT)
    own, partner = own[mine], partner[mine]
    ready = np.maximum(rows.start_ns[own], rows.start_ns[partner])
    wait = np.searchsorted(end, ready, side="left")
    inside = wait < len(end)
    own, partner, ready, wait = (part[inside] for part in (own, partner, ready, wait))
    np.maximum.at(begins, wait, ready)
    number, unknown = np.arange(len(end), dtype=np.int64), np.full(len(end), ABSENT)
    axis = unknown.astype(np.int32)
    axis[wait] = rows.axis[own]
    resume = line.wait_resume + rows.base[position]
    return TransferParts(
        transfers=Transfers(
            duration_ns=np.maximum(end - begins, 0),
            kind=np.full(len(end), CollectiveKind.SEND_RECV, np.int8),
            step=unknown.astype(np.int32),
            axis=axis,
            bytes=unknown.astype(np.int64),
            owner=np.full(len(end), position, np.int32),
            is_joined=np.isin(number, wait),
            lacks_members=np.zeros(len(end), np.bool_),
            release_ns=np.zeros(len(end), np.int64),
            is_needless=np.zeros(len(end), dtype=np.bool_),
            place=np.full(len(end), NOWHERE, np.int64),
            unhidden=np.zeros(len(end), dtype=np.float32),
        ),
        needs=np.concatenate((resume - 1, rows.issue[partner])),
        needs_of=np.concatenate((number, wait)),
        unblocks=resume,
        unblocks_of=number,
    )
