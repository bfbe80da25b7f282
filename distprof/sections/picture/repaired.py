"""The drawn step after each repair of the plan, as the simulated run has it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from distprof.replay import Times
from distprof.schema import ABSENT, Int64Array
from distprof.sections.context import Own
from distprof.sections.picture import (
    COMPUTATION,
    COPY,
    IDLE,
    MESSAGE_WAIT,
    TRANSFER,
    UNSPLIT,
    WAIT,
    DrawnRank,
    RepairedStep,
    packed_split,
)
from distprof.sections.picture.measure import fewer, without_empty
from distprof.sections.whatif import RepairPlan
from distprof.sections.whatif.plan import Simulation
from distprof.sections.whatif.trace_graph import TraceGraph
from distprof.sections.whatif.trace_model import TraceModel
from distprof.terms import MESSAGES

MOST_PIECES = 600


def repaired_steps(
    simulation: Simulation,
    plan: RepairPlan,
    ranks: Sequence[int],
    axes: Sequence[str],
    unit_of: Mapping[int, int],
) -> Iterator[tuple[int, RepairedStep]]:
    """Analysed windows, simulated after each repair and those before it, for these ranks.

    Up to one that does not change the graph, such as another order of a pipeline: later ones count
    on it. Nothing if the run was simulated from a log, or for a window that was not. Axes are in
    the order of their classes; ``unit_of`` is the length of a unit for each window, in ns.
    """
    model = simulation.model
    if not isinstance(model, TraceModel):
        return
    low, num_windows = model.graph.first_window, model.graph.opens.shape[1]
    windows = [window for window in unit_of if low <= window < low + num_windows]
    if not windows:
        return
    for number, made in enumerate(simulation.made_by(plan), 1):
        repair = plan.repairs[number - 1]
        if repair.what not in model.changes:
            return
        times, own_ns = model.replayed(made)
        for window in windows:
            place, unit = window - low, unit_of[window]
            drawn = dict(_ranks(model.graph, times, own_ns, set(ranks), axes, place, unit))
            yield (
                window,
                RepairedStep(
                    done=repair.done,
                    number=number,
                    mean_ns=round(model.graph.window_ns(times)[:, place].mean()),
                    span_ns=_span(model.graph, times, place),
                    ranks=tuple(drawn[rank] for rank in ranks if rank in drawn),
                ),
            )


def _span(graph: TraceGraph, times: Times, place: int) -> int:
    opens, closes = times.start[graph.opens[:, place]], times.start[graph.closes[:, place]]
    return int(closes.max() - opens.min())


def _ranks(
    graph: TraceGraph,
    times: Times,
    own_ns: Int64Array,
    wanted: set[int],
    axes: Sequence[str],
    place: int,
    unit: int,
) -> Iterator[tuple[int, DrawnRank]]:
    origin = int(times.start[graph.opens[:, place]].min())
    blocker, members = _blockers(graph, times), _members(graph)
    for position, rank in enumerate(graph.ranks):
        if rank not in wanted:
            continue
        low, high = int(graph.opens[position, place]), int(graph.closes[position, place])
        start = int(times.start[low])
        kind, end = _pieces(graph, times, own_ns, blocker, low, high)
        own = np.unique(members[1][members[0] == position])
        kind, end = _with_transfers(graph, times, axes, own, kind, end, start)
        kind, end = fewer(kind, end - start, MOST_PIECES)
        split = packed_split(kind, end + start - origin, start - origin, unit)
        yield rank, DrawnRank(rank=rank, split=split)


def _blockers(graph: TraceGraph, times: Times) -> Int64Array:
    """For each segment, the last transfer to end of those that it waits for; ABSENT for none."""
    edges = graph.graph
    chosen = (edges.target < graph.num_segments) & (edges.source >= graph.num_segments)
    source, target = edges.source[chosen], edges.target[chosen]
    order = np.argsort(times.end[source], kind="stable")
    found = np.full(graph.num_segments, ABSENT, np.int64)
    found[target[order]] = source[order] - graph.num_segments
    return found


def _members(graph: TraceGraph) -> tuple[Int64Array, Int64Array]:
    """Positions of ranks, and transfers in which they take part."""
    edges, first = graph.graph, graph.num_segments
    issued = (edges.source < first) & (edges.target >= first)
    resumed = (edges.target < first) & (edges.source >= first)
    segment = np.concatenate((edges.source[issued], edges.target[resumed]))
    transfer = np.concatenate((edges.target[issued], edges.source[resumed])) - first
    position = graph.owner[segment].astype(np.int64)
    # A wait of one rank alone also needs what others issued
    alone = graph.transfers.owner[transfer]
    own = (alone == ABSENT) | (alone == position)
    return position[own], transfer[own]


def _pieces(
    graph: TraceGraph, times: Times, own_ns: Int64Array, blocker: Int64Array, low: int, high: int
) -> tuple[Int64Array, Int64Array]:
    """Class and end of the pieces of segments ``low`` to ``high``, at simulated times.

    The graph knows how much of a segment is computation, copies and idle, not in which order: they
    follow each other in that order. A segment loses what a repair removes, or else idle time first;
    one that it lengthens, because work moves to it, has more of each. Between two segments, a rank
    waits.
    """
    segments = np.arange(low, high)
    begin, end = times.start[segments], times.end[segments]
    resumed = times.start[np.minimum(segments + 1, graph.num_segments - 1)]
    own = own_ns[segments]
    total = own.sum(axis=1)
    longer = np.maximum((end - begin) / np.maximum(total, 1), 1.0)[:, None]
    own = np.rint(own * longer).astype(np.int64)
    computed = np.minimum(begin + own[:, Own.COMPUTATION], end)
    copied = np.minimum(computed + own[:, Own.COPY], end)
    transfer = blocker[np.minimum(segments + 1, graph.num_segments - 1)]
    is_held, waits = transfer != ABSENT, np.full(len(segments), IDLE)
    is_message = np.isin(graph.transfers.kind[transfer[is_held]], MESSAGES)
    waits[is_held] = np.where(is_message, MESSAGE_WAIT, WAIT)
    kinds = (*(np.full(len(segments), kind) for kind in (COMPUTATION, COPY, IDLE)), waits)
    ends = (computed, copied, end, np.maximum(resumed, end))
    until = np.maximum.accumulate(np.stack(ends, axis=1).ravel())
    return without_empty(np.stack(kinds, axis=1).ravel(), until, int(times.start[low]))


def _with_transfers(
    graph: TraceGraph,
    times: Times,
    axes: Sequence[str],
    own: Int64Array,
    kind: Int64Array,
    end: Int64Array,
    start: int,
) -> tuple[Int64Array, Int64Array]:
    """The pieces with transfers of the rank in its waits: also those queued before the last one."""
    begin_ns, end_ns = (side[graph.num_segments + own] for side in (times.start, times.end))
    inside = (end_ns > begin_ns) & (end_ns > start) & (begin_ns < (end[-1] if len(end) else start))
    order = np.flatnonzero(inside)[np.argsort(begin_ns[inside], kind="stable")]
    if not len(order):
        return kind, end
    own, begin_ns, end_ns = own[order], begin_ns[order], end_ns[order]
    cuts = np.unique(np.concatenate((end, np.clip((begin_ns, end_ns), start, end[-1]).ravel())))
    cuts = cuts[cuts > start]
    kinds, since = kind[np.searchsorted(end, cuts)], np.concatenate(([start], cuts[:-1]))
    # Of those that have begun, the one that ends last
    until = np.maximum.accumulate(end_ns)
    latest = np.maximum.accumulate(np.where(end_ns == until, np.arange(len(own)), 0))
    begun = np.searchsorted(begin_ns, since, side="right") - 1
    moving = np.isin(kinds, (WAIT, MESSAGE_WAIT)) & (begun >= 0) & (until[begun] > since)
    of = own[latest[begun]]
    numbers = np.array([axes.index(axis) for axis in graph.axis_names] or [0], np.int64)
    moves = TRANSFER + numbers[np.maximum(graph.transfers.axis[of], 0)]
    moves = np.where(graph.transfers.is_joined[of], moves, UNSPLIT)
    return without_empty(np.where(moving, moves, kinds), cuts, start)
