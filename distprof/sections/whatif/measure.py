"""How long the step would take without each cause, from simulations of the run as a graph.

Source of the definitions of S, S_t, S_w, M_W and M_S: formula sheet, "What-if".
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from distprof.replay import CycleError
from distprof.run.evidence import OperationLog
from distprof.run.run import Run
from distprof.sections.context import RankAnalyses
from distprof.sections.moe.result import MoeResult
from distprof.sections.own_time import held_stages
from distprof.sections.pipeline.result import PipelineResult
from distprof.sections.stragglers.result import StragglersResult
from distprof.sections.whatif.plan import Simulation, Workbench
from distprof.sections.whatif.refill import Refill, refill_of
from distprof.sections.whatif.result import WhatIfResult
from distprof.sections.whatif.segments import rank_line
from distprof.terms import StragglerPattern
from distprof.units import format_ratio

if TYPE_CHECKING:
    from distprof.replay import Times
    from distprof.sections.whatif.trace_graph import TraceGraph

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

    Args:
        run: The recording: traces, or another tool's log of operations.
        analyses: Analyses by global rank; ranks without one take no part.
        stragglers: Stragglers, each of which gets a scenario.
        moe: Expert layers, if there are any.
        pipeline: Predictions for other orders of the run's pipelines.
        bench: Receives the simulation, from which repairs are planned once the findings are known.

    Returns:
        The scenarios; none, and the reason in ``unavailable``, if the simulation does not reproduce
        the measured step.
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
    refill = refill_of(pipeline)
    return _of_traces(run, analyses, stragglers, refill, bench, has_experts=bool(moe.layers))


def _of_traces(
    run: Run,
    analyses: RankAnalyses,
    stragglers: StragglersResult,
    refill: Refill | None,
    bench: Workbench,
    *,
    has_experts: bool,
) -> WhatIfResult:
    # Imported here because these modules need results of this package
    from distprof.sections.whatif.delays import Sections
    from distprof.sections.whatif.scenarios import is_worth_showing, scenarios
    from distprof.sections.whatif.sets import link_changes, set_changes
    from distprof.sections.whatif.slowdowns import slowdowns
    from distprof.sections.whatif.trace_changes import TraceModel, packed
    from distprof.sections.whatif.trace_graph import path_shares, trace_graph

    try:
        graph = trace_graph(run, analyses)
    except CycleError as error:
        return _nothing(f"matched collectives contradict each other: {error}")
    if graph is None or not graph.measured_ns.sum():
        return _nothing("the ranks have no windows in common")
    times = graph.simulate()
    base = _replayed(graph, times)
    if base.error_ratio > LARGEST_ERROR:
        off = format_ratio(base.error_ratio)
        why = f"The simulated step is {off} off the measured one, too far to draw conclusions."
        return msgspec.structs.replace(base.result, unavailable=(why,))
    replayed_ns = base.result.replayed_ns or 0
    sections = Sections.of(graph, held_stages(analyses, run), has_experts=has_experts)
    slow = slowdowns(graph.without_launch_bounds(), sections, replayed_ns)
    named = {r.rank for r in stragglers.ranks if r.pattern is not StragglerPattern.NONE}
    if graph.is_sample:  # ranks that are slow in some steps may not be slow in these
        named = {r.rank for r in stragglers.ranks if r.pattern is StragglerPattern.PERSISTENT}
    sets = set_changes(graph, sections, analyses, stragglers.sets)
    links = link_changes(graph, run.topology.groups, stragglers.links)
    changes = scenarios(graph, sections, analyses, replayed_ns, named, chain(sets, links))
    kept = {change.what: packed(graph, change) for change in changes}
    model = TraceModel(graph=graph, changes=kept)
    bench.simulation = Simulation.of(model, model.changes, refill)
    found = sorted(bench.simulation.scenarios(), key=lambda s: (-s.recoverable_ns, s.what))
    return msgspec.structs.replace(
        base.result,
        without=tuple(s for s in found if is_worth_showing(s, replayed_ns, named)),
        path=path_shares(graph, times, replayed_ns),
        **({} if slow is None else slow.fields()),
    )


class _Replayed(msgspec.Struct, frozen=True, kw_only=True):
    """The run simulated as it was; ``error_ratio`` is the worse of the mean and per-step errors."""

    result: WhatIfResult
    error_ratio: float


def _replayed(graph: TraceGraph, times: Times) -> _Replayed:
    spans = graph.window_ns(times)
    whole = float(spans.mean() / graph.measured_ns.mean()) - 1
    by_step = float(abs(spans / np.maximum(graph.measured_ns, 1) - 1).mean())
    result = WhatIfResult(
        source="traces",
        num_operations=graph.graph.num_operations,
        num_steps=graph.measured_ns.shape[1],
        num_left_out=graph.num_analysed - graph.opens.shape[1] if graph.is_sample else None,
        step_ns=round(graph.measured_ns.mean()),
        replayed_ns=round(spans.mean()),
        model_error_ratio=whole,
        step_error_ratio=by_step,
    )
    return _Replayed(result=result, error_ratio=max(abs(whole), by_step))


def _nothing(why: str) -> WhatIfResult:
    return WhatIfResult(unavailable=(f"The step was not simulated: {why}.",))
