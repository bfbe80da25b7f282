"""A traced run, simulated with any set of its changes, and how much slower it is than an ideal one.

In the ideal run every section takes the mean of its peers, part by part, and every transfer the
median of its class and size. Idle time is part of a section: a trace measures it, while a log of
operations shows only that nothing ran.

Source:
    Formula sheet, "What-if": S, S_t, S_w, M_W, M_S.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from math import ceil
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from distprof.artefacts.record import grouped
from distprof.replay import Times
from distprof.schema import Int64Array
from distprof.sections.context import Own, Part
from distprof.sections.whatif import KindSlowdown, WorkerSlowdown
from distprof.sections.whatif.delays import Sections
from distprof.sections.whatif.plan import Change, Made, lower
from distprof.sections.whatif.scenarios import TraceChange, affordable
from distprof.sections.whatif.trace_graph import TraceGraph

EXPLAINED_FROM = 1.03
"""Below this slowdown there is nothing to attribute."""

SLOWEST_RATIO = 0.03
MAX_WORKERS = 256
_CELLS = 1_000_000  # numbers of a simulation in memory at once

_NAMES = {
    Own.COMPUTATION: "computation",
    Own.COPY: "copies",
    Own.HOST: "idle: late launches",
    Own.INPUT: "idle: input",
    Own.SYNC: "idle: synchronising call",
    Own.PAUSE: "idle: pause of the CPU",
    Own.OTHER: "idle: other",
}


def step_times(graph: TraceGraph, changes: Iterable[TraceChange]) -> list[int]:
    """Mean step of each change, ns; simulated as many at once as memory allows."""
    height = max(_CELLS // max(graph.graph.num_operations, 1), 1)
    result: list[int] = []
    waiting = iter(changes)
    while chosen := list(islice(waiting, height)):
        columns = {}
        for name, usual in graph.usual.items():
            given = [getattr(change, name) for change in chosen]
            if name in _ALWAYS or any(values is not None for values in given):
                whole = [usual if values is None else values for values in given]
                columns[name] = np.stack(whole, axis=1)
        times = graph.simulate(**columns)
        result += np.rint(graph.window_ns(times).mean(axis=(0, 1))).astype(np.int64).tolist()
    return result


_ALWAYS = ("own_ns", "transfer_ns")
"""What has a column for each change; delays and releases do only if one of them changes."""


# Changes together ---------------------------------------------------------------------------------


def own_time(graph: TraceGraph, changes: Sequence[TraceChange]) -> Int64Array | None:
    """Own time of each segment with all of these changes; None if none changes it.

    Parts that changes remove add up. Of changes of the same part, and of a part and of all own
    time, the one that removes more counts.
    """
    usual = graph.own_total_ns
    whole = lower(usual, [change.own_ns for change in changes])
    if not any(change.less_ns for change in changes):
        return whole
    removed = _removed(graph, changes)
    saved = removed[:, Own.COMPUTATION]
    less = removed.sum(axis=1) - saved
    if whole is not None:
        less = np.maximum(less, usual - whole) + np.minimum(usual - whole, 0)
    result: Int64Array = np.maximum(usual - less - saved, 0)
    return result


def _removed(graph: TraceGraph, changes: Sequence[TraceChange]) -> Int64Array:
    """Parts of own time that these changes remove, shape ``(S, len(Own))``."""
    parts: dict[Part, Int64Array] = {}
    for part, less in chain.from_iterable(change.less_ns.items() for change in changes):
        parts[part] = np.maximum(parts[part], less) if part in parts else less
    named = np.zeros_like(graph.own_ns)
    for (kind, name), less in parts.items():
        named[:, kind] += less if name else 0
    for (kind, name), less in parts.items():
        named[:, kind] = named[:, kind] if name else np.maximum(named[:, kind], less)
    return named


class _Difference(msgspec.Struct, frozen=True):
    """The difference between an array and its changed version, stored compactly."""

    index: NDArray[np.int32] | None  # int32 positions that change; None for all.
    more: NDArray[np.int32] | Int64Array  # Values added there, int32 if they fit, else int64.

    @staticmethod
    def of(values: Int64Array, changed: Int64Array | None) -> _Difference | None:
        """The difference; None for an array that does not change."""
        if changed is None:
            return None
        more: NDArray[Any] = changed - values
        index = np.flatnonzero(more)
        is_whole = 2 * len(index) > len(more)
        more = more if is_whole else more[index]
        if max(-int(more.min(initial=0)), int(more.max(initial=0))) <= np.iinfo(np.int32).max:
            more = more.astype(np.int32)
        return _Difference(None if is_whole else index.astype(np.int32), more)

    def on(self, values: Int64Array) -> Int64Array:
        """The changed array."""
        if self.index is None:
            return values + self.more
        result = values.copy()
        result[self.index] += self.more
        return result


class PackedChange(Change, frozen=True, kw_only=True):
    """A compact :class:`TraceChange`: dozens are kept, and each would be as large as the run."""

    differences: Mapping[str, _Difference | None]  # By name of the array.
    less: Mapping[Part, _Difference]  # Own time removed, by part.

    def on(self, graph: TraceGraph, share: float) -> TraceChange:
        """The change, made by a share from 0 to 1, unpacked for its run."""
        none = np.zeros_like(graph.own_total_ns)
        less = {part: _share(removed.on(none), share) for part, removed in self.less.items()}
        changed: dict[str, Any] = {"less_ns": less}
        for name, usual in graph.usual.items():
            if (difference := self.differences[name]) is not None:
                changed[name] = usual + _share(difference.on(usual) - usual, share)
        return TraceChange(what=self.what, title=self.title, **changed)


def _share(values: Int64Array, share: float) -> Int64Array:
    return values if share >= 1 else np.rint(share * values).astype(np.int64)


def packed(graph: TraceGraph, change: TraceChange) -> PackedChange:
    """The change, stored compactly."""
    none = np.zeros_like(graph.own_total_ns)
    return PackedChange(
        **{name: getattr(change, name) for name in Change.__struct_fields__},
        differences={
            name: _Difference.of(usual, getattr(change, name))
            for name, usual in graph.usual.items()
        },
        less={
            part: difference
            for part, less in change.less_ns.items()
            if (difference := _Difference.of(none, less)) is not None
        },
    )


class TraceModel(msgspec.Struct, frozen=True, kw_only=True):
    """See :class:`~distprof.sections.whatif.plan.Model`."""

    graph: TraceGraph  # The run.
    changes: Mapping[str, PackedChange]  # Changes by key.

    def step_times(self, made: Sequence[Made]) -> list[int]:
        """Mean step of each set of changes, ns."""
        return step_times(self.graph, map(self._together, made))

    def replayed(self, made: Made) -> tuple[Times, Int64Array]:
        """Simulated times of all operations with a set of changes, and own time by kind.

        Foreign changes are ignored. Own time is without the parts that changes remove, and as in
        the graph where they change all of it.
        """
        changes = [
            self.changes[what].on(self.graph, share)
            for what, share in made.items()
            if what in self.changes
        ]
        together = self._of(changes)
        given = {name: getattr(together, name) for name in self.graph.usual}
        left = np.maximum(self.graph.own_ns - _removed(self.graph, changes), 0)
        return self.graph.simulate(**given), left

    def stage_work(self, made: Made) -> Mapping[int, float]:
        """Own time of each rank in segments with work in marked stages."""
        graph = self.graph
        if not graph.stage_ns.any():
            return {}
        own = self._together(made).own_ns
        own = graph.own_total_ns if own is None else own
        total = np.bincount(graph.owner, np.where(graph.stage_ns > 0, own, 0), len(graph.ranks))
        return dict(zip(graph.ranks, total.tolist(), strict=True))

    def _together(self, made: Made) -> TraceChange:
        """All changes at once."""
        return self._of([self.changes[what].on(self.graph, share) for what, share in made.items()])

    def _of(self, parts: Sequence[TraceChange]) -> TraceChange:
        """One change that replaces own time as a whole, whatever parts of it they remove."""
        together: dict[str, Any] = {
            name: lower(usual, [getattr(part, name) for part in parts])
            for name, usual in self.graph.usual.items()
            if name != "own_ns"
        }
        own_ns = own_time(self.graph, parts)
        return TraceChange(what="", title="", own_ns=own_ns, **together)


# Slowdowns ----------------------------------------------------------------------------------------


class _Ideal(msgspec.Struct, frozen=True, kw_only=True):
    own_ns: Int64Array  # As in the graph.
    total_ns: Int64Array  # All own time of each segment.
    transfer_ns: Int64Array


def slowdowns(graph: TraceGraph, sections: Sections, replayed_ns: int) -> dict[str, Any]:
    """Slowdowns of a traced run, as fields of a what-if result.

    Empty if no rank has peers, or there is nothing to compare.
    """
    if not sections.has_peers:
        return {}
    own_ns = np.stack([sections.mean(graph.own_ns[:, column]) for column in Own], axis=1)
    ideal = _Ideal(own_ns=own_ns, total_ns=own_ns.sum(axis=1), transfer_ns=_median_transfers(graph))
    rows = _rows(graph, sections.stages, ideal)
    workers = (_only(graph, ideal, keep) for keep in rows.masks)
    kinds: list[str] = []

    def noted() -> Iterator[TraceChange]:
        for change in _kinds(graph, ideal):
            kinds.append(change.what)
            yield change

    (ideal_ns, *steps) = step_times(graph, chain([_only(graph, ideal, [])], noted(), workers))
    if ideal_ns <= 0:
        return {}
    by_kind = zip(kinds, steps, strict=False)
    of_workers = rows.workers(graph, [step / ideal_ns for step in steps[len(kinds) :]])
    m_w, m_s = _explained(graph, ideal, rows, of_workers, replayed_ns, ideal_ns)
    return {
        "ideal_ns": ideal_ns,
        "slowdown": replayed_ns / ideal_ns,
        "kinds": tuple(
            KindSlowdown(kind=kind, slowdown=step / ideal_ns)
            for kind, step in sorted(by_kind, key=lambda item: (-item[1], item[0]))
        ),
        "workers": of_workers,
        "m_w": m_w,
        "m_s": m_s,
    }


def _median_transfers(graph: TraceGraph) -> Int64Array:
    """Durations of transfers, with the median of their class and size for joined ones."""
    known = graph.transfers
    result = known.duration_ns.copy()
    rows = np.flatnonzero(known.is_joined)
    if len(rows) == 0:
        return result
    keys = np.stack([column[rows] for column in (known.kind, known.axis, known.bytes)], axis=1)
    _, inverse = np.unique(keys, axis=0, return_inverse=True)
    order = np.argsort(inverse.ravel(), kind="stable")
    parts = np.split(rows[order], np.cumsum(np.bincount(inverse.ravel()))[:-1])
    for part in parts:
        result[part] = int(np.median(known.duration_ns[part]))
    return result


def _kinds(graph: TraceGraph, ideal: _Ideal) -> Iterator[TraceChange]:
    """Everything ideal except one kind of own time, or one class of transfers."""
    own = ideal.total_ns
    for column, name in _NAMES.items():
        actual = graph.own_ns[:, column]
        if actual.any():
            kept = own - ideal.own_ns[:, column] + actual
            yield TraceChange(what=name, title=name, own_ns=kept, transfer_ns=ideal.transfer_ns)
    for label, members in graph.classes()[:12]:
        kept = np.where(members, graph.transfers.duration_ns, ideal.transfer_ns)
        yield TraceChange(what=label, title=label, own_ns=own, transfer_ns=kept)


def _only(graph: TraceGraph, ideal: _Ideal, positions: Sequence[int]) -> TraceChange:
    """Everything ideal except the own time of these ranks."""
    kept = np.isin(graph.owner, list(positions))
    own = np.where(kept, graph.own_total_ns, ideal.total_ns)
    return TraceChange(what="", title="", own_ns=own, transfer_ns=ideal.transfer_ns)


class _WorkerRows(msgspec.Struct, frozen=True, kw_only=True):
    """Sets of ranks that keep their own time: data-parallel rows, then stages."""

    masks: tuple[tuple[int, ...], ...]  # Positions of each set.
    row: tuple[int, ...]  # Data-parallel row of each rank.
    stage: tuple[int, ...] | None  # Pipeline stage of each rank; None without a pipeline.
    num_rows: int  # Number of sets that are rows.

    def workers(self, graph: TraceGraph, by_set: Sequence[float]) -> tuple[WorkerSlowdown, ...]:
        found = []
        for position, rank in enumerate(graph.ranks):
            if self.row[position] >= self.num_rows:
                continue
            slow = by_set[self.row[position]]
            stage = self.stage[position] if self.stage is not None else None
            if stage is not None:
                slow = min(slow, by_set[self.num_rows + stage])
            dp_rank = None if stage is None else self.row[position]
            found.append(WorkerSlowdown(rank=rank, dp_rank=dp_rank, stage=stage, slowdown=slow))
        return tuple(sorted(found, key=lambda worker: (-worker.slowdown, worker.rank)))


def _rows(graph: TraceGraph, held: Mapping[int, tuple[int, ...]], ideal: _Ideal) -> _WorkerRows:
    """Rows and stages: the n-th ranks of all stages are one row, else each rank is a row."""
    by_stage = grouped([(held[rank], position) for position, rank in enumerate(graph.ranks)])
    stages = [by_stage[key] for key in sorted(by_stage)]
    if len(stages) < 2 or () in by_stage or len({len(ranks) for ranks in stages}) > 1:
        excess = graph.own_total_ns - ideal.total_ns
        beyond = np.bincount(graph.owner, weights=excess, minlength=len(graph.ranks))
        order = np.argsort(-beyond, kind="stable")
        most = min(MAX_WORKERS, affordable(graph))
        places = np.empty(len(order), dtype=np.int64)
        places[order] = np.arange(len(order))
        chosen = tuple((position,) for position in order[:most].tolist())
        return _WorkerRows(
            masks=chosen, row=tuple(places.tolist()), stage=None, num_rows=len(chosen)
        )
    place = {at: (row, stage) for stage, of in enumerate(stages) for row, at in enumerate(of)}
    row, stage = zip(*(place[position] for position in range(len(graph.ranks))), strict=True)
    dp_rows = tuple(zip(*stages, strict=True))
    masks = (*dp_rows, *map(tuple, stages))
    return _WorkerRows(masks=masks, row=row, stage=stage, num_rows=len(dp_rows))


def _explained(
    graph: TraceGraph,
    ideal: _Ideal,
    rows: _WorkerRows,
    workers: Sequence[WorkerSlowdown],
    replayed_ns: int,
    ideal_ns: int,
) -> tuple[float | None, float | None]:
    """M_W and M_S: shares of the slowdown that the slowest workers and the last stage explain."""
    if replayed_ns < EXPLAINED_FROM * ideal_ns:
        return None, None
    position = {rank: i for i, rank in enumerate(graph.ranks)}
    slowest = workers[: max(ceil(SLOWEST_RATIO * len(workers)), 1)]
    fixed = [[position[worker.rank] for worker in slowest]]
    if rows.stage is not None:
        last = max(rows.stage)
        fixed.append([i for i, stage in enumerate(rows.stage) if stage == last])
    own = [
        np.where(np.isin(graph.owner, some), ideal.total_ns, graph.own_total_ns) for some in fixed
    ]
    steps = step_times(graph, [TraceChange(what="", title="", own_ns=one) for one in own])
    shares = [(replayed_ns - step) / (replayed_ns - ideal_ns) for step in steps]
    return shares[0], shares[1] if len(shares) > 1 else None
