"""Whether a link is slow: the same collective takes some groups longer to transfer than others.

A transfer runs from the last member's start to the end, so it contains no lateness. Groups of one
axis do the same work at the same time. A group whose transfers of the same kind and size take
longer than the other groups' uses a slow link. Messages are compared in the same way: two ranks
that send to each other are a group. If all transfers that leave one node are slow and no others
are, the link is that node's. Otherwise, if several slow groups have members in common, it is the
link of one of these members.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec
import numpy as np
from msgspec.structs import replace

from distprof.run.run import Rank, Run
from distprof.run.topology import ProcessGroup
from distprof.schema import ABSENT, Int64Array
from distprof.sections.context import RankAnalysis
from distprof.sections.matched import Members, RowIndex, places, ranks_at, segment_median
from distprof.sections.stragglers.result import SlowLink, SlowTransfers
from distprof.terms import CollectiveKind

__all__ = ["find_slow_links"]

SLOWER = 1.15
"""Transfer relative to that of the other groups from which a link counts as slow."""

MIN_SHARE = 0.005
"""Share of the step below which a link is not reported."""

MIN_INSTANCES = 5

LEAST_QUANTILE = 0.2
"""This share of a slow group's transfers may be as short as the other groups' median."""


def find_slow_links(
    run: Run,
    analyses: Mapping[int, RankAnalysis],
    wait_ends: Mapping[int, Int64Array],
    mean_step_ns: float,
) -> tuple[SlowLink, ...]:
    """Slow links, most expensive first; one entry per set of ranks.

    Args:
        run: The recording.
        analyses: Per-rank analyses by rank.
        wait_ends: When the last member of each collective started, on each rank's own clock.
        mean_step_ns: Mean step, which shares refer to.
    """
    cells = _cells(run, analyses, wait_ends)
    if cells is None:
        return ()
    num_steps = max(len(analysis.steps) for analysis in analyses.values())
    slow = [one for members in _by_class(run, cells).values() for one in _slow_of(cells, members)]
    found: dict[tuple[int, ...], list[SlowLink]] = {}
    for one, ranks in zip(slow, _blamed(run, cells, slow), strict=True):
        link = _link(run, cells, one, ranks, max(num_steps, 1), mean_step_ns)
        found.setdefault(link.ranks, []).append(link)
    together = [_together(parts) for parts in found.values()]
    links = [link for link in together if link.share_of_step_ratio >= MIN_SHARE]
    return tuple(sorted(links, key=lambda link: (-link.lost_ns_per_step, link.ranks)))


class _Cells(msgspec.Struct, frozen=True, kw_only=True):
    """Transfers by ranks, kind and size; arrays of equal length.

    Args:
        place: Place of the ranks, from :func:`~distprof.sections.matched.places`.
        group: Index of the process group.
        kind: A CollectiveKind.
        bytes: Size, ABSENT if unknown.
        count: Number of transfers.
        median_ns: Median of the transfers.
        least_ns: The transfer at :data:`LEAST_QUANTILE`.
        exposed_ns: Exposed part on the median member, sum over the transfers.
    """

    place: Int64Array
    group: Int64Array
    kind: Int64Array
    bytes: Int64Array
    count: Int64Array
    median_ns: Int64Array
    least_ns: Int64Array
    exposed_ns: Int64Array


def _cells(
    run: Run, analyses: Mapping[int, RankAnalysis], wait_ends: Mapping[int, Int64Array]
) -> _Cells | None:
    index = RowIndex.of(run, analyses)
    members = index.members(run.matches)
    chosen = _chosen(run, analyses, index, members)
    if len(chosen) == 0:
        return None
    lengths, exposed_ns = (
        segment_median(index.column(of), members.offsets, members.row)[chosen]
        for of in _columns(analyses, wait_ends)
    )
    known = lengths >= 0
    chosen, lengths, exposed_ns = chosen[known], lengths[known], exposed_ns[known]
    if len(chosen) == 0:
        return None
    matches = run.matches
    keys = np.stack(
        [
            column[chosen].astype(np.int64)
            for column in (places(matches), matches.group, matches.kind, matches.bytes)
        ]
    )
    order = np.lexsort((lengths, *keys))
    table = keys[:, order]
    changes = np.flatnonzero((np.diff(table, axis=1) != 0).any(axis=0)) + 1
    first = np.concatenate(([0], changes)).astype(np.int64)
    count = np.diff(np.append(first, len(order)))
    ordered = lengths[order]
    return _Cells(
        place=table[0, first],
        group=table[1, first],
        kind=table[2, first],
        bytes=table[3, first],
        count=count,
        median_ns=ordered[first + (count - 1) // 2],
        least_ns=ordered[first + (LEAST_QUANTILE * (count - 1)).astype(np.int64)],
        exposed_ns=np.add.reduceat(exposed_ns[order], first),
    )


def _chosen(
    run: Run, analyses: Mapping[int, RankAnalysis], index: RowIndex, members: Members
) -> Int64Array:
    """Complete instances inside the analysed steps, of kinds that load each group equally."""
    matches = run.matches
    kinds = [kind for kind in CollectiveKind if kind.is_symmetric and kind not in _BY_CONTENT]
    messages = (places(matches) < 0) & (np.diff(matches.offsets) == 2)
    wanted = matches.complete & (np.isin(matches.kind, kinds) | messages)
    wanted &= np.diff(members.offsets) == np.diff(matches.offsets)
    wanted &= np.diff(members.offsets) > 1
    known = np.array([bool(group.ranks) for group in run.topology.groups], dtype=np.bool_)
    wanted &= np.isin(matches.group, np.flatnonzero(known))
    instances = np.flatnonzero(wanted)
    step = index.column(lambda rank: analyses[rank.rank].collective_step)
    inside: Int64Array = instances[step[members.first_row[instances]] >= 0]
    return inside


_BY_CONTENT = (CollectiveKind.ALL_TO_ALL, CollectiveKind.BARRIER)
"""Kinds whose duration depends on the content, or that send nothing."""


def _columns(
    analyses: Mapping[int, RankAnalysis], wait_ends: Mapping[int, Int64Array]
) -> Iterator[Callable[[Rank], Int64Array]]:
    """Transfer of each row of a rank, ABSENT if unknown, and the exposed part of it."""

    def transfer(rank: Rank) -> Int64Array:
        until = wait_ends[rank.rank]
        whole = np.maximum(rank.collectives["end_ns"] - until, 0)
        return np.where(until == ABSENT, ABSENT, whole).astype(np.int64)

    def exposed(rank: Rank) -> Int64Array:
        analysis = analyses[rank.rank]
        rest = analysis.exposed_ns - np.maximum(analysis.exposed_wait_ns, 0)
        return rest.astype(np.int64)

    yield from (transfer, exposed)


def _by_class(run: Run, cells: _Cells) -> Mapping[tuple[int, int, int, str, int], list[int]]:
    """Cells of the same kind and size, on groups of the same size, axis and number of nodes."""
    groups = run.topology.groups
    found: dict[tuple[int, int, int, str, int], list[int]] = {}
    for cell, place in enumerate(cells.place.tolist()):
        if cells.count[cell] >= MIN_INSTANCES:
            ranks = ranks_at(place, groups)
            axis = _axis(groups[int(cells.group[cell])])
            looks = (len(ranks), axis, len(_nodes(run, ranks)))
            key = (int(cells.kind[cell]), int(cells.bytes[cell]), *looks)
            found.setdefault(key, []).append(cell)
    return found


def _axis(group: ProcessGroup) -> str:
    return group.axis.value if group.axis is not None else group.description


def _nodes(run: Run, ranks: tuple[int, ...]) -> tuple[str, ...]:
    """Names of the nodes that ranks run on, as far as known."""
    wanted = set(ranks)
    return tuple(name for name, held in run.topology.nodes.items() if wanted & set(held))


class _Slow(msgspec.Struct, frozen=True):
    """A slow cell, the usual time, and the cells that are not slow."""

    cell: int
    usual_ns: int
    others: tuple[int, ...]


def _slow_of(cells: _Cells, members: list[int]) -> Iterator[_Slow]:
    """Cells of a class that are slower than the others; at most half of them can be."""
    medians = cells.median_ns[members]
    if len(members) < 2:
        return
    usual = int(np.sort(medians)[(len(members) - 1) // 2])  # of two, the faster is the reference
    slow = [
        cell
        for cell, median in zip(members, medians.tolist(), strict=True)
        if usual > 0 and median >= SLOWER * usual and cells.least_ns[cell] > usual
    ]
    others = tuple(cell for cell in members if cell not in set(slow))
    for cell in slow:
        yield _Slow(cell, usual, others)


def _blamed(run: Run, cells: _Cells, slow: Sequence[_Slow]) -> list[tuple[int, ...]]:
    """For each slow cell, the ranks that share the slow link, or one of which has it."""
    groups = run.topology.groups

    def ranks_of(cell: int) -> frozenset[int]:
        return frozenset(ranks_at(int(cells.place[cell]), groups))

    usual = {ranks_of(cell) for one in slow for cell in one.others}
    nodes = [frozenset(ranks) for ranks in run.topology.nodes.values()]
    whole = [node for node in nodes if not any(_leaves(ranks, node) for ranks in usual)]
    by_class: dict[tuple[int, ...], list[frozenset[int]]] = {}
    for one in slow:
        by_class.setdefault(one.others, []).append(ranks_of(one.cell))
    shared = {others: frozenset.intersection(*held) for others, held in by_class.items()}
    result = []
    for one in slow:
        left = [node for node in whole if _leaves(ranks_of(one.cell), node)]
        blamed = left[0] if len(left) == 1 else shared[one.others] or ranks_of(one.cell)
        result.append(tuple(sorted(blamed)))
    return result


def _leaves(ranks: frozenset[int], node: frozenset[int]) -> bool:
    """Whether transfers among these ranks leave or enter the node."""
    return bool(ranks & node) and bool(ranks - node)


def _link(
    run: Run,
    cells: _Cells,
    slow: _Slow,
    ranks: tuple[int, ...],
    num_steps: int,
    mean_step_ns: float,
) -> SlowLink:
    cell = slow.cell
    median = int(cells.median_ns[cell])
    lost = float(cells.exposed_ns[cell]) * (1 - slow.usual_ns / median) / num_steps
    group = run.topology.groups[int(cells.group[cell])]
    size = None if cells.bytes[cell] == ABSENT else int(cells.bytes[cell])
    kind = CollectiveKind(int(cells.kind[cell])).label
    transfers = SlowTransfers(
        ranks=ranks_at(int(cells.place[cell]), run.topology.groups),
        kind=kind,
        bytes=size,
        transfer_ns=median,
        others_ns=slow.usual_ns,
    )
    return SlowLink(
        ranks=ranks,
        nodes=_nodes(run, ranks),
        axis=_axis(group),
        kind=kind,
        bytes=size,
        transfer_ns=median,
        others_ns=slow.usual_ns,
        ratio=median / slow.usual_ns,
        num_compared=len(slow.others),
        lost_ns_per_step=int(lost),
        share_of_step_ratio=lost / max(mean_step_ns, 1.0),
        transfers=(transfers,),
    )


def _together(parts: Sequence[SlowLink]) -> SlowLink:
    """One entry for all losses of the same ranks: the most expensive one, with the total cost.

    Losses of different ranks at the same time do not add up: the rank that loses most counts.
    """
    costliest = max(parts, key=lambda link: link.lost_ns_per_step)
    lost: Counter[int] = Counter()
    for link in parts:
        lost.update(dict.fromkeys(link.transfers[0].ranks, link.lost_ns_per_step))
    most = max(lost.values())
    return replace(
        costliest,
        lost_ns_per_step=most,
        share_of_step_ratio=costliest.share_of_step_ratio
        * most
        / max(costliest.lost_ns_per_step, 1),
        transfers=tuple(transfers for link in parts for transfers in link.transfers),
    )
