"""Whether a link is slow: the same collective takes some groups longer to transfer than others.

A transfer runs from the last member's start to the end, so it contains no lateness. Groups of one
axis do the same work at the same time. A group whose transfers of the same kind and size take
longer than the other groups' uses a slow link. Messages are compared in the same way: two ranks
that send to each other are a group. If all transfers that leave one node are slow and no others
are, the link is that node's. Otherwise, if several slow groups have members in common, of one axis
or of several, it is the link of one of these members.

A link may be slow only for a time. Each group is compared with the others step by step, and in the
steps in which it falls behind as above. If all groups of an axis take longer in some steps than in
the others, the network was slow for all of them, and no link is blamed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

import msgspec
import numpy as np

from distprof.artefacts.record import grouped, made_from
from distprof.run.run import Rank, Run
from distprof.run.tables import runs_of
from distprof.schema import ABSENT, Bools, Floats, Int64Array
from distprof.sections.context import RankAnalysis
from distprof.sections.matched import (
    Members,
    RowIndex,
    places,
    ranks_at,
    segment_median,
    transfer_of,
)
from distprof.sections.stragglers import SlowLink, SlowTransfers
from distprof.sections.stragglers.sets import axis_of
from distprof.terms import CollectiveKind

SLOWER = 1.15
"""Transfer relative to that of the other groups from which a link counts as slow."""

MIN_SHARE = 0.005
"""Share of the step below which a link is not reported."""

MIN_INSTANCES = 5

LEAST_QUANTILE = 0.2
"""This share of a slow group's transfers may be as short as the other groups' median."""

FOR_A_TIME = 1.5
"""Transfer relative to the usual one from which a link counts as slow for a time."""

ONCE = 2.5
"""The same for a single step."""

MIN_STEPS = 2
"""Steps in which a link that is slow for a time must be as fast as usual."""

FAST_SHARE = 0.25
"""A link that is slow for a time is as fast as usual in this share of the steps, or more."""

CLEARLY = 0.25
"""Gap between the usual and the slow steps of a link that is slow for a time, over the usual."""


def find_slow_links(
    run: Run,
    analyses: Mapping[int, RankAnalysis],
    wait_ends: Mapping[int, Int64Array],
    mean_step_ns: float,
) -> tuple[SlowLink, ...]:
    """Slow links, most expensive first; one entry per set of ranks and time."""
    transfers = _transfers(run, analyses, wait_ends)
    if transfers is None:
        return ()
    steps = [step.step for step in max((one.steps for one in analyses.values()), key=len)]
    lasting = list(_slower_than_others(run, _Cells.of(transfers)))
    events = [lasting, *_for_a_time(run, transfers, {one.place for one in lasting}, steps)]
    found: list[SlowLink] = []
    for event in events:
        by_ranks = grouped(zip(_blamed(run, event), event, strict=True))
        found += [
            _link(run, slow, ranks, max(len(steps), 1), mean_step_ns)
            for ranks, slow in by_ranks.items()
        ]
    links = [link for link in found if link.share_of_step_ratio >= MIN_SHARE]
    return tuple(sorted(links, key=lambda link: (-link.lost_ns_per_step, link.ranks, link.steps)))


class _Transfers(msgspec.Struct, frozen=True, kw_only=True):
    """Transfers of all groups; arrays of equal length."""

    place: Int64Array  # Place of the ranks, from :func:`~distprof.sections.matched.places`.
    group: Int64Array  # Index of the process group.
    kind: Int64Array  # A CollectiveKind.
    bytes: Int64Array  # Size, ABSENT if unknown.
    step: Int64Array  # Index of the step.
    length_ns: Int64Array  # From the last member's start, on the median member.
    exposed_ns: Int64Array  # Exposed part of it.

    def only(self, chosen: Bools) -> _Transfers:
        """Some of them."""
        return _Transfers(**{name: getattr(self, name)[chosen] for name in self.__struct_fields__})

    def by_cell(self) -> tuple[Int64Array, Int64Array, Int64Array]:
        """Order by cell and length, where each cell begins in it, and its length."""
        keys = [getattr(self, name) for name in _CELL]
        order = np.lexsort((self.length_ns, *keys))
        return order, *runs_of(*(key[order] for key in keys))


class _Cells(msgspec.Struct, frozen=True, kw_only=True):
    """Transfers by ranks, kind and size; arrays of equal length."""

    place: Int64Array  # As in :class:`_Transfers`.
    group: Int64Array
    kind: Int64Array
    bytes: Int64Array
    count: Int64Array  # Number of transfers.
    median_ns: Int64Array  # Median of the transfers.
    least_ns: Int64Array  # The transfer at :data:`LEAST_QUANTILE`.
    exposed_ns: Int64Array  # Exposed part on the median member, sum over the transfers.

    @staticmethod
    def of(transfers: _Transfers) -> _Cells:
        """Cells of these transfers."""
        order, first, count = transfers.by_cell()
        ordered = transfers.length_ns[order]
        return _Cells(
            **{name: getattr(transfers, name)[order[first]] for name in _CELL},
            count=count,
            median_ns=ordered[first + (count - 1) // 2],
            least_ns=ordered[first + (LEAST_QUANTILE * (count - 1)).astype(np.int64)],
            exposed_ns=np.add.reduceat(transfers.exposed_ns[order], first),
        )

    def keys(self) -> Iterator[tuple[int, ...]]:
        """What each cell is."""
        return zip(*(getattr(self, name).tolist() for name in _CELL), strict=True)


_CELL = ("place", "group", "kind", "bytes")


def _transfers(
    run: Run, analyses: Mapping[int, RankAnalysis], wait_ends: Mapping[int, Int64Array]
) -> _Transfers | None:
    def exposed(rank: Rank) -> Int64Array:
        analysis = analyses[rank.rank]
        return (analysis.exposed.ns - np.maximum(analysis.exposed.wait_ns, 0)).astype(np.int64)

    index, matches = RowIndex.of(run, analyses), run.matches
    members = index.members(matches)
    step = index.column(lambda rank: analyses[rank.rank].collective_step)
    chosen = _chosen(run, step, members)
    if len(chosen) == 0:
        return None
    lengths, exposed_ns = (
        segment_median(index.column(of), members.offsets, members.row)[chosen]
        for of in (lambda rank: transfer_of(rank, wait_ends), exposed)
    )
    known = lengths >= 0
    chosen = chosen[known]
    if len(chosen) == 0:
        return None
    return _Transfers(
        place=places(matches)[chosen],
        group=matches.group[chosen].astype(np.int64),
        kind=matches.kind[chosen].astype(np.int64),
        bytes=matches.bytes[chosen].astype(np.int64),
        step=step[members.first_row[chosen]].astype(np.int64),
        length_ns=lengths[known],
        exposed_ns=exposed_ns[known],
    )


def _chosen(run: Run, step: Int64Array, members: Members) -> Int64Array:
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
    return instances[step[members.first_row[instances]] >= 0]


_BY_CONTENT = (CollectiveKind.ALL_TO_ALL, CollectiveKind.BARRIER)
"""Kinds whose duration depends on the content, or that send nothing."""

_Looks = tuple[int, str, int]


def _looks(run: Run, place: int, group: int) -> _Looks:
    """Size, axis and number of nodes of a group: groups that look the same do the same work."""
    ranks = ranks_at(place, run.topology.groups)
    return len(ranks), axis_of(run.topology.groups[group]), len(_nodes(run, ranks))


def _nodes(run: Run, ranks: tuple[int, ...]) -> tuple[str, ...]:
    """Names of the nodes that ranks run on, as far as known."""
    wanted = set(ranks)
    return tuple(name for name, held in run.topology.nodes.items() if wanted & set(held))


class _Slow(msgspec.Struct, frozen=True, kw_only=True):
    """Slow transfers of one group, kind and size."""

    place: int  # Place of the ranks.
    group: int  # Index of the process group.
    kind: int  # A CollectiveKind.
    bytes: int  # Size, ABSENT if unknown.
    length_ns: int  # Median of the transfers.
    usual_ns: int  # The usual time.
    exposed_ns: int  # Exposed part, sum over the transfers.
    others: tuple[int, ...]  # Places of the groups that are not slow; empty if all of the axis are.
    steps: tuple[int, ...] = ()  # Steps in which they are slow; empty for all.

    @staticmethod
    def of(cells: _Cells, cell: int, usual_ns: int, **more: tuple[int, ...]) -> _Slow:
        """The slow transfers of a cell."""
        return _Slow(
            place=int(cells.place[cell]),
            group=int(cells.group[cell]),
            kind=int(cells.kind[cell]),
            bytes=int(cells.bytes[cell]),
            length_ns=int(cells.median_ns[cell]),
            usual_ns=usual_ns,
            exposed_ns=int(cells.exposed_ns[cell]),
            **more,
        )

    @property
    def lost_ns(self) -> float:
        """Exposed transfer above the usual, sum over the transfers."""
        return self.exposed_ns * (1 - self.usual_ns / self.length_ns)


def _slower_than_others(
    run: Run, cells: _Cells, steps: tuple[int, ...] = (), least_ratio: float = SLOWER
) -> Iterator[_Slow]:
    """Cells that are slower than the others of their class; at most half of them can be."""
    # A class is the same kind and size, on groups of the same size, axis and number of nodes.
    classes: defaultdict[tuple[int, int, _Looks], list[int]] = defaultdict(list)
    for cell in np.flatnonzero(cells.count >= (1 if steps else MIN_INSTANCES)).tolist():
        looks = _looks(run, int(cells.place[cell]), int(cells.group[cell]))
        classes[int(cells.kind[cell]), int(cells.bytes[cell]), looks].append(cell)
    for members in classes.values():
        medians = cells.median_ns[members]
        if len(members) < 2:
            continue
        usual = int(np.sort(medians)[(len(members) - 1) // 2])  # of two, the faster one counts
        slow = [
            cell
            for cell, median in zip(members, medians.tolist(), strict=True)
            if usual > 0 and median >= least_ratio * usual and cells.least_ns[cell] > usual
        ]
        others = tuple(int(cells.place[cell]) for cell in members if cell not in set(slow))
        yield from (_Slow.of(cells, cell, usual, others=others, steps=steps) for cell in slow)


# Slow for a time ----------------------------------------------------------------------------------


def _for_a_time(
    run: Run, transfers: _Transfers, lasting: set[int], steps: Sequence[int]
) -> Iterator[list[_Slow]]:
    """Transfers that are slow in some steps only, those of the same time together."""
    events: list[list[_Slow]] = []
    places_seen, groups, paces = _paces(transfers, len(steps))
    looks = [_looks(run, *each) for each in zip(places_seen, groups, strict=True)]
    alike = grouped([(look, row) for row, look in enumerate(looks)])
    for rows in alike.values():
        # Lower median: of two groups, the faster one counts.
        ordered = np.sort(paces[rows], axis=0)  # NaN come last
        known = np.isfinite(ordered).sum(axis=0)
        axis_pace: Floats = ordered[np.maximum(known - 1, 0) // 2, range(len(known))]
        if when := _slow_steps(axis_pace):
            inside = np.isin(transfers.place, [places_seen[row] for row in rows])
            yield list(_slower_than_before(transfers.only(inside), when, steps))
        for row in rows if len(rows) > 1 else ():
            pace = paces[row]
            ratio = np.divide(pace, axis_pace, where=axis_pace > 0, out=np.full(len(pace), np.nan))
            when = _slow_steps(ratio)
            if when and places_seen[row] not in lasting:
                named = tuple(steps[step] for step in when)
                cells = _Cells.of(transfers.only(np.isin(transfers.step, when)))
                found = _slower_than_others(run, cells, named, FOR_A_TIME)
                _put(events, [one for one in found if one.place == places_seen[row]])
    yield from events


def _paces(transfers: _Transfers, num_steps: int) -> tuple[list[int], list[int], Floats]:
    """Places of groups, a process group of each, and how long their transfers take in each step."""
    # Relative to the fast ones of their group and size, shape ``(places, steps)``; NaN where a
    # group transfers nothing.
    order, first, count = transfers.by_cell()
    fast = transfers.length_ns[order[first + (FAST_SHARE * (count - 1)).astype(np.int64)]]
    usual = np.empty(len(order))
    usual[order] = np.repeat(fast, count)
    place, example, number = np.unique(transfers.place, return_index=True, return_inverse=True)
    at = number * num_steps + transfers.step
    spent, expected = (
        np.bincount(at, weights=ns, minlength=len(place) * num_steps)
        for ns in (transfers.length_ns, usual)
    )
    ratio = np.divide(spent, expected, out=np.full(len(spent), np.nan), where=expected > 0)
    return place.tolist(), transfers.group[example].tolist(), ratio.reshape(len(place), num_steps)


def _slow_steps(ratio: Floats) -> tuple[int, ...]:
    """Steps in which transfers take clearly longer than in the others; empty if there are none."""
    # The first step alone proves nothing: it often connects ranks, or reserves memory.
    known = np.flatnonzero(np.isfinite(ratio))
    order = known[np.argsort(ratio[known], kind="stable")]
    ordered = ratio[order]
    first = max(MIN_STEPS, int(np.ceil(FAST_SHARE * len(order))))
    for fast in range(first, len(order)):
        slow = tuple(sorted(order[fast:].tolist()))
        gap = ordered[fast] - ordered[fast - 1]
        is_clear = gap >= max(CLEARLY * ordered[fast - 1], ordered[fast - 1] - ordered[0])
        least = ONCE if len(slow) == 1 else FOR_A_TIME
        if is_clear and np.median(ordered[fast:]) >= least * np.median(ordered[:fast]):
            return slow if slow != (0,) else ()
    return ()


def _slower_than_before(
    transfers: _Transfers, when: tuple[int, ...], steps: Sequence[int]
) -> Iterator[_Slow]:
    """Transfers of groups that are all slow in some steps, compared with the other steps."""
    slow = np.isin(transfers.step, when)
    cells, usual = _Cells.of(transfers.only(slow)), _Cells.of(transfers.only(~slow))
    known = dict(zip(usual.keys(), usual.median_ns.tolist(), strict=True))
    named = tuple(steps[step] for step in when)
    for cell, key in enumerate(cells.keys()):
        usual_ns = known.get(key, 0)
        if usual_ns and cells.median_ns[cell] >= SLOWER * usual_ns:
            yield _Slow.of(cells, cell, usual_ns, others=(), steps=named)


def _put(events: list[list[_Slow]], slow: list[_Slow]) -> None:
    """Add slow transfers to those that share most of their steps."""
    if not slow:
        return
    steps = {*slow[0].steps}
    for event in events:
        if 2 * len(steps & {*event[0].steps}) > len(steps | {*event[0].steps}):
            event += slow
            return
    events.append(slow)


# Whose link ---------------------------------------------------------------------------------------


def _blamed(run: Run, slow: Sequence[_Slow]) -> list[tuple[int, ...]]:
    """For slow transfers, the ranks that share the slow link, or one of which has it."""
    # All ranks of the axis if all of its groups are slow.
    groups = run.topology.groups

    def ranks_of(place: int) -> frozenset[int]:
        return frozenset(ranks_at(place, groups))

    usual = {ranks_of(place) for one in slow for place in one.others}
    nodes = [frozenset(ranks) for ranks in run.topology.nodes.values()]
    whole = [node for node in nodes if not any(_leaves(ranks, node) for ranks in usual)]
    by_class = grouped([(one.others, ranks_of(one.place)) for one in slow])
    shared = {others: frozenset.intersection(*held) for others, held in by_class.items()}
    known = [ranks for ranks in shared.values() if ranks]
    of_all = frozenset.intersection(*known) if known else frozenset()
    result = []
    for one in slow:
        own = ranks_of(one.place)
        left = [node for node in whole if _leaves(own, node)]
        common = of_all & own or shared[one.others] or own
        blamed = left[0] if len(left) == 1 else common
        everybody = frozenset[int]().union(*by_class[one.others])
        result.append(tuple(sorted(blamed if one.others else everybody)))
    return result


def _leaves(ranks: frozenset[int], node: frozenset[int]) -> bool:
    """Whether transfers among these ranks leave or enter the node."""
    return bool(ranks & node) and bool(ranks - node)


def _link(
    run: Run, slow: Sequence[_Slow], ranks: tuple[int, ...], num_steps: int, mean_step_ns: float
) -> SlowLink:
    """One entry for all losses of the same ranks: the most expensive one, with the total cost."""
    # Losses of different ranks at the same time do not add up: the rank that loses most counts.
    groups = run.topology.groups
    lost: defaultdict[int, float] = defaultdict(float)
    for one in slow:
        for rank in ranks_at(one.place, groups):
            lost[rank] += one.lost_ns / num_steps
    most, first = max(lost.values()), max(slow, key=lambda one: one.lost_ns)
    transfers = [
        SlowTransfers(
            ranks=ranks_at(one.place, groups),
            kind=CollectiveKind(one.kind).label,
            bytes=None if one.bytes == ABSENT else one.bytes,
            transfer_ns=one.length_ns,
            others_ns=one.usual_ns,
        )
        for one in slow
    ]
    example = transfers[slow.index(first)]
    return made_from(
        example,
        SlowLink,
        ranks=ranks,
        nodes=_nodes(run, ranks),
        axis=axis_of(groups[first.group]),
        ratio=example.transfer_ns / example.others_ns,
        num_compared=len(first.others),
        steps=first.steps,
        num_steps=num_steps,
        lost_ns_per_step=int(most),
        share_of_step_ratio=most / max(mean_step_ns, 1.0),
        transfers=tuple(transfers),
    )
