"""Which rank arrived last at each matched collective, how clearly, and at what cost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import fields, replace
from numpy.typing import NDArray

from distprof.join.waits import comparable_instances
from distprof.run.run import ClockAlignment, Rank, Run
from distprof.schema import ABSENT, Int64Array
from distprof.sections.context import RankAnalysis
from distprof.sections.matched import Members, RowIndex, by_size
from distprof.sections.own_time import held_stages
from distprof.sections.stragglers.inheritance import UNRECORDED, find_roots, since_meeting
from distprof.terms import CollectiveKind
from distprof.units import fold_ranks


class Arrivals(msgspec.Struct, frozen=True, kw_only=True):
    """One entry per judged instance."""

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
    clear: NDArray[np.bool_]
    # Entry that shows the origin of the lateness: its own, or the one that it propagated from (-1
    # if that instance was not judged).
    root: Int64Array


class Blame(msgspec.Struct, frozen=True, kw_only=True):
    """What each rank cost the others. P analysed ranks, S analysed steps."""

    ranks: tuple[int, ...]  # Global rank of each position.
    # float64, shape ``(P, S)``: cost of the instances that the rank is to blame for. If several
    # ranks start too close together to say which was last, they share it equally.
    lost_ns: NDArray[np.float64]
    # float64, shape ``(P, S)``: mean of its starts after the median member's.
    lateness_ns: NDArray[np.float64]
    # float64, shape ``(P,)``: number of instances in which it came last, shared in the same way,
    # whichever rank is to blame.
    late: NDArray[np.float64]
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


def judge_arrivals(run: Run, analyses: Mapping[int, RankAnalysis], num_steps: int) -> Blame:
    """Blame the last member of every matched collective inside the analysed steps.

    Only operations that no member can finish before all have started are judged. In a broadcast or
    a message, the last rank to start need not delay the others.
    """
    context = _Context.of(run, analyses)
    tally = _Tally(len(context.ranks), num_steps)
    wanted = _waits_for_all(run)
    # A rank whose tables could not be read counts as missing, like one that was not recorded.
    unread = np.diff(context.members.offsets) < np.diff(run.matches.offsets)
    incomplete = ~run.matches.complete | unread
    for instances, positions in by_size(context.members.offsets):
        chosen = wanted[instances] & (positions.shape[1] > 1)
        if not chosen.any():
            continue
        peers = context.are_peers(positions)
        block = _Block.of(context, instances[chosen & peers], positions[chosen & peers])
        tally.num_across_stages += int((chosen & ~peers).sum())
        tally.add(block, incomplete[block.instance])
    return tally.blame(context.ranks)


class _Context(msgspec.Struct, frozen=True, kw_only=True):
    """Inputs of the judgement, for all instances.

    ``roots`` and ``last_rank``: per instance, the origin of its lateness, and the last rank.
    ``stage``: per rank, a number for the set of pipeline stages that it holds.
    """

    ranks: tuple[int, ...]
    members: Members
    columns: _Columns
    domains: _DomainsOf
    roots: Int64Array
    last_rank: Int64Array
    stage: Int64Array

    def are_peers(self, positions: Int64Array) -> NDArray[np.bool_]:
        """Whether all members of each instance, a row of positions, hold the same stages."""
        stage = self.stage[self.members.rank_index[positions]]
        same: NDArray[np.bool_] = (stage == stage[:, :1]).all(axis=1)
        return same

    @staticmethod
    def of(run: Run, analyses: Mapping[int, RankAnalysis]) -> _Context:
        index = RowIndex.of(run, analyses)
        members = index.members(run.matches)
        ranks = tuple(rank.rank for rank in index.ranks)
        start_ns = index.column(
            lambda rank: run.clock.to_common(rank.rank, rank.collectives["start_ns"])
        )
        lacking = _groups_lacking(run, analyses)
        roots, last_row = find_roots(
            index,
            members,
            start_ns,
            lambda rank: _known_wait(rank, analyses, lacking),
            lambda rank: _exposed_transfer(rank, analyses, lacking),
            lambda rank: _unseen(rank, analyses, lacking),
        )
        owner = np.searchsorted(index.base, last_row, side="right") - 1
        return _Context(
            ranks=ranks,
            members=members,
            columns=_Columns(
                start_ns=start_ns,
                exposed_wait_ns=index.column(lambda rank: analyses[rank.rank].exposed_wait_ns),
                step=index.column(lambda rank: analyses[rank.rank].collective_step),
            ),
            domains=_DomainsOf(run.clock, ranks),
            roots=roots,
            last_rank=np.where(last_row >= 0, owner, -1),
            stage=_stage_codes(run, analyses, ranks),
        )


def _stage_codes(
    run: Run, analyses: Mapping[int, RankAnalysis], ranks: tuple[int, ...]
) -> Int64Array:
    held = held_stages(analyses, run)
    numbers = {stages: number for number, stages in enumerate(dict.fromkeys(held.values()))}
    return np.array([numbers[held[rank]] for rank in ranks], dtype=np.int64)


class _Columns(msgspec.Struct, frozen=True, kw_only=True):
    start_ns: Int64Array  # common clock
    exposed_wait_ns: Int64Array
    step: NDArray[np.int32]


def _groups_lacking(run: Run, analyses: Mapping[int, RankAnalysis]) -> frozenset[str]:
    """Groups with a member that was not analysed, by their ranks."""
    groups = (group.ranks for group in run.topology.groups)
    return frozenset(fold_ranks(ranks) for ranks in groups if not analyses.keys() >= set(ranks))


def _known_wait(
    rank: Rank, analyses: Mapping[int, RankAnalysis], lacking: frozenset[str]
) -> Int64Array:
    """Exposed wait of each row for a rank that was recorded.

    Waits for messages pass from stage to stage. If a rank of the pipeline was not recorded, they
    may have begun with it.
    """
    wait = analyses[rank.rank].exposed_wait_ns
    return np.where(_is_message(rank) & _is_of(rank, lacking), 0, wait).astype(np.int64)


def _exposed_transfer(
    rank: Rank, analyses: Mapping[int, RankAnalysis], lacking: frozenset[str]
) -> Int64Array:
    """Exposed transfer of each row.

    A message counts only if a rank of its pipeline was not recorded, with its
    wait, because wait and transfer of messages cannot be separated.
    """
    analysis = analyses[rank.rank]
    moved = analysis.exposed_ns - np.maximum(analysis.exposed_wait_ns, 0)
    unknown = np.where(_is_of(rank, lacking), analysis.exposed_ns, 0)
    return np.where(_is_message(rank), unknown, moved).astype(np.int64)


def _unseen(
    rank: Rank, analyses: Mapping[int, RankAnalysis], lacking: frozenset[str]
) -> Int64Array:
    """How long each row was held up in groups with a rank that was not recorded.

    That is the exposed time in such groups since the row's own group last met. A row that followed
    a collective of such a group on another stream was held up all of that time, exposed or not.
    """
    inside = _is_of(rank, lacking)
    held = since_meeting(rank, _exposed_transfer(rank, analyses, lacking) * inside)
    line = analyses[rank.rank].line
    if line is None or len(line.leader) != len(held):
        return held
    length = (rank.collectives["end_ns"] - rank.collectives["start_ns"]) * inside
    followed = np.where(line.leader != ABSENT, length[line.leader], 0)
    return np.maximum(held, followed)


def _is_message(rank: Rank) -> NDArray[np.bool_]:
    messages = [kind for kind in CollectiveKind if kind.is_point_to_point]
    return np.isin(rank.collectives["kind"], messages)


def _is_of(rank: Rank, groups: frozenset[str]) -> NDArray[np.bool_]:
    """Whether each row belongs to one of the groups."""
    ranks = rank.collectives.coded("group_ranks")
    return ranks.where([value in groups for value in ranks.values])


def _waits_for_all(run: Run) -> NDArray[np.bool_]:
    """Whether the members of each instance wait for the last one, and the last one is known.

    Grouped send and receive among three or more is how NCCL runs an all-to-all.
    """
    kind, size = run.matches.kind, np.diff(run.matches.offsets)
    symmetric = [k for k in CollectiveKind if k.is_symmetric]
    exchange = (kind == CollectiveKind.SEND_RECV) & (size > 2)
    waits = np.isin(kind, symmetric) | exchange
    wanted: NDArray[np.bool_] = waits & comparable_instances(run.matches, run.clock)
    wanted[run.window.start_waits] = False  # they may wait for the start of the profiler
    return wanted


class _DomainsOf:
    """Residual and component of each analysed rank's clock."""

    def __init__(self, clock: ClockAlignment, ranks: tuple[int, ...]) -> None:
        domain = np.asarray([clock.domain_of(rank) for rank in ranks], dtype=np.int64)
        # Ranks of one domain share a clock, so an unmeasured residual matters across domains only.
        self.domain = domain
        self.residual = clock.residual_ns[domain] if len(domain) else np.empty(0, np.int64)
        within = clock.residual_ns if clock.within_ns is None else clock.within_ns
        within = np.where(within == ABSENT, clock.residual_ns, within)
        self.within = within[domain] if len(domain) else np.empty(0, np.int64)
        self.component = clock.component[domain] if len(domain) else np.empty(0, np.int32)

    def residual_of(self, rank_index: NDArray[np.int32]) -> Int64Array:
        """Uncertainty of each instance, shape ``(n,)``; ABSENT if clocks cannot be compared."""
        domain, component = self.domain[rank_index], self.component[rank_index]
        residual = self.residual[rank_index]
        one_clock = (domain == domain[:, :1]).all(axis=1)
        comparable = (component == component[:, :1]).all(axis=1) & (residual >= 0).all(axis=1)
        worst = np.maximum(residual.max(axis=1), 0)
        own = np.maximum(self.within[rank_index].max(axis=1), 0)
        across = np.where(comparable, worst, ABSENT)
        return np.where(one_clock, own, across).astype(np.int64)


class _Block(msgspec.Struct, frozen=True, kw_only=True):
    """Instances of equal size: matrices with a row of members each, and vectors."""

    rank_index: NDArray[np.int32]
    start_ns: Int64Array
    exposed_wait_ns: Int64Array
    step: Int64Array
    residual_ns: Int64Array
    instance: Int64Array
    root: Int64Array
    blamed: Int64Array

    @staticmethod
    def of(context: _Context, instances: Int64Array, positions: Int64Array) -> _Block:
        members, columns, roots = context.members, context.columns, context.roots
        row, rank_index = members.row[positions], members.rank_index[positions]
        return _Block(
            rank_index=rank_index,
            start_ns=columns.start_ns[row],
            exposed_wait_ns=columns.exposed_wait_ns[row],
            step=_first_step(columns.step[row]),
            residual_ns=context.domains.residual_of(rank_index),
            instance=instances,
            root=roots[instances],
            blamed=context.last_rank[np.maximum(roots[instances], 0)],
        )

    def take(self, mask: NDArray[np.bool_]) -> _Block:
        return _Block(
            **{field.name: getattr(self, field.name)[mask] for field in fields(self)},
        )

    def could_be_last(self) -> NDArray[np.bool_]:
        """Members that start within the residual of the last one."""
        last = self.start_ns.max(axis=1)
        near: NDArray[np.bool_] = self.start_ns >= (last - self.residual_ns)[:, None]
        return near

    def wait_ns(self) -> Int64Array:
        """Median exposed wait of the members other than the last."""
        waits = np.maximum(self.exposed_wait_ns, 0)
        rows = np.arange(len(waits))
        waits[rows, self.start_ns.argmax(axis=1)] = np.iinfo(np.int64).max
        others = np.sort(waits, axis=1)[:, :-1]
        median: Int64Array = np.floor(np.median(others, axis=1)).astype(np.int64)
        return median


def _first_step(steps: NDArray[np.int32]) -> Int64Array:
    """The step of an instance: the earliest in which a member sees its end, -1 outside all steps.

    All members see it at the same moment, but gloo threads record it late, some in the next step.
    """
    last = np.iinfo(np.int32).max
    first = np.where(steps < 0, last, steps).min(axis=1)
    return np.where(first == last, ABSENT, first).astype(np.int64)


class _Tally:
    """Sums over blocks."""

    def __init__(self, num_ranks: int, num_steps: int) -> None:
        self.shape = (num_ranks, max(num_steps, 1))
        cells = self.shape[0] * self.shape[1]
        self.lost = np.zeros(cells)
        self.lateness = np.zeros(cells)
        self.seen = np.zeros(cells)
        self.late = np.zeros(num_ranks)
        self.judged = np.zeros(num_ranks, dtype=np.int64)
        self.parts: list[Arrivals] = []
        self.roots: list[tuple[Int64Array, Int64Array]] = []
        self.num_below = self.num_incomparable = self.num_incomplete = 0
        self.num_across_stages = self.unrecorded_ns = 0

    def add(self, block: _Block, incomplete: NDArray[np.bool_]) -> None:
        inside = block.step >= 0
        comparable = block.residual_ns != ABSENT
        self.num_incomparable += int((inside & ~comparable).sum())
        kept = inside & comparable
        block = block.take(kept)
        self.num_incomplete += int(incomplete[kept].sum())
        if len(block.step):
            self._add_judged(block)

    def _add_judged(self, block: _Block) -> None:
        size = block.start_ns.shape[1]
        tied = block.could_be_last()
        num_tied = tied.sum(axis=1)
        below = (2 * num_tied > size) | (block.root < 0)  # no rank is to blame for a slow link
        # As means over all other ranks, costs of parallel groups can be added.
        spread = (size - 1) / max(self.shape[0] - 1, 1)
        wait = block.wait_ns() * spread
        self.unrecorded_ns += int(wait[block.root == UNRECORDED].sum())
        cost = np.where(below, 0, wait).astype(np.int64)
        share = np.where(below, 0.0, 1 / num_tied)[:, None] * tied
        self._add_cost(block, cost, share)
        cell = block.rank_index.astype(np.int64) * self.shape[1] + block.step[:, None]
        late = block.start_ns - np.median(block.start_ns, axis=1)[:, None]
        _add(self.lateness, cell, late)
        _add(self.seen, cell, np.ones(cell.shape))
        _add(self.late, block.rank_index, share)
        self.judged += np.bincount(block.rank_index.ravel(), minlength=self.shape[0])
        self.num_below += int((below & (block.root >= 0)).sum())
        self.parts.append(_arrivals(block, cost, num_tied == 1))
        self.roots.append((block.instance, block.root))

    def _add_cost(self, block: _Block, cost: Int64Array, share: NDArray[np.float64]) -> None:
        """Charge the members that could be last, or the rank that caused propagated lateness."""
        own = (block.root == block.instance) | (block.root < 0)
        cell = block.rank_index.astype(np.int64) * self.shape[1] + block.step[:, None]
        _add(self.lost, cell[own], (share * cost[:, None])[own])
        _add(self.lost, (block.blamed * self.shape[1] + block.step)[~own], cost[~own])

    def blame(self, ranks: tuple[int, ...]) -> Blame:
        arrivals = _with_roots(_joined(self.parts), self.roots)
        return Blame(
            ranks=ranks,
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


def _add(into: NDArray[np.float64], cell: NDArray[Any], what: NDArray[Any]) -> None:
    into += np.bincount(cell.ravel(), weights=what.ravel(), minlength=len(into))


def _arrivals(block: _Block, cost: Int64Array, clear: NDArray[np.bool_]) -> Arrivals:
    ordered = np.sort(block.start_ns, axis=1)
    return Arrivals(
        step=block.step,
        blamed=block.blamed,
        cost_ns=cost,
        margin_ns=ordered[:, -1] - ordered[:, -2],
        rest_spread_ns=ordered[:, -2] - ordered[:, 0],
        size=np.full(len(cost), block.start_ns.shape[1], dtype=np.int64),
        clear=clear & (cost > 0),
        root=block.root,
    )


def _joined(parts: list[Arrivals]) -> Arrivals:
    def column(name: str) -> Any:
        arrays = [getattr(part, name) for part in parts]
        return np.concatenate(arrays) if arrays else np.empty(0, np.int64)

    columns = {field.name: column(field.name) for field in fields(Arrivals)}
    return Arrivals(**{**columns, "clear": columns["clear"].astype(np.bool_)})


def _with_roots(arrivals: Arrivals, roots: list[tuple[Int64Array, Int64Array]]) -> Arrivals:
    """The arrivals, with roots as entries instead of instances; -1 for a root not judged."""
    if not roots:
        return arrivals
    instance, root = (np.concatenate(arrays) for arrays in zip(*roots, strict=True))
    entry = np.full(int(max(instance.max(), root.max())) + 1, -1, dtype=np.int64)
    entry[instance] = np.arange(len(instance))
    return replace(arrivals, root=np.where(root >= 0, entry[root], -1))
