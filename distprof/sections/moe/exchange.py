"""All-to-alls that dispatch tokens to experts and combine the results, and the time between them.

A combine returns what its dispatch sent: its splits are those of the dispatch with input and output
exchanged. A dispatch and the combine right after it in the same group form a *section*. Between the
end of the first and the start of the second a rank computes its experts: forward, backward or
recomputation for a checkpoint. Sections of a step that move the same tokens belong to one *call* of
a layer. All-to-alls of integers (token counts) are left out.

Each section is measured on each rank's own clock, so clocks need not agree.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from distprof.costs.moe import load_imbalance
from distprof.run.run import Run
from distprof.run.topology import ProcessGroup
from distprof.schema import ABSENT, Bools, Coded, Floats, Int64Array
from distprof.sections.context import RankAnalysis
from distprof.sections.matched import Members, RowIndex, by_size
from distprof.sections.moe import MoeExchange, MoePair
from distprof.terms import CollectiveKind, MeshAxis

_EXPERT_GROUP = re.compile(r"expert|(?:^|[_\W])(?:ep|moe)(?:$|[_\W])", re.IGNORECASE)
_WHOLE_NUMBERS = re.compile(r"^(?:c10::)?(?:u?int\d*|long|short|byte|char|bool)\b", re.IGNORECASE)
_SIZE = re.compile(r"[0-9]{1,9}")  # longer ones are damaged, because no rank sends that many tokens

_OTHER_AXES = (MeshAxis.CP, MeshAxis.PP)
"""Axes whose all-to-alls move other data, for example attention heads."""

_MIN_SECTIONS = 2  # forward and backward
_Sizes = NDArray[np.float32]  # Tokens that one rank sends another: integers, exact up to 16 million


class GroupExchanges(msgspec.Struct, frozen=True, kw_only=True):
    """All-to-alls of one group of ranks inside the analysed steps, in order.

    Arrays over exchanges have shape ``(n, …)``, over sections ``(s, …)``. The group has g members,
    of which m were recorded.
    """

    ranks: tuple[int, ...]  # Global ranks of the group, g of them.
    members: Int64Array  # Positions in ``ranks`` of the recorded members, shape ``(m,)``.
    is_expert: bool  # Whether the group, or its use, shows that the exchanges move expert tokens.
    may_be: bool  # Whether they may move expert tokens, if the run has experts at all.
    step: Int64Array  # Index of the analysed step, int64 ``(n,)``.
    duration_ns: Int64Array  # int64 ``(n, m)``.
    wait_ns: Int64Array  # int64 ``(n, m)``; ABSENT where unknown.
    sent: _Sizes  # Tokens sent to each member, float32 ``(n, m, g)``; NaN where unknown.
    received: _Sizes  # Tokens received from each member, likewise.
    unit_bytes: Floats  # Bytes of a token, float64 ``(n,)``; NaN where unknown.
    dispatch: Int64Array  # Exchange that begins each section, int64 ``(s,)``; the next one ends it.
    section_ns: Int64Array  # int64 ``(s, m)``, time between the two on each member.
    # int64 ``(s,)``: number of the call within its step, in order of first sections.
    call: Int64Array
    # bool ``(s,)``: whether it is the first section of its call, the forward one.
    is_first: Bools
    calls_per_step: Int64Array  # int64 ``(steps,)``: number of calls in each step.

    @property
    def has_no_size(self) -> bool:
        """Whether no amount between two ranks is known."""
        return _is_unknown(self.sent) and _is_unknown(self.received)

    @property
    def has_sizes(self) -> bool:
        """Whether the traffic between all pairs of ranks is known in every section."""
        if not len(self.dispatch) or _is_unknown(self.sent):
            return False
        return not np.isnan(self.sent[self.dispatch]).any()

    @property
    def is_whole(self) -> bool:
        """Whether all members were recorded."""
        return len(self.members) == len(self.ranks)


class _Rows(msgspec.Struct, frozen=True, kw_only=True):
    """Per-row columns of all ranks' COLLECTIVES tables."""

    wanted: Bools
    step: Int64Array
    start: Int64Array
    end: Int64Array
    wait: Int64Array
    size: Int64Array
    in_split: Int64Array  # index into ``texts``; 0: not recorded
    out_split: Int64Array
    texts: tuple[str, ...]


def find_exchanges(
    run: Run, analyses: Mapping[int, RankAnalysis], wait_ends: Mapping[int, Int64Array]
) -> tuple[GroupExchanges, ...]:
    """All-to-alls of every group, and the sections between them."""
    kinds = run.matches.kind == CollectiveKind.ALL_TO_ALL
    if not kinds.any():
        return ()
    index = RowIndex.of(run, analyses)
    start = index.column(lambda rank: rank.collectives["start_ns"])
    wait_end = index.column(
        lambda rank: wait_ends.get(rank.rank, np.full(len(rank.collectives), ABSENT, np.int64))
    )
    step = index.column(lambda rank: analyses[rank.rank].collective_step)
    kind = index.column(lambda rank: rank.collectives["kind"])
    timed = index.column(lambda rank: rank.collectives["is_timed"])
    moves_tokens = index.column(lambda rank: _is_no_integer(rank.collectives.coded("dtype")))
    texts: dict[str, int] = {"": 0}
    in_split = index.column(lambda rank: rank.collectives.coded("in_splits").numbered(texts))
    out_split = index.column(lambda rank: rank.collectives.coded("out_splits").numbered(texts))
    rows = _Rows(
        wanted=(kind == CollectiveKind.ALL_TO_ALL) & (step != ABSENT) & timed & moves_tokens,
        step=step,
        start=start,
        end=index.column(lambda rank: rank.collectives["end_ns"]),
        wait=np.where(wait_end == ABSENT, ABSENT, np.maximum(wait_end - start, 0)),
        size=index.column(lambda rank: rank.collectives["bytes"]),
        in_split=in_split,
        out_split=out_split,
        texts=tuple(texts),
    )
    members = index.members(run.matches)
    num_steps = max((len(analysis.steps) for analysis in analyses.values()), default=0)
    groups = []
    for group in np.unique(run.matches.group[kinds]).tolist():
        instances = np.flatnonzero(kinds & (run.matches.group == group))
        exchanges = _of_group(
            run.topology.groups[group], members, instances, index, rows, num_steps
        )
        groups += [] if exchanges is None else [exchanges]
    return tuple(groups)


# Rows ---------------------------------------------------------------------------------------------


def _is_no_integer(dtype: Coded) -> Bools:
    if not dtype.values:
        return np.ones(len(dtype), dtype=np.bool_)
    return dtype.where([not _WHOLE_NUMBERS.match(value) for value in dtype.values])


# Groups -------------------------------------------------------------------------------------------


def _of_group(
    group: ProcessGroup,
    members: Members,
    instances: Int64Array,
    index: RowIndex,
    rows: _Rows,
    num_steps: int,
) -> GroupExchanges | None:
    """The exchanges of one group; None if fewer than two members recorded one."""
    row, rank = _as_matrix(members, instances)
    if row is None or rank is None:
        return None
    usable = rows.wanted[row].all(axis=1) & (rows.step[row] == rows.step[row][:, :1]).all(axis=1)
    row, rank = row[usable], rank[usable]
    if len(row) == 0 or row.shape[1] < 2:
        return None
    order = np.lexsort((rows.start[row[:, 0]], rows.step[row[:, 0]]))
    row, numbers = row[order], tuple(index.ranks[i].rank for i in rank[0].tolist())
    ranks = group.ranks if set(numbers) <= set(group.ranks) else numbers
    sent, received = (
        _split_sizes(codes, rows.texts, len(ranks))
        for codes in (rows.in_split[row], rows.out_split[row])
    )
    # first exchange of each section: one that the next exchange of its step returns
    to, back = _codes(rows, row)
    step = rows.step[row[:, 0]]
    returned = (to[1:] == back[:-1]) & (back[1:] == to[:-1]) & (step[1:] == step[:-1])
    position = np.arange(len(returned))
    is_start = returned & np.concatenate(([True], ~returned[:-1]))[: len(returned)]
    start = np.maximum.accumulate(np.where(is_start, position, 0)) if len(position) else position
    pairing: Int64Array = np.flatnonzero(returned & ((position - start) % 2 == 0))
    sections = _sections(rows, row, pairing, num_steps)
    return GroupExchanges(
        ranks=ranks,
        members=np.array([ranks.index(number) for number in numbers], dtype=np.int64),
        is_expert=_is_expert(group, sections, sent),
        may_be=len(pairing) > 0 and group.axis not in _OTHER_AXES,
        step=rows.step[row[:, 0]],
        duration_ns=rows.end[row] - rows.start[row],
        wait_ns=rows.wait[row],
        sent=sent,
        received=received,
        unit_bytes=_unit_bytes(rows.size[row], sent),
        dispatch=pairing,
        section_ns=sections.duration_ns,
        call=sections.call,
        is_first=sections.is_first,
        calls_per_step=sections.calls_per_step,
    )


def _as_matrix(
    members: Members, instances: Int64Array
) -> tuple[Int64Array, NDArray[np.int32]] | tuple[None, None]:
    """Row and rank of each member, in the instances with the most members; ranks ascending."""
    wanted = np.zeros(members.count, dtype=np.bool_)
    wanted[instances] = True
    best: tuple[Int64Array, NDArray[np.int32]] | tuple[None, None] = (None, None)
    blocks: dict[int, list[Int64Array]] = {}
    for segments, positions in by_size(members.offsets):
        chosen = positions[wanted[segments]]
        if len(chosen):
            blocks.setdefault(positions.shape[1], []).append(chosen)
    if blocks:
        positions = np.concatenate(blocks[max(blocks)])
        rank = members.rank_index[positions]
        order = np.argsort(rank, axis=1, kind="stable")
        rank = np.take_along_axis(rank, order, axis=1)
        same = (rank == rank[0]).all(axis=1)
        best = np.take_along_axis(members.row[positions], order, axis=1)[same], rank[same]
    return best


def _split_sizes(codes: Int64Array, texts: tuple[str, ...], size: int) -> _Sizes:
    """Sizes in each split text, ``(n, m, size)``; NaN if it does not hold one per member."""
    distinct, inverse = np.unique(codes, return_inverse=True)
    if not distinct.any():
        return np.broadcast_to(np.float32(np.nan), (*codes.shape, size))
    table = np.full((len(distinct), size), np.nan, dtype=np.float32)
    for position, code in enumerate(distinct.tolist()):
        numbers = texts[code].split(",", size)
        if len(numbers) == size and all(_SIZE.fullmatch(number) for number in numbers):
            table[position] = [float(number) for number in numbers]
    return table[inverse.reshape(codes.shape)]


def _is_unknown(sizes: _Sizes) -> bool:
    """Whether no size is known: one NaN then stands for all, to save memory."""
    return not any(sizes.strides) and bool(sizes.size) and bool(np.isnan(sizes[0, 0, 0]))


def _unit_bytes(size: Int64Array, sent: _Sizes) -> Floats:
    """Bytes of one token of each exchange, the largest of all members."""
    if _is_unknown(sent):
        return np.full(len(size), np.nan)
    total = sent.sum(axis=2, dtype=np.float64)
    known = (size > 0) & (total > 0)
    each = np.divide(size, total, out=np.zeros(total.shape), where=known)
    most = each.max(axis=1)
    return np.where(most > 0, most, np.nan)


# Sections -----------------------------------------------------------------------------------------


class _Sections(msgspec.Struct, frozen=True, kw_only=True):
    duration_ns: Int64Array
    call: Int64Array
    is_first: Bools
    calls_per_step: Int64Array
    per_call: Int64Array  # sections of each call


def _codes(rows: _Rows, row: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Codes of the input splits and of the output splits of each exchange, over all members."""
    both = np.concatenate((rows.in_split[row], rows.out_split[row]))
    _, code = np.unique(both, axis=0, return_inverse=True)
    code = code.reshape(-1).astype(np.int64)
    return code[: len(row)], code[len(row) :]


def _sections(rows: _Rows, row: Int64Array, dispatch: Int64Array, num_steps: int) -> _Sections:
    duration = np.maximum(rows.start[row[dispatch + 1]] - rows.end[row[dispatch]], 0)
    to, back = _codes(rows, row)
    step = rows.step[row[dispatch, 0]]
    key = np.column_stack((step, to[dispatch], back[dispatch]))
    _, first, which, number = np.unique(
        key.reshape(-1, 3), axis=0, return_index=True, return_inverse=True, return_counts=True
    )
    which = which.reshape(-1)
    is_first = np.zeros(len(dispatch), dtype=np.bool_)
    is_first[first] = True
    calls = np.bincount(step[is_first], minlength=num_steps)
    before = np.cumsum(calls) - calls  # calls of earlier steps
    rank_of_first = np.cumsum(is_first) - 1
    return _Sections(
        duration_ns=duration,
        call=(rank_of_first[first][which] - before[step]).astype(np.int64),
        is_first=is_first,
        calls_per_step=calls.astype(np.int64),
        per_call=number.astype(np.int64),
    )


def _is_expert(group: ProcessGroup, sections: _Sections, sent: _Sizes) -> bool:
    """Whether a group exchanges expert tokens.

    Either its axis or description says so, or uneven amounts go out and return at least twice, in
    forward and in backward. Those of embedding tables go out in forward and return in backward.
    """
    if group.axis is MeshAxis.EP or _EXPERT_GROUP.search(group.description):
        return True
    if not len(sections.per_call) or _is_unknown(sent) or np.isnan(sent).all():
        return False
    uneven = (sent != sent[:, :, :1])[~np.isnan(sent).any(axis=(1, 2))].any()
    return bool(uneven and np.median(sections.per_call) >= _MIN_SECTIONS)


# Traffic between ranks in the all-to-alls of experts ---------------------------------------------

MAX_AMOUNT = 2.0**62
"""Limit on bytes per step: damaged traces may claim more than an integer in a report holds."""


def exchange_of(group: GroupExchanges, num_steps: int) -> MoeExchange:
    """Amounts that a group exchanges per step, and their balance."""
    unit = "bytes" if _has_bytes(group) else "tokens"
    forward = group.dispatch[group.is_first]
    sent, received = _off_rank(group, forward if len(forward) else np.arange(len(group.step)))
    total = _sum(group, np.arange(len(group.step)))
    moved = 0.0 if total is None else total.sum() - np.trace(total)
    return MoeExchange(
        ranks=group.ranks,
        num_per_step=len(group.step) / num_steps,
        num_sections_per_step=len(group.dispatch) / num_steps,
        unit=unit,
        amount_per_step=round(min(moved / num_steps, MAX_AMOUNT)),
        sent_max_over_mean=float(load_imbalance(sent).mean()) if len(sent) else None,
        received_max_over_mean=float(load_imbalance(received).mean()) if len(sent) else None,
        busiest_sender=group.ranks[int(sent.sum(axis=0).argmax())] if len(sent) else None,
        busiest_receiver=group.ranks[int(received.sum(axis=0).argmax())] if len(sent) else None,
        transfer_ns_per_step=_transfer_ns(group, num_steps),
    )


def pairs_of(groups: Sequence[GroupExchanges], num_steps: int) -> tuple[MoePair, ...]:
    """Every pair of ranks with traffic, sorted by sender and receiver."""
    pairs = []
    for group in groups:
        every = _sum(group, np.arange(len(group.step)))
        forward = _sum(group, group.dispatch[group.is_first])
        if every is None or forward is None:
            continue
        total, dispatched = (
            np.rint(np.minimum(amounts / num_steps, MAX_AMOUNT)).astype(np.int64)
            for amounts in (every, forward)
        )
        pairs += [
            MoePair(
                sender=group.ranks[sender],
                receiver=group.ranks[receiver],
                amount_per_step=int(total[sender, receiver]),
                dispatched_per_step=int(dispatched[sender, receiver]),
            )
            for sender, receiver in np.argwhere(total > 0).tolist()
        ]
    return tuple(sorted(pairs, key=lambda pair: (pair.sender, pair.receiver)))


_CELLS = 4_000_000  # Number of amounts in memory at once: pairs of ranks of a group times exchanges


def _sum(group: GroupExchanges, chosen: Int64Array) -> Floats | None:
    """Sender-by-receiver sum of these exchanges, without unknown amounts; None if all are."""
    if group.has_no_size:
        return None
    total: Floats = np.zeros((len(group.ranks), len(group.ranks)))
    for amounts in _amounts(group, chosen):
        total += np.nan_to_num(amounts).sum(axis=0)
    return total


def _off_rank(group: GroupExchanges, chosen: Int64Array) -> tuple[Floats, Floats]:
    """Amounts that each member sends to and receives from others, in known, non-empty exchanges."""
    size = len(group.ranks)
    none = np.empty((0, size))
    sent, received = [none], [none]
    for amounts in () if group.has_no_size else _amounts(group, chosen):
        off_rank = amounts * ~np.eye(size, dtype=np.bool_)
        known = ~np.isnan(off_rank).any(axis=(1, 2)) & (off_rank.sum(axis=(1, 2)) > 0)
        sent.append(off_rank[known].sum(axis=2))
        received.append(off_rank[known].sum(axis=1))
    return np.concatenate(sent), np.concatenate(received)


def _amounts(group: GroupExchanges, chosen: Int64Array) -> Iterator[Floats]:
    """Sender-by-receiver amounts, in blocks of shape ``(some, g, g)``; in bytes if all are known.

    Amounts of members that were not recorded come from the splits of the others.
    """
    size = len(group.ranks)
    unit = np.nan_to_num(group.unit_bytes) if _has_bytes(group) else np.ones(len(group.step))
    height = max(_CELLS // size**2, 1)
    has_splits = not np.isnan(group.sent).all()
    for low in range(0, len(chosen), height):
        some = chosen[low : low + height]
        amounts = np.full((len(some), size, size), np.nan)
        if has_splits:
            sent = group.sent[some]
            amounts[:, :, group.members] = group.received[some].swapaxes(1, 2)
            amounts[:, group.members, :] = np.where(
                np.isnan(sent), amounts[:, group.members, :], sent
            )
        yield amounts * unit[some][:, np.newaxis, np.newaxis]


def _has_bytes(group: GroupExchanges) -> bool:
    if _is_unknown(group.sent):
        return False
    moves = np.nansum(group.sent, axis=(1, 2)) > 0
    return bool(moves.any()) and not np.isnan(group.unit_bytes[moves]).any()


def _transfer_ns(group: GroupExchanges, num_steps: int) -> int | None:
    """Time of all exchanges after the last member arrived, mean of members; None if unknown."""
    if (group.wait_ns == ABSENT).any():
        return None
    transfer = np.maximum(group.duration_ns - group.wait_ns, 0)
    return round(float(transfer.mean(axis=1).sum()) / num_steps)
