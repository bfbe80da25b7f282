"""How much slower a run is than with identical peers, and which kinds and workers slow it down.

In the ideal run every section takes the mean of its peers, part by part, and every transfer the
median of its class and size. Idle time is part of a section: a trace measures it, while a log of
operations shows only that nothing ran.

Source:
    Formula sheet, "What-if": S, S_t, S_w, M_W, M_S.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain
from math import ceil
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import fields

from distprof.schema import Int64Array
from distprof.sections.context import Own
from distprof.sections.whatif.delays import Sections
from distprof.sections.whatif.result import KindSlowdown, WorkerSlowdown
from distprof.sections.whatif.scenarios import TraceChange, affordable, step_times
from distprof.sections.whatif.trace_graph import TraceGraph

EXPLAINED_FROM = 1.03
"""Below this slowdown there is nothing to attribute."""

SLOWEST_RATIO = 0.03
MAX_WORKERS = 256

_NAMES = {
    Own.COMPUTATION: "computation",
    Own.COPY: "copies",
    Own.HOST: "idle: late launches",
    Own.INPUT: "idle: input",
    Own.SYNC: "idle: synchronising call",
    Own.PAUSE: "idle: pause of the CPU",
    Own.OTHER: "idle: other",
}


class Slowdowns(msgspec.Struct, frozen=True, kw_only=True):
    """The slowdown figures of a :class:`distprof.sections.whatif.result.WhatIfResult`."""

    ideal_ns: int
    slowdown: float
    kinds: tuple[KindSlowdown, ...]
    workers: tuple[WorkerSlowdown, ...]
    m_w: float | None
    m_s: float | None

    def fields(self) -> dict[str, Any]:
        """The figures by field name of the result."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


class _Ideal(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    own_ns: Int64Array  # as in the graph
    transfer_ns: Int64Array

    @cached_property
    def own_total_ns(self) -> Int64Array:
        own: Int64Array = self.own_ns.sum(axis=1)
        return own


def slowdowns(graph: TraceGraph, sections: Sections, replayed_ns: int) -> Slowdowns | None:
    """Slowdowns of a traced run; None if no rank has peers, or there is nothing to compare."""
    if not sections.has_peers:
        return None
    own_ns = np.stack([sections.mean(graph.own_ns[:, column]) for column in Own], axis=1)
    ideal = _Ideal(
        own_ns=own_ns,
        transfer_ns=_median_transfers(graph),
    )
    rows = _rows(graph, sections.stages, ideal)
    workers = (_only(graph, ideal, keep) for keep in rows.masks)
    kinds: list[str] = []
    of_kinds = _noted(_kinds(graph, ideal), kinds)
    (ideal_ns, *steps) = step_times(graph, chain([_only(graph, ideal, [])], of_kinds, workers))
    if ideal_ns <= 0:
        return None
    by_kind = zip(kinds, steps, strict=False)
    by_row = [step / ideal_ns for step in steps[len(kinds) :]]
    of_workers = rows.workers(graph, by_row)
    m_w, m_s = _explained(graph, ideal, rows, of_workers, replayed_ns, ideal_ns)
    return Slowdowns(
        ideal_ns=ideal_ns,
        slowdown=replayed_ns / ideal_ns,
        kinds=tuple(
            KindSlowdown(kind=kind, slowdown=step / ideal_ns)
            for kind, step in sorted(by_kind, key=lambda item: (-item[1], item[0]))
        ),
        workers=of_workers,
        m_w=m_w,
        m_s=m_s,
    )


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


def _noted(changes: Iterable[TraceChange], names: list[str]) -> Iterator[TraceChange]:
    """The changes unmodified, while their names are added to a list."""
    for change in changes:
        names.append(change.what)
        yield change


def _kinds(graph: TraceGraph, ideal: _Ideal) -> Iterator[TraceChange]:
    """Everything ideal except one kind of own time, or one class of transfers."""
    own = ideal.own_total_ns
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
    own = np.where(kept, graph.own_total_ns, ideal.own_total_ns)
    return TraceChange(what="", title="", own_ns=own, transfer_ns=ideal.transfer_ns)


def _all_but(graph: TraceGraph, ideal: _Ideal, positions: Sequence[int]) -> TraceChange:
    """Everything as measured, except that these ranks are ideal."""
    fixed = np.isin(graph.owner, list(positions))
    own = np.where(fixed, ideal.own_total_ns, graph.own_total_ns)
    return TraceChange(what="", title="", own_ns=own)


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
    by_stage: dict[tuple[int, ...], list[int]] = {}
    for position, rank in enumerate(graph.ranks):
        by_stage.setdefault(held[rank], []).append(position)
    stages = [by_stage[key] for key in sorted(by_stage)]
    number = len(graph.ranks)
    if len(stages) < 2 or () in by_stage or len({len(ranks) for ranks in stages}) > 1:
        return _alone(graph, ideal)
    row, stage = [0] * number, [0] * number
    for i, ranks in enumerate(stages):
        for j, position in enumerate(ranks):
            row[position], stage[position] = j, i
    dp_rows = tuple(zip(*stages, strict=True))
    return _WorkerRows(
        masks=(*dp_rows, *map(tuple, stages)),
        row=tuple(row),
        stage=tuple(stage),
        num_rows=len(dp_rows),
    )


def _alone(graph: TraceGraph, ideal: _Ideal) -> _WorkerRows:
    """Each rank as a row; if there are too many to simulate, those furthest above their peers."""
    excess = graph.own_total_ns - ideal.own_total_ns
    beyond = np.bincount(graph.owner, weights=excess, minlength=len(graph.ranks))
    order = np.argsort(-beyond, kind="stable")
    most = min(MAX_WORKERS, affordable(graph))
    row = np.empty(len(order), dtype=np.int64)
    row[order] = np.arange(len(order))
    chosen = tuple((position,) for position in order[:most].tolist())
    return _WorkerRows(masks=chosen, row=tuple(row.tolist()), stage=None, num_rows=len(chosen))


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
    changes = [_all_but(graph, ideal, [position[worker.rank] for worker in slowest])]
    if rows.stage is not None:
        last = max(rows.stage)
        of_last = [i for i, stage in enumerate(rows.stage) if stage == last]
        changes.append(_all_but(graph, ideal, of_last))
    shares = [
        (replayed_ns - step) / (replayed_ns - ideal_ns) for step in step_times(graph, changes)
    ]
    return shares[0], shares[1] if len(shares) > 1 else None
