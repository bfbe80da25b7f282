"""Which rank arrived last at each matched collective, how clearly, at what cost, and why so late.

In a mesh of several axes a slow rank delays its own group, whose members then come late to *their*
other groups although they did nothing wrong. Lateness is therefore compared with the time that each
rank waited since its group last met: after the group's previous collective all members continue
together, and a rank does not cause its own exposed waiting in other groups after that. If this
waiting explains at least :data:`INHERITED` of the lateness of the last member, the instance points
to the one in which that member waited longest, and blame follows the pointers to their root. If
transfers that took the last member longer than the others explain as much, a link held it up, and
no rank is to blame. In a group with a rank that was not recorded, such a transfer may be waiting
for that rank, also if it is hidden: a collective that needs its result starts no sooner.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from distprof.join.waits import blocks_of, comparable_instances, index_type, positions_by_code
from distprof.run.run import ClockAlignment, Rank, Run
from distprof.run.tables import distinct, order_of_codes
from distprof.schema import ABSENT, Bools, Floats, Int64Array
from distprof.sections.context import RankAnalysis
from distprof.sections.matched import Members, RowIndex, by_size
from distprof.sections.own_time import held_stages
from distprof.terms import MESSAGES, CollectiveKind
from distprof.units import fold_ranks


class Arrivals(msgspec.Struct, frozen=True, kw_only=True):
    """One entry per judged instance."""

    instance: Int64Array  # Index of the matched instance.
    step: Int64Array  # Index of the analysed step.
    # Position of the rank to blame, among the analysed ranks: the last to arrive, or the rank that
    # had made it wait before.
    blamed: Int64Array
    # Median exposed wait of the other members present, as a mean over all other ranks.
    cost_ns: Int64Array
    margin_ns: Int64Array  # Last start less the second last.
    rest_spread_ns: Int64Array  # Second last start less the first: how far the others are apart.
    size: Int64Array  # Number of members present.
    # Whether the last rank is later than all others by more than the clock residual.
    clear: Bools
    # Entry that shows the origin of the lateness: its own, or the one that it propagated from (-1
    # if that instance was not judged).
    root: Int64Array


class Blame(msgspec.Struct, frozen=True, kw_only=True):
    """What each rank cost the others. P analysed ranks, S analysed steps."""

    ranks: tuple[int, ...]  # Global rank of each position.
    # float64, shape ``(P, S)``: cost of the instances that the rank is to blame for. If several
    # ranks start too close together to say which was last, they share it equally.
    lost_ns: Floats
    # float64, shape ``(P, S)``: mean of its starts after the median member's.
    lateness_ns: Floats
    # float64, shape ``(P,)``: number of instances in which it came last, shared in the same way,
    # whichever rank is to blame.
    late: Floats
    judged: Int64Array  # int64, shape ``(P,)``: number of judged instances that it is a member of.
    arrivals: Arrivals  # The judged instances.
    num_judged: int  # Number of judged instances, including ``num_below_residual``.
    # Instances whose members start too close together for the clocks to show which was last; no
    # rank is blamed for them.
    num_below_residual: int
    num_incomparable: int  # Instances whose members' clocks cannot be compared; not judged.
    num_incomplete: int  # Judged instances with a member missing from the capture.
    # Instances that join ranks of different pipeline stages, which finish their steps at different
    # times by design; not judged.
    num_across_stages: int = 0
    # Cost of all instances whose last member may have waited for a rank that was not recorded.
    unrecorded_ns: int = 0

    @property
    def confidence(self) -> float:
        """Factor on confidence: incomplete collectives count half, a missing one may be last."""
        return 1 - 0.5 * self.num_incomplete / max(self.num_judged, 1)

    @property
    def lacks(self) -> tuple[str, ...]:
        """A sentence on incomplete collectives, if there are any."""
        if self.num_incomplete == 0:
            return ()
        return (
            f"{self.num_incomplete} of {self.num_judged} collectives lack a member in this "
            "capture: an unrecorded rank may have been even later",
        )


def judge_arrivals(run: Run, analyses: Mapping[int, RankAnalysis], num_steps: int) -> Blame:
    """Blame the last member of every matched collective inside the analysed steps.

    Only operations that no member can finish before all have started are judged. In a broadcast or
    a message, the last rank to start need not delay the others.
    """
    context = _Context.of(run, analyses)
    tally = _Tally(context, num_steps)
    kind, size = run.matches.kind, np.diff(run.matches.offsets)
    symmetric = [k for k in CollectiveKind if k.is_symmetric]
    # Grouped send and receive among three or more is how NCCL runs an all-to-all.
    waits = np.isin(kind, symmetric) | ((kind == CollectiveKind.SEND_RECV) & (size > 2))
    wanted: Bools = waits & comparable_instances(run.matches, run.clock)
    wanted[run.window.start_waits] = False  # they may wait for the start of the profiler
    # A rank whose tables could not be read counts as missing, like one that was not recorded.
    unread = np.diff(context.members.offsets) < np.diff(run.matches.offsets)
    incomplete = ~run.matches.complete | unread
    for instances, positions in by_size(context.members.offsets):
        chosen = wanted[instances] & (positions.shape[1] > 1)
        if chosen.any():
            stage = context.stage[context.members.rank_index[positions]]
            peers = (stage == stage[:, :1]).all(axis=1)
            tally.num_across_stages += int((chosen & ~peers).sum())
            instances, positions = instances[chosen & peers], positions[chosen & peers]
            tally.add(instances, positions, incomplete[instances])
    return tally.blame()


class _Context(msgspec.Struct, frozen=True, kw_only=True):
    """Inputs of the judgement: of ranks, of their rows, of instances."""

    ranks: tuple[int, ...]
    stage: Int64Array  # A number for the set of pipeline stages that each rank holds.
    clocks: _Clocks
    members: Members
    start_ns: Int64Array  # On the common clock.
    exposed_wait_ns: Int64Array
    step: NDArray[np.int32]
    roots: Int64Array  # Origin of each instance's lateness.
    last_rank: Int64Array  # Position of its last rank, -1 without members.

    @staticmethod
    def of(run: Run, analyses: Mapping[int, RankAnalysis]) -> _Context:
        index = RowIndex.of(run, analyses)
        members = index.members(run.matches)
        ranks = tuple(rank.rank for rank in index.ranks)
        start_ns = index.column(
            lambda rank: run.clock.to_common(rank.rank, rank.collectives["start_ns"])
        )
        exposure = _Exposure(run, analyses)
        roots, last_row = find_roots(
            index, members, start_ns, exposure.wait_ns, exposure.transfer_ns, exposure.unseen_ns
        )
        owner = np.searchsorted(index.base, last_row, side="right") - 1
        held_by = held_stages(analyses, run)
        codes = {stages: code for code, stages in enumerate(dict.fromkeys(held_by.values()))}
        return _Context(
            ranks=ranks,
            stage=np.array([codes[held_by[rank]] for rank in ranks], dtype=np.int64),
            clocks=_Clocks(run.clock, ranks),
            members=members,
            start_ns=start_ns,
            exposed_wait_ns=index.column(lambda rank: analyses[rank.rank].exposed.wait_ns),
            step=index.column(lambda rank: analyses[rank.rank].collective_step),
            roots=roots,
            last_rank=np.where(last_row >= 0, owner, -1),
        )


class _Exposure:
    """Exposed time of the rows of a rank, and what ranks that were not recorded did to them."""

    def __init__(self, run: Run, analyses: Mapping[int, RankAnalysis]) -> None:
        self._analyses = analyses
        groups = (group.ranks for group in run.topology.groups)
        # Groups with a member that was not analysed.
        self._lacking = {fold_ranks(of) for of in groups if not analyses.keys() >= {*of}}

    def wait_ns(self, rank: Rank) -> Int64Array:
        """Exposed wait for a rank that was recorded.

        Waits for messages pass from stage to stage. If a rank of the pipeline was not recorded,
        they may have begun with it.
        """
        wait = self._analyses[rank.rank].exposed.wait_ns
        return np.where(_is_message(rank) & self._lacks(rank), 0, wait).astype(np.int64)

    def transfer_ns(self, rank: Rank) -> Int64Array:
        """Exposed transfer.

        A message counts only if a rank of its pipeline was not recorded, with its wait, because
        wait and transfer of messages cannot be separated.
        """
        analysis = self._analyses[rank.rank]
        moved = analysis.exposed.ns - np.maximum(analysis.exposed.wait_ns, 0)
        unknown = np.where(self._lacks(rank), analysis.exposed.ns, 0)
        return np.where(_is_message(rank), unknown, moved).astype(np.int64)

    def unseen_ns(self, rank: Rank) -> Int64Array:
        """How long each row was held up in groups with a rank that was not recorded.

        That is the exposed time in such groups since the row's own group last met. A row that
        followed a collective of such a group on another stream was held up all of that time.
        """
        inside = self._lacks(rank)
        held = since_meeting(rank, self.transfer_ns(rank) * inside)
        line = self._analyses[rank.rank].line
        if line is None or len(line.leader) != len(held):
            return held
        length = (rank.collectives["end_ns"] - rank.collectives["start_ns"]) * inside
        followed = np.where(line.leader != ABSENT, length[line.leader], 0)
        return np.maximum(held, followed)

    def _lacks(self, rank: Rank) -> Bools:
        return rank.collectives.coded("group_ranks").isin(self._lacking)


def _is_message(rank: Rank) -> Bools:
    return np.isin(rank.collectives["kind"], MESSAGES)


class _Clocks:
    """Residual and component of each analysed rank's clock."""

    def __init__(self, clock: ClockAlignment, ranks: tuple[int, ...]) -> None:
        # Ranks of one domain share a clock, so an unmeasured residual matters across domains only.
        self.domain = np.asarray([clock.domain_of(rank) for rank in ranks], dtype=np.int64)
        within = clock.residual_ns if clock.within_ns is None else clock.within_ns
        within = np.where(within == ABSENT, clock.residual_ns, within)
        self.residual, self.within, self.component = (
            column[self.domain] if ranks else np.empty(0, np.int64)
            for column in (clock.residual_ns, within, clock.component)
        )

    def residual_of(self, rank_index: NDArray[np.int32]) -> Int64Array:
        """Uncertainty of each instance, shape ``(n,)``; ABSENT if clocks cannot be compared."""
        domain, component = self.domain[rank_index], self.component[rank_index]
        residual = self.residual[rank_index]
        comparable = (component == component[:, :1]).all(axis=1) & (residual >= 0).all(axis=1)
        across = np.where(comparable, np.maximum(residual.max(axis=1), 0), ABSENT)
        own = np.maximum(self.within[rank_index].max(axis=1), 0)
        return np.where((domain == domain[:, :1]).all(axis=1), own, across).astype(np.int64)


class _Tally:
    """Sums over instances, which are added in blocks of equal size: a row of members each."""

    def __init__(self, context: _Context, num_steps: int) -> None:
        self.context = context
        self.shape = (len(context.ranks), max(num_steps, 1))
        self.lost, self.lateness, self.seen = np.zeros((3, self.shape[0] * self.shape[1]))
        self.late = np.zeros(self.shape[0])
        self.judged = np.zeros(self.shape[0], dtype=np.int64)
        self.parts: list[Arrivals] = []
        self.num_below = self.num_incomparable = self.num_incomplete = 0
        self.num_across_stages = self.unrecorded_ns = 0

    def add(self, instance: Int64Array, positions: Int64Array, incomplete: Bools) -> None:
        members = self.context.members
        row, rank_index = (column[positions] for column in (members.row, members.rank_index))
        # All members see the end at the same moment, but gloo threads record it late, some in the
        # next step.
        steps, no_step = self.context.step[row], np.iinfo(np.int32).max
        first = np.where(steps < 0, no_step, steps).min(axis=1)
        residual_ns = self.context.clocks.residual_of(rank_index)
        inside, comparable = first != no_step, residual_ns != ABSENT
        self.num_incomparable += int((inside & ~comparable).sum())
        kept = inside & comparable
        self.num_incomplete += int(incomplete[kept].sum())
        if not kept.any():
            return
        instance, row, rank_index = instance[kept], row[kept], rank_index[kept]
        step, residual_ns = first[kept].astype(np.int64), residual_ns[kept]
        context, size = self.context, row.shape[1]
        start, root = context.start_ns[row], context.roots[instance]
        blamed = context.last_rank[np.maximum(root, 0)]
        # Members that start within the residual of the last one could be last.
        tied = start >= (start.max(axis=1) - residual_ns)[:, None]
        num_tied = tied.sum(axis=1)
        below = (2 * num_tied > size) | (root < 0)  # no rank is to blame for a slow link
        # As means over all other ranks, costs of parallel groups can be added.
        part = (size - 1) / max(self.shape[0] - 1, 1)
        wait = part * _usual_wait(context.exposed_wait_ns[row], start)
        self.unrecorded_ns += int(wait[root == UNRECORDED].sum())
        cost = np.where(below, 0, wait).astype(np.int64)
        share = np.where(below, 0.0, 1 / num_tied)[:, None] * tied
        cell = rank_index.astype(np.int64) * self.shape[1] + step[:, None]
        # The members that could be last pay, or the rank that caused propagated lateness.
        own = (root == instance) | (root < 0)
        _add(self.lost, cell[own], (share * cost[:, None])[own])
        _add(self.lost, (blamed * self.shape[1] + step)[~own], cost[~own])
        _add(self.lateness, cell, start - np.median(start, axis=1)[:, None])
        _add(self.seen, cell, np.ones(cell.shape))
        _add(self.late, rank_index, share)
        self.judged += np.bincount(rank_index.ravel(), minlength=self.shape[0])
        self.num_below += int((below & (root >= 0)).sum())
        ordered = np.sort(start, axis=1)
        self.parts.append(
            Arrivals(
                instance=instance,
                step=step,
                blamed=blamed,
                cost_ns=cost,
                margin_ns=ordered[:, -1] - ordered[:, -2],
                rest_spread_ns=ordered[:, -2] - ordered[:, 0],
                size=np.full(len(cost), size, dtype=np.int64),
                clear=(num_tied == 1) & (cost > 0),
                root=root,
            )
        )

    def blame(self) -> Blame:
        arrivals = _joined(self.parts)
        return Blame(
            ranks=self.context.ranks,
            lost_ns=self.lost.reshape(self.shape),
            lateness_ns=(self.lateness / np.maximum(self.seen, 1)).reshape(self.shape),
            late=self.late,
            judged=self.judged,
            arrivals=arrivals,
            num_judged=len(arrivals.step),
            num_below_residual=self.num_below,
            num_incomparable=self.num_incomparable,
            num_incomplete=self.num_incomplete,
            num_across_stages=self.num_across_stages,
            unrecorded_ns=self.unrecorded_ns,
        )


def _usual_wait(exposed_wait_ns: Int64Array, start_ns: Int64Array) -> Int64Array:
    """Median exposed wait of the members of each instance other than the last."""
    waits = np.maximum(exposed_wait_ns, 0)
    waits[np.arange(len(waits)), start_ns.argmax(axis=1)] = np.iinfo(np.int64).max
    others = np.sort(waits, axis=1)[:, :-1]
    median: Int64Array = np.floor(np.median(others, axis=1)).astype(np.int64)
    return median


def _add(into: Floats, cell: NDArray[Any], what: NDArray[Any]) -> None:
    into += np.bincount(cell.ravel(), weights=what.ravel(), minlength=len(into))


def _joined(parts: list[Arrivals]) -> Arrivals:
    """All arrivals, whose roots are entries instead of instances; -1 for a root not judged."""
    if not parts:
        none: Any = np.empty(0, np.int64)
        return Arrivals(**dict.fromkeys(Arrivals.__struct_fields__, none) | {"clear": none > 0})
    columns = {
        name: np.concatenate([getattr(part, name) for part in parts])
        for name in Arrivals.__struct_fields__
    }
    instance, root = columns["instance"], columns["root"]
    entry = np.full(int(max(instance.max(), root.max())) + 1, -1, dtype=np.int64)
    entry[instance] = np.arange(len(instance))
    return Arrivals(**columns | {"root": np.where(root >= 0, entry[root], -1)})


INHERITED = 0.5
"""Share of the last member's lateness that earlier waiting must explain for blame to move on."""

UNRECORDED = -2
"""Root of an instance whose last member may have waited for a rank that was not recorded."""

_OfRank: TypeAlias = "Callable[[Rank], Int64Array]"
"""A column of a rank's COLLECTIVES rows."""


def find_roots(
    index: RowIndex,
    members: Members,
    start_ns: Int64Array,
    exposed_wait_ns: _OfRank,
    exposed_transfer_ns: _OfRank,
    unseen_ns: _OfRank,
) -> tuple[Int64Array, Int64Array]:
    """For each instance, the one whose last member is to blame for it: itself or an earlier one.

    Rows are those of the analysed ranks: starts on the common clock, and by rank the exposed waits
    (negative if unknown), exposed transfers, and how long each row was held up in groups with a
    rank that was not recorded, since its own group last met.

    Returns:
        The instances to blame, int64, -1 if a transfer is to blame, :data:`UNRECORDED` if that may
        be waiting for a rank that was not recorded; and the row of each instance's last member, -1
        without members.
    """
    reasons = (
        index.column(lambda rank: since_meeting(rank, exposed_wait_ns(rank))),
        index.column(lambda rank: since_meeting(rank, exposed_transfer_ns(rank))),
        index.column(unseen_ns),
    )
    last_row = np.full(members.count, -1, dtype=np.int64)
    last_ns = np.zeros(members.count, dtype=np.int64)
    waited, moved, unseen = explains = np.zeros((len(reasons), members.count), dtype=np.bool_)
    for instances, positions in by_size(members.offsets):
        rows = members.row[positions]
        start = start_ns[rows]
        at = (np.arange(len(rows)), start.argmax(axis=1))
        late = start[at] - np.median(start, axis=1)
        last_row[instances], last_ns[instances] = rows[at], start[at]
        for times, reason in zip(reasons, explains, strict=True):
            of_rows = times[rows]
            more = of_rows[at] - np.median(of_rows, axis=1)
            reason[instances] = (late > 0) & (more >= INHERITED * late)
    del reasons
    source = _longest_wait(index, members, exposed_wait_ns, last_row, np.flatnonzero(waited))
    # Pointers lead back in time, so following them ends.
    root = _follow(np.where((source >= 0) & (last_ns[source] < last_ns), source, -1))
    held_up = (moved | unseen) & ~waited
    return np.where(held_up[root], np.where(unseen[root], UNRECORDED, -1), root), last_row


def since_meeting(rank: Rank, exposed_ns: Int64Array) -> Int64Array:
    """For each row, exposed time of the rank's rows since its group last met."""
    before = np.concatenate(([0], np.cumsum(np.maximum(exposed_ns, 0))))
    return before[:-1] - before[_previous_of_group(rank) + 1]


def _previous_of_group(rank: Rank) -> Int64Array:
    """For each row, the rank's row before it of the same group; -1 if none."""
    group, ranks = rank.collectives.coded("group"), rank.collectives.coded("group_ranks")
    code = group.codes.astype(np.int64) * max(len(ranks.values), 1) + ranks.codes
    order = order_of_codes(code, int(code.max(initial=0)) + 1)
    same = np.flatnonzero(code[order[1:]] == code[order[:-1]])
    previous = np.full(len(code), -1, dtype=np.int64)
    previous[order[same + 1]] = order[same]
    return previous


def _longest_wait(
    index: RowIndex,
    members: Members,
    exposed_wait_ns: _OfRank,
    last_row: Int64Array,
    inherited: Int64Array,
) -> Int64Array:
    """For each inherited instance, the instance in which its last member had waited longest."""
    result = np.full(members.count, -1, dtype=np.int64)
    if not len(inherited):
        return result
    instance_of_row = np.full(len(index), -1, dtype=index_type(members.count))
    sizes = np.diff(members.offsets)
    for low, high in blocks_of(members.offsets):
        rows = members.row[members.offsets[low] : members.offsets[high]]
        instance_of_row[rows] = np.repeat(np.arange(low, high), sizes[low:high])
    rank_of = np.searchsorted(index.base, last_row[inherited], side="right") - 1
    for position, mine in enumerate(positions_by_code(rank_of)):
        if len(mine):
            chosen, rank, base = inherited[mine], index.ranks[position], int(index.base[position])
            high = last_row[chosen] - base
            low = _previous_of_group(rank)[high] + 1
            longest = range_argmax(np.maximum(exposed_wait_ns(rank), 0), low, high)
            result[chosen] = instance_of_row[base + longest]
    return result


def range_argmax(values: Int64Array, low: Int64Array, high: Int64Array) -> Int64Array:
    """Position of the largest value in each range ``[low, high)``; ranges are not empty.

    A sparse table: position of the largest among the ``2**k`` values from each position on.
    """
    longest = int((high - low).max(initial=1))
    levels = [np.arange(len(values), dtype=np.int64)]
    while 2 ** len(levels) <= longest:
        half = 2 ** (len(levels) - 1)
        left, right = levels[-1][:-half], levels[-1][half:]
        levels.append(np.where(values[right] > values[left], right, left))
    exponent = np.frexp((high - low).astype(np.float64))[1].astype(np.int64) - 1
    result = np.empty(len(low), dtype=np.int64)
    for k in distinct(exponent).tolist():
        chosen = exponent == k
        left, right = levels[k][low[chosen]], levels[k][high[chosen] - 2**k]
        result[chosen] = np.where(values[right] > values[left], right, left)
    return result


def _follow(source: Int64Array) -> Int64Array:
    """Where the chain of pointers from each instance ends; -1 points to the instance itself."""
    target = np.where(source >= 0, source, np.arange(len(source), dtype=np.int64))
    while True:
        further = target[target]
        if (further == target).all():
            return target
        target = further
