"""All-to-alls that bring tokens to their experts and back, and the time between the two.

A combine sends back what its dispatch brought: its splits are those of the dispatch with input and
output exchanged. Two such all-to-alls of a group, one right after the other, are a *section*: from
the end of the first to the start of the second a rank computes its experts, forward, backward or
once more for a checkpoint. Sections of a step that move the same tokens belong to one *call* of a
layer. All-to-alls of whole numbers (token counts) are left out.

Each section is measured on each rank's own clock, so that clocks need not agree.
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
from distprof.schema import ABSENT, Coded, Int64Array
from distprof.sections.context import RankAnalysis
from distprof.sections.matched import Members, RowIndex, by_size
from distprof.sections.moe.result import MoeExchange, MoePair
from distprof.terms import CollectiveKind, MeshAxis

__all__ = ["MOST", "GroupExchanges", "exchange_of", "find_exchanges", "pairs_of"]

_EXPERT_GROUP = re.compile(r"expert|(?:^|[_\W])(?:ep|moe)(?:$|[_\W])", re.IGNORECASE)

_WHOLE_NUMBERS = re.compile(r"^(?:c10::)?(?:u?int\d*|long|short|byte|char|bool)\b", re.IGNORECASE)

_SIZE = re.compile(r"[0-9]{1,9}")  # longer ones are damaged, because no rank sends that many tokens

_OTHER_AXES = (MeshAxis.CP, MeshAxis.PP)
"""Axes whose all-to-alls are others': heads of attention for tokens of a sequence, for example."""

_CALLS_TWICE = 2  # forward and backward

_Floats = NDArray[np.float64]

_Sizes = NDArray[np.float32]
"""Tokens that one rank sends another: whole numbers, exact up to 16 million."""


class GroupExchanges(msgspec.Struct, frozen=True, kw_only=True):
    """All-to-alls of one group of ranks inside the analysed steps, in order.

    Arrays over exchanges have shape ``(n, …)``, over sections ``(s, …)``; m are the members that
    were recorded and g all members of the group.

    Args:
        ranks: Global ranks of the group, g of them.
        members: Positions in ``ranks`` of those recorded, shape ``(m,)``.
        is_expert: Whether the group, or how it is used, says that these are experts' tokens.
        may_be: Whether they can be, if the run has experts at all.
        step: Index of the analysed step, int64 ``(n,)``.
        duration_ns: int64 ``(n, m)``.
        wait_ns: int64 ``(n, m)``; ABSENT where not known.
        sent: Tokens to each member, float32 ``(n, m, g)``; NaN where not known.
        received: The same from each member.
        unit_bytes: Bytes of a token, float64 ``(n,)``; NaN where not known.
        dispatch: Exchange that begins each section, int64 ``(s,)``; the next one ends it.
        section_ns: int64 ``(s, m)``, time between the two on each member.
        call: int64 ``(s,)``: calls of layers in a step, numbered in order of their first section.
        is_first: bool ``(s,)``: whether it is the first section of its call: forward.
        calls_per_step: int64 ``(steps,)``: different calls in each step.
    """

    ranks: tuple[int, ...]
    members: Int64Array
    is_expert: bool
    may_be: bool
    step: Int64Array
    duration_ns: Int64Array
    wait_ns: Int64Array
    sent: _Sizes
    received: _Sizes
    unit_bytes: _Floats
    dispatch: Int64Array
    section_ns: Int64Array
    call: Int64Array
    is_first: NDArray[np.bool_]
    calls_per_step: Int64Array

    @property
    def has_no_size(self) -> bool:
        """Whether nothing says who sends whom how much."""
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

    wanted: NDArray[np.bool_]
    step: Int64Array
    start: Int64Array
    end: Int64Array
    wait: Int64Array
    size: Int64Array
    in_split: Int64Array  # number of the text in ``texts``; 0 is not told
    out_split: Int64Array
    texts: tuple[str, ...]


def find_exchanges(
    run: Run, analyses: Mapping[int, RankAnalysis], wait_ends: Mapping[int, Int64Array]
) -> tuple[GroupExchanges, ...]:
    """All-to-alls of every group, and the sections between them.

    Args:
        run: The recording.
        analyses: By global rank.
        wait_ends: By global rank, as :class:`distprof.sections.context.RankAnalyses` has them.

    Returns:
        Groups in the order of the topology; those in which nothing could be matched are left out.
    """
    kinds = run.matches.kind == CollectiveKind.ALL_TO_ALL
    if not kinds.any():
        return ()
    index = RowIndex.of(run, analyses)
    rows = _rows(index, analyses, wait_ends)
    members = index.members(run.matches)
    num_steps = max((len(analysis.steps) for analysis in analyses.values()), default=0)
    found = []
    for group in np.unique(run.matches.group[kinds]).tolist():
        instances = np.flatnonzero(kinds & (run.matches.group == group))
        exchanges = _of_group(
            run.topology.groups[group], members, instances, index, rows, num_steps
        )
        found += [] if exchanges is None else [exchanges]
    return tuple(found)


# Rows ---------------------------------------------------------------------------------------------


def _rows(
    index: RowIndex, analyses: Mapping[int, RankAnalysis], wait_ends: Mapping[int, Int64Array]
) -> _Rows:
    start = index.column(lambda rank: rank.collectives["start_ns"])
    wait_end = index.column(
        lambda rank: wait_ends.get(rank.rank, np.full(len(rank.collectives), ABSENT, np.int64))
    )
    step = index.column(lambda rank: analyses[rank.rank].collective_step)
    kind = index.column(lambda rank: rank.collectives["kind"])
    timed = index.column(lambda rank: rank.collectives["is_timed"])
    moves_tokens = index.column(lambda rank: _is_no_count(rank.collectives.coded("dtype")))
    texts: dict[str, int] = {"": 0}
    in_split = index.column(lambda rank: _numbered(rank.collectives.coded("in_splits"), texts))
    out_split = index.column(lambda rank: _numbered(rank.collectives.coded("out_splits"), texts))
    return _Rows(
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


def _is_no_count(dtype: Coded) -> NDArray[np.bool_]:
    if not dtype.values:
        return np.ones(len(dtype), dtype=np.bool_)
    return dtype.where([not _WHOLE_NUMBERS.match(value) for value in dtype.values])


def _numbered(column: Coded, texts: dict[str, int]) -> Int64Array:
    """Number of each row's text in ``texts``, which grows by those that are new."""
    if not column.values:
        return np.zeros(len(column), dtype=np.int64)
    numbers = [texts.setdefault(value, len(texts)) for value in column.values]
    of_rows: Int64Array = np.array(numbers, dtype=np.int64)[column.codes]
    return of_rows


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
    pairing = _pair(rows, row)
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
    """Row and rank of the members of the instances that have most of them, ranks ascending."""
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
    """Numbers of each split text, shape ``(n, m, size)``; NaN where it is none for this group."""
    distinct, inverse = np.unique(codes, return_inverse=True)
    if not distinct.any():
        return np.broadcast_to(np.float32(np.nan), (*codes.shape, size))
    table = np.full((len(distinct), size), np.nan, dtype=np.float32)
    for position, code in enumerate(distinct.tolist()):
        numbers = texts[code].split(",", size)
        if len(numbers) == size and all(_SIZE.fullmatch(number) for number in numbers):
            table[position] = [float(number) for number in numbers]
    sizes: _Sizes = table[inverse.reshape(codes.shape)]
    return sizes


def _is_unknown(sizes: _Sizes) -> bool:
    """Whether no size is known, which takes no memory: one NaN stands for all."""
    return not any(sizes.strides) and bool(sizes.size) and bool(np.isnan(sizes[0, 0, 0]))


def _unit_bytes(size: Int64Array, sent: _Sizes) -> _Floats:
    """Bytes of one token of each exchange, by the member that sends most."""
    if _is_unknown(sent):
        return np.full(len(size), np.nan)
    total = sent.sum(axis=2, dtype=np.float64)
    known = (size > 0) & (total > 0)
    each = np.divide(size, total, out=np.zeros(total.shape), where=known)
    most = each.max(axis=1)
    unit: _Floats = np.where(most > 0, most, np.nan)
    return unit


# Sections -----------------------------------------------------------------------------------------


class _Sections(msgspec.Struct, frozen=True, kw_only=True):
    duration_ns: Int64Array
    call: Int64Array
    is_first: NDArray[np.bool_]
    calls_per_step: Int64Array
    num_alike: Int64Array  # sections of each call


def _pair(rows: _Rows, row: Int64Array) -> Int64Array:
    """First exchange of each section: one that the next one of its step sends back.

    Where several in a row do so (equal splits, or a combine before the dispatch of its own
    backward), they are taken two by two from the first.
    """
    to, back = _codes(rows, row)
    step = rows.step[row[:, 0]]
    returned = (to[1:] == back[:-1]) & (back[1:] == to[:-1]) & (step[1:] == step[:-1])
    position = np.arange(len(returned))
    is_start = returned & np.concatenate(([True], ~returned[:-1]))[: len(returned)]
    start = np.maximum.accumulate(np.where(is_start, position, 0)) if len(position) else position
    taken: Int64Array = np.flatnonzero(returned & ((position - start) % 2 == 0))
    return taken


def _codes(rows: _Rows, row: Int64Array) -> tuple[Int64Array, Int64Array]:
    """A number for the input splits of all members of each exchange, and for the output splits."""
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
        num_alike=number.astype(np.int64),
    )


def _is_expert(group: ProcessGroup, sections: _Sections, sent: _Sizes) -> bool:
    """Whether a group exchanges experts' tokens.

    Its axis or description says so; or uneven amounts go there and back at least twice, forward and
    backward, as embedding tables' do not: they go there forward and back backward.
    """
    if group.axis is MeshAxis.EP or _EXPERT_GROUP.search(group.description):
        return True
    if not len(sections.num_alike) or _is_unknown(sent) or np.isnan(sent).all():
        return False
    uneven = (sent != sent[:, :, :1])[~np.isnan(sent).any(axis=(1, 2))].any()
    return bool(uneven and np.median(sections.num_alike) >= _CALLS_TWICE)


# Who sends whom how much in the all-to-alls of experts, in global ranks --------------------------

MOST = 2.0**62
"""Bytes in a step: damaged traces may say more than an integer of a report holds."""


def exchange_of(group: GroupExchanges, num_steps: int) -> MoeExchange:
    """What a group exchanges, and how evenly.

    Args:
        group: Its exchanges.
        num_steps: Analysed steps.
    """
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
        amount_per_step=round(min(moved / num_steps, MOST)),
        sent_max_over_mean=float(load_imbalance(sent).mean()) if len(sent) else None,
        received_max_over_mean=float(load_imbalance(received).mean()) if len(sent) else None,
        busiest_sender=group.ranks[int(sent.sum(axis=0).argmax())] if len(sent) else None,
        busiest_receiver=group.ranks[int(received.sum(axis=0).argmax())] if len(sent) else None,
        transfer_ns_per_step=_transfer_ns(group, num_steps),
    )


def pairs_of(groups: Sequence[GroupExchanges], num_steps: int) -> tuple[MoePair, ...]:
    """Every pair of ranks of a group that moves something, senders ascending."""
    pairs = []
    for group in groups:
        every = _sum(group, np.arange(len(group.step)))
        forward = _sum(group, group.dispatch[group.is_first])
        if every is None or forward is None:
            continue
        total, dispatched = (
            np.rint(np.minimum(amounts / num_steps, MOST)).astype(np.int64)
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


_CELLS = 4_000_000
"""Amounts in memory at once: pairs of ranks of a group times exchanges."""


def _sum(group: GroupExchanges, chosen: Int64Array) -> _Floats | None:
    """Sender by receiver over these exchanges, what is unknown left out; None if all is."""
    if group.has_no_size:
        return None
    total: _Floats = np.zeros((len(group.ranks), len(group.ranks)))
    for amounts in _amounts(group, chosen):
        total += np.nan_to_num(amounts).sum(axis=0)
    return total


def _off_rank(group: GroupExchanges, chosen: Int64Array) -> tuple[_Floats, _Floats]:
    """What each member sends and gets from others, of exchanges that are known and move some."""
    size = len(group.ranks)
    none = np.empty((0, size))
    sent, received = [none], [none]
    for amounts in () if group.has_no_size else _amounts(group, chosen):
        off_rank = amounts * ~np.eye(size, dtype=np.bool_)
        known = ~np.isnan(off_rank).any(axis=(1, 2)) & (off_rank.sum(axis=(1, 2)) > 0)
        sent.append(off_rank[known].sum(axis=2))
        received.append(off_rank[known].sum(axis=1))
    return np.concatenate(sent), np.concatenate(received)


def _amounts(group: GroupExchanges, chosen: Int64Array) -> Iterator[_Floats]:
    """Sender by receiver in exchanges, shape ``(some, g, g)``, in bytes if they are all known.

    Members that were not recorded are known by what the others sent and got.
    """
    size = len(group.ranks)
    unit = np.nan_to_num(group.unit_bytes) if _has_bytes(group) else np.ones(len(group.step))
    height = max(_CELLS // size**2, 1)
    is_told = not np.isnan(group.sent).all()
    for low in range(0, len(chosen), height):
        some = chosen[low : low + height]
        amounts = np.full((len(some), size, size), np.nan)
        if is_told:
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
    """Mean of the members' time after the last had come; None where that is not known."""
    if (group.wait_ns == ABSENT).any():
        return None
    transfer = np.maximum(group.duration_ns - group.wait_ns, 0)
    return round(float(transfer.mean(axis=1).sum()) / num_steps)
