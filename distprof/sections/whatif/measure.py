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
from distprof.sections.whatif.changes import Refill, refill_of
from distprof.sections.whatif.plan import Simulation, Workbench
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
    # Imported here because these modules need results of this package
    from distprof.sections.whatif.delays import Sections
    from distprof.sections.whatif.scenarios import is_worth_showing, scenarios
    from distprof.sections.whatif.sets import link_changes, set_changes
    from distprof.sections.whatif.trace_graph import path_shares, trace_graph
    from distprof.sections.whatif.trace_model import TraceModel, packed, slowdowns

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
