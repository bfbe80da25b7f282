"""The step without a cause: durations of a traced run are changed and the run is simulated again.

The gains of scenarios do not add up: a wait that ends on one rank may move to another, and two
causes may hide each other.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import numpy as np

from distprof.artefacts.record import grouped
from distprof.schema import ABSENT, Bools, Int64Array
from distprof.sections.computation import SAVING_TITLES
from distprof.sections.context import Own, Part, RankAnalysis
from distprof.sections.idle import CPU_OPTIMIZER, is_optimizer
from distprof.sections.whatif import PAGEABLE, Scenario
from distprof.sections.whatif.delays import Sections, evened, mean_of_peers, median_of_others
from distprof.sections.whatif.plan import Change
from distprof.sections.whatif.trace_graph import TraceGraph
from distprof.terms import CollectiveKind, MeshAxis
from distprof.units import format_bytes

MIN_RANK_RATIO = 0.005
"""Share of the step from which a single rank gets a scenario."""

UNUSUAL_HOLD = 1.25
"""Time that a rank's CPU holds its GPU back, over its peers' median, from which it is unusual."""

ALIKE_RATIO = 0.02
"""Relative difference in work between pipeline stages that no other split would remove."""

MAX_RANKS = 32
MAX_CLASSES = 12
SMALL_BYTES = 500_000
_BEST = 90  # percentile of bandwidth that counts as the best: single values may be clock errors
_MOST_CELLS = 8_000_000  # numbers of all simulations of single ranks together
_BLOCKING_AXES = (MeshAxis.TP, MeshAxis.CP, MeshAxis.EP, MeshAxis.PP)
_HIDEABLE = (CollectiveKind.ALL_REDUCE, CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER)


class TraceChange(Change, frozen=True, kw_only=True):
    """What a scenario changes in a traced run; None for what stays the same."""

    less_ns: Mapping[Part, Int64Array] = {}  # Own time that it removes, per segment.
    own_ns: Int64Array | None = None  # Own time per segment, of changes that concern all parts.
    transfer_ns: Int64Array | None = None  # Duration per transfer.
    delay_ns: Int64Array | None = None  # Delay per edge.
    release_ns: Int64Array | None = None  # Release time per node of the graph.


def scenarios(
    graph: TraceGraph,
    sections: Sections,
    analyses: Mapping[int, RankAnalysis],
    replayed_ns: int,
    named: Collection[int] = (),
    further: Iterable[TraceChange] = (),
) -> Iterator[TraceChange]:
    """All changes that apply to the run, generated one by one because each is as large as the run.

    Ranks that recover nothing alone are included: they may once a slower rank is fixed.
    """
    yield from _idle(graph, sections)
    yield from _optimizer(graph, analyses)
    yield from _computation(graph, analyses)
    yield from _late_ranks(graph, sections, replayed_ns, named)
    yield from further
    yield from _imbalance(graph, sections)
    yield from _transfers(graph, sections, analyses)


def is_worth_showing(scenario: Scenario, replayed_ns: int, named: Collection[int]) -> bool:
    """Whether the report lists it: a single rank only if it matters alone, or is named."""
    if not scenario.ranks or set(scenario.ranks) & set(named):
        return True
    return scenario.recoverable_ns >= MIN_RANK_RATIO * replayed_ns


# Own time ----------------------------------------------------------------------------------------


_PARTS = (
    ("launch-gaps", Own.HOST, "the CPU never launched late"),
    ("input", Own.INPUT, "no rank waited for input"),
    ("sync-calls", Own.SYNC, "no call synchronised with the GPU"),
    ("cpu-pauses", Own.PAUSE, "the CPUs did nothing but launch"),
    ("copies", Own.COPY, "all copies overlapped with compute"),
)


def _idle(graph: TraceGraph, sections: Sections) -> Iterator[TraceChange]:
    """Changes that remove parts of own time."""
    launched = graph.launched_in_time()
    for what, column, title in _PARTS:
        if (whole := graph.own_ns[:, column]).any():
            delay = graph.copied_in_time(None) if column is Own.COPY else launched
            less = {(column, ""): whole}
            yield TraceChange(what=what, title=title, less_ns=less, delay_ns=delay)
    named = {part: ns for part, ns in graph.parts_ns.items() if part[1] not in SAVING_TITLES}
    for name in dict.fromkeys(name for _, name in named):
        less = {part: ns for part, ns in named.items() if part[1] == name and ns.any()}
        if less:
            what, title = f"pause {name}", f"the CPUs did not pause for {name}"
            yield TraceChange(what=what, title=title, less_ns=less, delay_ns=launched)
    waits = graph.own_ns[:, Own.INPUT]
    if waits.any() and sections.has_peers:
        even = _no_longer_than_peers(sections, waits[:, None])
        title = "no rank waited longer for input than its peers"
        less = {(Own.INPUT, ""): waits - even}
        yield TraceChange(what="uneven-input", title=title, less_ns=less, delay_ns=launched)


def _optimizer(graph: TraceGraph, analyses: Mapping[int, RankAnalysis]) -> Iterator[TraceChange]:
    """The optimizer on the GPUs, if it runs on CPUs: gradients and parameters need no copies."""
    pauses = [pause for analysis in analyses.values() for pause in analysis.cpu_pauses]
    names = {pause.name for pause in pauses if is_optimizer(pause.caller)}
    if names:
        work = {part: ns for part, ns in graph.parts_ns.items() if part[1] in names | {PAGEABLE}}
        yield TraceChange(
            what=CPU_OPTIMIZER,
            title="the optimizer ran on the GPUs, without copies",
            less_ns={**work, (Own.COPY, ""): graph.own_ns[:, Own.COPY]},
            delay_ns=graph.copied_in_time(graph.launched_in_time()),
        )


def _computation(graph: TraceGraph, analyses: Mapping[int, RankAnalysis]) -> Iterator[TraceChange]:
    """Changes of the program that save computation, on unexplained ranks as on the others."""
    is_known = np.array([analyses[rank].computation is not None for rank in graph.ranks])
    known = is_known[graph.owner]
    changes: dict[str, dict[Part, Int64Array]] = {}
    for (kind, what), saved in graph.parts_ns.items():
        if what in SAVING_TITLES:
            whole = graph.own_ns[:, kind]
            share = saved[known].sum() / max(whole[known].sum(), 1)
            saved = np.where(known, saved, np.rint(share * whole).astype(np.int64))
            # A kernel counts for one change only, so savings are parts of their own.
            changes.setdefault(what, {})[kind, what] = np.minimum(saved, whole)
    for what, less in changes.items():
        yield TraceChange(what=what, title=SAVING_TITLES[what], less_ns=less)


def _no_longer_than_peers(sections: Sections, parts: Int64Array) -> Int64Array:
    """Sum of the parts, with every section at most as long as the median of its peers."""
    totals = sections.totals(parts.sum(axis=1))
    return sections.limited(parts, sections.targets(totals, median_of_others))


def _late_ranks(
    graph: TraceGraph, sections: Sections, replayed_ns: int, named: Collection[int]
) -> Iterator[TraceChange]:
    """Ranks as fast as the median of their peers: all at once, and each that costs enough."""
    own = graph.own_total_ns
    if len(graph.ranks) < 2:
        return
    even, begins = _as_peers(graph, sections), in_time(graph, sections)
    everybody = range(len(graph.ranks))
    yield TraceChange(
        what="late ranks",
        title="every rank kept up with its peers",
        own_ns=even,
        delay_ns=graph.copied_in_time(launched_as_peers(graph, sections), everybody),
        release_ns=beginning(graph, begins, everybody),
    )
    excess = np.bincount(graph.owner, weights=own - even) / max(graph.opens.shape[1], 1)
    excess += graph.held_ns
    worth = [
        position
        for position in np.argsort(-excess, kind="stable").tolist()
        if excess[position] >= MIN_RANK_RATIO * replayed_ns or graph.ranks[position] in named
    ]
    for position in worth[: min(MAX_RANKS, affordable(graph))]:
        rank = graph.ranks[position]
        yield TraceChange(
            what=f"rank {rank}",
            title=f"rank {rank} kept up with its peers",
            ranks=(rank,),
            own_ns=np.where(graph.owner == position, even, own),
            delay_ns=graph.kept_up([position]),
            release_ns=beginning(graph, begins, [position]),
        )


def launched_as_peers(graph: TraceGraph, sections: Sections) -> Int64Array | None:
    """Delays of edges if no CPU holds its GPU back more than its peers' CPUs do.

    A delay that the CPUs of all peers have in common makes none of them late.
    """
    freed: list[int] = []
    for group in sections.peers:
        positions = np.array(group)
        if len(group) > 1:
            held = graph.held_ns[positions]
            usual = median_of_others(held[:, None].astype(np.float64))[:, 0]
            positions = positions[held > UNUSUAL_HOLD * usual]
        freed += positions.tolist()
    return graph.launched_in_time(freed)


def in_time(graph: TraceGraph, sections: Sections) -> Int64Array:
    """When each rank begins the first window, no later than the median of its peers.

    A rank that is late was also late before: it begins its first window behind the others, who wait
    for that too. Windows that are not steps begin with the recording, which shows nothing.
    """
    begins = graph.release_ns[graph.begins]
    if graph.opens.shape[1] < 2:
        return begins
    result = begins.copy()
    for group in sections.peers:
        if len(group) > 1:
            usual = median_of_others(begins[list(group), None].astype(np.float64))[:, 0]
            result[list(group)] = np.minimum(begins[list(group)], np.rint(usual))
    return result


def beginning(graph: TraceGraph, begins: Int64Array, positions: Sequence[int]) -> Int64Array | None:
    """Release times with these ranks starting at ``begins``; None for no change."""
    nodes = graph.begins[list(positions)]
    if (graph.release_ns[nodes] == begins[list(positions)]).all():
        return None
    release = graph.release_ns.copy()
    release[nodes] = begins[list(positions)]
    return release


def affordable(graph: TraceGraph) -> int:
    """How many single ranks can be simulated in a reasonable time for the size of the run."""
    return max(_MOST_CELLS // max(graph.graph.num_operations, 1), 8)


def _as_peers(graph: TraceGraph, sections: Sections) -> Int64Array:
    """Own time, at most the median of peers; for ranks without peers, only idle time is limited."""
    # No other rank computes what a lone pipeline stage computes, but the stage need not idle
    # longer.
    own = graph.own_total_ns
    even = _no_longer_than_peers(sections, graph.own_ns)
    alone = np.isin(graph.owner, [group[0] for group in sections.peers if len(group) == 1])
    if not alone.any():
        return even
    idle = own - graph.own_ns[:, Own.COMPUTATION] - graph.own_ns[:, Own.COPY]
    windows = sections.by_window(idle)
    most = np.minimum(windows, median_of_others(windows))
    ratio = np.divide(most, windows, out=np.ones_like(most), where=windows > 0)
    less = np.rint(idle * (1 - sections.of_windows(ratio))).astype(np.int64)
    return np.where(alone, own - less, even)


def _imbalance(graph: TraceGraph, sections: Sections) -> Iterator[TraceChange]:
    own = graph.own_total_ns
    balanced = _balanced_stages(graph, sections)
    if balanced is not None:
        title = "all pipeline stages had equal work"
        yield TraceChange(what="stage-imbalance", title=title, own_ns=balanced)
    if not sections.has_peers:
        return
    work = graph.own_ns[:, Own.COMPUTATION]
    totals = sections.totals(work)
    even_work = sections.scaled(work, totals, sections.targets(totals, evened))
    title = "no rank computed longer than its peers in all steps"
    yield TraceChange(what="even-work", title=title, own_ns=own - work + even_work)
    if sections.is_expert.any():
        totals = sections.totals(own)
        mean = sections.targets(totals, mean_of_peers)
        even = sections.scaled(own, totals, np.where(sections.is_expert, mean, totals))
        title = "the experts of every rank took as long as the mean of all ranks"
        yield TraceChange(what="expert-imbalance", title=title, own_ns=even)


def _balanced_stages(graph: TraceGraph, sections: Sections) -> Int64Array | None:
    """Own time with equal work of all stages; None without several stages."""
    # Stages are those of the marks: a rank of an interleaved schedule holds several. Without marks,
    # all computation of a rank belongs to the stages that it holds.
    held = grouped([(sections.stages[rank], position) for position, rank in enumerate(graph.ranks)])
    if len(held) < 2 or () in held:
        return None
    work, stage = graph.stage_ns, graph.stage
    if not work.any():
        work, of_rank = graph.own_ns[:, Own.COMPUTATION], np.zeros(len(graph.ranks), np.int32)
        for at, positions in enumerate(held.values()):
            of_rank[positions] = at
        stage = of_rank[graph.owner]
    marked = np.flatnonzero(stage != ABSENT)
    names, number = np.unique(stage[marked], return_inverse=True)
    places = np.unique(number.astype(np.int64) * len(graph.ranks) + graph.owner[marked])
    copies = np.bincount(places // len(graph.ranks), minlength=len(names))
    mean = np.bincount(number, work[marked], len(names)) / copies
    # Work above the median is spread over all, unless GPUs of one model differ as much.
    usual = float(np.median(mean))
    beyond = np.where(abs(mean - usual) > ALIKE_RATIO * usual, mean - usual, 0.0)
    level = (mean - beyond + beyond.mean()) / np.maximum(mean, 1)
    balanced = graph.own_total_ns.copy()
    balanced[marked] += np.rint(work[marked] * (level[number] - 1)).astype(np.int64)
    return balanced


# Transfers ---------------------------------------------------------------------------------------


def _transfers(
    graph: TraceGraph, sections: Sections, analyses: Mapping[int, RankAnalysis]
) -> Iterator[TraceChange]:
    """Changes that remove or shorten communication, if it could be matched."""
    transfers = graph.transfers
    joined, lasting = transfers.is_transfer, transfers.duration_ns > 0
    yield from _overlap(graph, analyses)
    if not (joined & lasting).any():
        return
    yield _free(graph, joined, "exposed transfer", "moving data took no time")
    if len(graph.ranks) > 1:
        even = _as_peers(graph, sections)
        title = "moving data took no time, and no rank was later than its peers"
        launched = launched_as_peers(graph, sections)
        yield _free(graph, joined, "communication", title, own_ns=even, delay_ns=launched)
    for number, name in enumerate(graph.axis_names):
        along = joined & (transfers.axis == number)
        if (along & lasting).any():
            yield _free(graph, along, f"axis {name}", f"moving data along {name} took no time")
    needless = joined & transfers.is_needless
    if needless.any():
        title = "gradients were reduced only for the last micro-batch of each update"
        yield _free(graph, needless, "repeated gradients", title)
    small = joined & (transfers.bytes >= 0) & (transfers.bytes < SMALL_BYTES)
    if small.any():
        title = f"collectives below {format_bytes(SMALL_BYTES)} took no time"
        yield _free(graph, small, "small collectives", title)
    for label, members in graph.classes()[:MAX_CLASSES]:
        title = f"moving the data of {label} took no time"
        yield _free(graph, members, f"collectives {label}", title)
        faster = _at_best_speed(transfers.duration_ns, transfers.bytes, members)
        if faster is not None:
            title = f"{label} always ran at the best bandwidth measured at its size or above"
            yield TraceChange(what=f"hardware {label}", title=title, transfer_ns=faster)


def _overlap(graph: TraceGraph, analyses: Mapping[int, RankAnalysis]) -> Iterator[TraceChange]:
    """Overlap collectives whose results are not needed at once, except the last gradient bucket."""
    # For a single rank all collectives count, although they include waiting for unrecorded ranks:
    # overlap hides both.
    known = graph.transfers
    among = known.is_transfer if len(graph.ranks) > 1 else np.ones(len(known), dtype=np.bool_)
    blocks = np.array([*(name in _BLOCKING_AXES for name in graph.axis_names), False], np.bool_)
    hideable = among & np.isin(known.kind, _HIDEABLE) & ~blocks[known.axis]
    if (hideable & (known.duration_ns > 0)).any():
        title = "non-blocking collectives overlapped with compute that now runs alone"
        last = np.rint(known.duration_ns * known.unhidden).astype(np.int64)
        # At most the computation without concurrent communication, mean per rank and window.
        overlaps = [analyses[rank].overlap for rank in graph.ranks]
        alone_ns = sum(one.computation_ns - one.overlapped_ns for one in overlaps)
        most = int(alone_ns / (len(graph.ranks) * graph.num_analysed))
        yield _free(graph, hideable, "overlap", title, most_ns=most, left_ns=last)


def _free(
    graph: TraceGraph,
    chosen: Bools,
    what: str,
    title: str,
    *,
    own_ns: Int64Array | None = None,
    delay_ns: Int64Array | None = None,
    most_ns: int | None = None,
    left_ns: Int64Array | int = 0,
) -> TraceChange:
    """These transfers take no time, or ``left_ns``, and their members end together."""
    of_edge = graph.edge_transfer
    freed = (of_edge != ABSENT) & chosen[np.maximum(of_edge, 0)]
    delay = graph.delay_ns if delay_ns is None else delay_ns
    return TraceChange(
        what=what,
        title=title,
        own_ns=own_ns,
        transfer_ns=np.where(chosen, left_ns, graph.transfers.duration_ns),
        delay_ns=np.where(freed, np.minimum(delay, 0), delay),
        most_ns=most_ns,
    )


def _at_best_speed(duration_ns: Int64Array, size: Int64Array, chosen: Bools) -> Int64Array | None:
    """Durations at the best bandwidth measured at a size or above; None if no size is known."""
    rows = np.flatnonzero(chosen & (size > 0) & (duration_ns > 0))
    if len(rows) < 2:
        return None
    sizes, inverse = np.unique(size[rows], return_inverse=True)
    speed = size[rows] / duration_ns[rows]
    best = np.array([np.percentile(speed[inverse == i], _BEST) for i in range(len(sizes))])
    best = np.maximum.accumulate(best[::-1])[::-1]
    faster = duration_ns.copy()
    faster[rows] = np.minimum(duration_ns[rows], np.rint(size[rows] / best[inverse]))
    return faster
