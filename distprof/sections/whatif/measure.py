"""How long the step would take without each cause, from simulations of the run as a graph.

Ranks that are slow together take as long as the median of peers that are not slow, section by
section, in the steps in which they are slow. If a whole pipeline stage is slow, its ranks have no
peers to compare with, and compute at the pace of the other stages instead.

Source of the definitions of S, S_t, S_w, M_W and M_S: formula sheet, "What-if".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

import msgspec
import numpy as np

from distprof.replay import CycleError, Times
from distprof.run.evidence import OperationLog
from distprof.run.run import Run
from distprof.run.topology import ProcessGroup
from distprof.schema import ABSENT, Bools, Floats, Int64Array
from distprof.sections.context import Own, RankAnalyses, RankAnalysis
from distprof.sections.matched import place_of
from distprof.sections.moe import MoeResult
from distprof.sections.own_time import held_stages, same_stages
from distprof.sections.pipeline import PipelineResult
from distprof.sections.stragglers import SlowLink, StragglerSet, StragglersResult
from distprof.sections.stragglers.computing import EXPERTS, pace_of
from distprof.sections.whatif import WhatIfResult
from distprof.sections.whatif.delays import OUTSIDE, Sections
from distprof.sections.whatif.plan import Refill, Simulation, Workbench, refill_of
from distprof.sections.whatif.scenarios import (
    TraceChange,
    beginning,
    in_time,
    is_worth_showing,
    scenarios,
)
from distprof.sections.whatif.segments import rank_line
from distprof.sections.whatif.trace_graph import TraceGraph, path_shares, trace_graph
from distprof.sections.whatif.trace_model import TraceModel, packed, slowdowns
from distprof.terms import CollectiveKind, StragglerCause, StragglerPattern
from distprof.units import format_ratio, name_ranks

__all__ = ["analyze_whatif", "rank_line"]

LARGEST_ERROR = 0.1
"""Model error above which the simulation is not used."""

LEAST_MATCHED = 0.5
"""Share of the collectives that must be matched with their partners."""


def analyze_whatif(
    run: Run,
    analyses: RankAnalyses,
    stragglers: StragglersResult,
    moe: MoeResult,
    pipeline: PipelineResult,
    bench: Workbench,
) -> WhatIfResult:
    """Simulate the run as it was, and without each cause that it shows.

    ``bench`` receives the simulation, from which repairs are planned once the findings are known.
    If the simulation does not reproduce the measured step, ``unavailable`` says why.
    """
    if (operations := run.get(OperationLog)) is not None:
        from distprof.sections.whatif.operations import simulate_operations

        return simulate_operations(operations, pipeline, bench)
    matched = run.matches.matched_ratio
    if not analyses:
        return _nothing("no rank was measured")
    if len(analyses) > 1 and (matched is None or matched < LEAST_MATCHED):
        share = format_ratio(matched or 0.0)
        return _nothing(f"only {share} of the collectives found their partners on other ranks")
    return _of_traces(run, analyses, stragglers, moe, refill_of(pipeline), bench)


def _of_traces(
    run: Run,
    analyses: RankAnalyses,
    stragglers: StragglersResult,
    moe: MoeResult,
    refill: Refill | None,
    bench: Workbench,
) -> WhatIfResult:
    try:
        graph = trace_graph(run, analyses)
    except CycleError as error:
        return _nothing(f"matched collectives contradict each other: {error}")
    if graph is None or not graph.measured_ns.sum():
        return _nothing("the ranks have no windows in common")
    times = graph.simulate()
    result = _replayed(graph, times)
    error_ratio = max(abs(result.model_error_ratio or 0.0), result.step_error_ratio or 0.0)
    if error_ratio > LARGEST_ERROR:
        off = format_ratio(error_ratio)
        why = f"The simulated step is {off} off the measured one, too far to draw conclusions."
        return msgspec.structs.replace(result, unavailable=(why,))
    replayed_ns = result.replayed_ns or 0
    sections = Sections.of(graph, held_stages(analyses, run), has_experts=bool(moe.layers))
    slow = slowdowns(graph.without_launch_bounds(), sections, replayed_ns)
    named = {r.rank for r in stragglers.ranks if r.pattern is not StragglerPattern.NONE}
    if graph.is_sample:  # ranks that are slow in some steps may not be slow in these
        named = {r.rank for r in stragglers.ranks if r.pattern is StragglerPattern.PERSISTENT}
    sets = set_changes(graph, sections, analyses, stragglers.sets)
    links = link_changes(graph, run.topology.groups, stragglers.links)
    changes = scenarios(graph, sections, analyses, replayed_ns, named, chain(sets, links))
    kept = {change.what: packed(graph, change) for change in changes}
    bench.simulation = Simulation.of(TraceModel(graph=graph, changes=kept), kept, refill)
    found = sorted(bench.simulation.scenarios(), key=lambda s: (-s.recoverable_ns, s.what))
    return msgspec.structs.replace(
        result,
        without=tuple(s for s in found if is_worth_showing(s, replayed_ns, named)),
        path=path_shares(graph, times, replayed_ns),
        **slow,
    )


def _replayed(graph: TraceGraph, times: Times) -> WhatIfResult:
    """The run simulated as it was."""
    spans = graph.window_ns(times)
    return WhatIfResult(
        source="traces",
        num_operations=graph.graph.num_operations,
        num_steps=graph.measured_ns.shape[1],
        num_left_out=graph.num_analysed - graph.opens.shape[1] if graph.is_sample else None,
        step_ns=round(graph.measured_ns.mean()),
        replayed_ns=round(spans.mean()),
        model_error_ratio=float(spans.mean() / graph.measured_ns.mean()) - 1,
        step_error_ratio=float(abs(spans / np.maximum(graph.measured_ns, 1) - 1).mean()),
    )


def _nothing(why: str) -> WhatIfResult:
    return WhatIfResult(unavailable=(f"The step was not simulated: {why}.",))


AGAIN = 1 / 3
"""Share of windows from which a rank counts as slow repeatedly, such as every third step."""

MIN_AGAIN = 2


def set_changes(
    graph: TraceGraph,
    sections: Sections,
    analyses: Mapping[int, RankAnalysis],
    sets: Sequence[StragglerSet],
) -> Iterator[TraceChange]:
    """A change for each set that no scenario of a single rank covers."""
    own = graph.own_total_ns
    for one in sets:
        if graph.is_sample and (one.steps or one.since_step is not None):
            continue  # some of its steps may not be simulated: their measured cost counts
        # Ranks and windows that are slow, shape ``(P, W)``
        slow: Bools = np.zeros(graph.opens.shape, dtype=np.bool_)
        steps_of: dict[int, tuple[int, ...]] = dict.fromkeys(one.ranks, ())
        steps_of.update(zip(one.ranks, one.steps_by_rank, strict=False))
        for position, rank in enumerate(graph.ranks):
            numbers = np.array([step.step for step in analyses[rank].steps[graph.windows]])
            if rank in steps_of and len(numbers) == slow[position].size:
                slow[position] = np.isin(numbers, steps_of[rank]) if steps_of[rank] else True
                if one.since_step is not None:
                    slow[position] &= numbers >= one.since_step
        if one.scenario == f"rank {one.ranks[0]}" or not slow.any():
            continue
        # Release times with ranks that are always slow beginning the first window with the others
        count = slow.sum(axis=1)
        again = (count >= MIN_AGAIN) & (count >= AGAIN * slow.shape[1])
        again &= one.pattern is StragglerPattern.TRANSIENT
        late = np.flatnonzero((slow[:, 0] & (count > slow.shape[1] / 2)) | again)
        yield TraceChange(
            what=one.scenario,
            title=f"{name_ranks(one.ranks)} kept up with the other ranks",
            ranks=one.ranks,
            own_ns=_without_cause(graph, sections, analyses, own, slow, one),
            delay_ns=graph.kept_up(np.flatnonzero(slow.any(axis=1)).tolist()),
            release_ns=(
                beginning(graph, in_time(graph, sections), late.tolist()) if len(late) else None
            ),
            transfer_ns=_evened(graph, one),
        )


def _evened(graph: TraceGraph, one: StragglerSet) -> Int64Array | None:
    """Durations with even all-to-alls; uneven ones take as long as their busiest member needs."""
    if one.detail != EXPERTS or one.exchange_ratio is None:
        return None
    transfers = graph.transfers
    exchange = transfers.is_joined & (transfers.kind == CollectiveKind.ALL_TO_ALL)
    even = np.rint(transfers.duration_ns / max(one.exchange_ratio, 1.0)).astype(np.int64)
    return np.where(exchange, even, transfers.duration_ns)


def _without_cause(
    graph: TraceGraph,
    sections: Sections,
    analyses: Mapping[int, RankAnalysis],
    own: Int64Array,
    slow: Bools,
    one: StragglerSet,
) -> Int64Array:
    """Own time of each segment without the cause; tokens of busy experts go to the others."""
    if one.detail == EXPERTS:
        return _experts_evened(sections, own)
    # Peers that are slow in the same windows, so none of them shows the usual time.
    alone = [
        position
        for group in sections.peers
        for cells in (slow[list(group)],)
        if cells.any() and (cells.all(axis=0) == cells.any(axis=0)).all()
        for position in group
    ]
    less, part = _kept_up(sections, graph.own_ns, slow), graph.own_ns[:, Own.COMPUTATION]
    if one.cause in (StragglerCause.LATE_INPUT, StragglerCause.LATE_HOST):
        part = own - part - graph.own_ns[:, Own.COPY]  # idle time
        rates = sections.by_window(part)
    else:  # they compute at the pace of the others
        pace = pace_of(analyses, same_stages(sections.stages.values()))
        if pace is None or len(pace.groups) != 1:
            return less
        rates = pace.factor[:, graph.windows]
        if rates.shape != slow.shape:
            return less
    return np.minimum(less, _at_usual_rate(sections, own, part, rates, slow, alone))


def _experts_evened(sections: Sections, own: Int64Array) -> Int64Array:
    """Own time with the experts of every rank computing as long as the mean of its peers."""
    # Tokens go to other ranks, so the sum stays. Chance differences between layers stay as well.
    expert = sections.of_segment != OUTSIDE
    expert &= sections.is_expert[np.maximum(sections.of_segment, 0)]
    if not expert.any():
        return sections.mean(own)
    work = np.where(expert, own, 0)
    windows = sections.by_window(work)
    even = windows.copy()
    for group in sections.peers:
        even[list(group)] = windows[list(group)].mean(axis=0)
    factor = np.divide(even, windows, out=np.ones_like(even), where=windows > 0)
    more = np.rint(work * (sections.of_windows(factor) - 1)).astype(np.int64)
    return own + more


def _kept_up(sections: Sections, parts: Int64Array, slow: Bools) -> Int64Array:
    """Own time with slow cells limited to the median of their peers that are not slow."""
    totals = sections.totals(parts.sum(axis=1))
    target = totals.copy()
    for group in sections.peers:
        for window in range(slow.shape[1]):
            rows = np.array(group)
            late, fit = rows[slow[rows, window]], rows[~slow[rows, window]]
            if len(late) and len(fit):
                cells = sections.first[:, window][:, None] + np.arange(
                    int(sections.count[rows[0], window])
                )
                usual = np.median(totals[cells[fit]], axis=0)
                target[cells[late]] = np.minimum(totals[cells[late]], usual)
    return sections.limited(parts, target)


def _at_usual_rate(
    sections: Sections,
    own: Int64Array,
    part: Int64Array,
    rates: Floats,
    slow: Bools,
    alone: Sequence[int],
) -> Int64Array:
    """Own time with this part of it at the median rate of the ranks that are not slow."""
    # Only of slow ranks without peers. Rates have shape ``(P, W)``; below 1 they count as 1.
    fit = ~slow.any(axis=1)
    if not alone or not fit.any():
        return own
    usual = np.median(rates[fit], axis=0)
    factor: Floats = np.ones(slow.shape)
    for position in alone:
        ratio = np.minimum(usual / np.maximum(rates[position], 1.0), 1.0)
        factor[position] = np.where(slow[position], ratio, 1.0)
    less = np.rint(part * (1 - sections.of_windows(factor))).astype(np.int64)
    return np.asarray(own - less, dtype=np.int64)


# Slow links ---------------------------------------------------------------------------------------


def link_changes(
    graph: TraceGraph, groups: Sequence[ProcessGroup], links: Sequence[SlowLink]
) -> Iterator[TraceChange]:
    """A change per slow link: its transfers shrink by the ratio of the others' median to its."""
    known = graph.transfers
    for link in links:
        transfer_ns = known.duration_ns.astype(np.float64)
        for slow in link.transfers:
            size = ABSENT if slow.bytes is None else slow.bytes
            same = np.isin(known.place, place_of(slow.ranks, groups)) & (known.bytes == size)
            same &= known.kind == CollectiveKind[slow.kind.upper()]
            if link.steps:
                same &= np.isin(known.step, link.steps)
            transfer_ns[same] *= slow.others_ns / slow.transfer_ns
        others = "the others" if link.num_compared else "in other steps"
        yield TraceChange(
            what=link.scenario,
            title=f"links of {name_ranks(link.ranks)} were as fast as {others}",
            ranks=link.ranks,
            transfer_ns=np.rint(transfer_ns).astype(np.int64),
        )
