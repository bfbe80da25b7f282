"""What the step would take without a cause: the run as a graph, simulated, and simulated again.

Source of the definitions of S, S_t, S_w, M_W and M_S: formula sheet, "What-if".
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from distprof.analyzers.result import Record, Result
from distprof.replay import CycleError
from distprof.terms import StragglerPattern
from distprof.units import format_ratio

if TYPE_CHECKING:
    from distprof.analyzers.measure import Measurements
    from distprof.analyzers.moe.result import MoeResult
    from distprof.analyzers.stragglers.analysis import StragglersResult
    from distprof.analyzers.whatif.trace_graph import TraceGraph
    from distprof.replay import Times
    from distprof.run.run import Run

__all__ = [
    "KindSlowdown",
    "PathShare",
    "Scenario",
    "StageSlowdown",
    "StepSlowdown",
    "WhatIfResult",
    "WorkerSlowdown",
    "analyze_whatif",
]

LARGEST_ERROR = 0.1
"""Model error from which on nothing is concluded from the simulation."""

LEAST_MATCHED = 0.5
"""Share of the collectives that must have found their partners."""


class Scenario(Record, frozen=True, kw_only=True):
    """The step simulated without one cause.

    Args:
        what: Stable key, for example ``rank 3``, ``stage-imbalance``, ``launch-gaps``: what rules
            name in ``Draft.without``.
        title: What is different, for people.
        step_ns: Simulated step.
        recoverable_ns: The step as it is, simulated, less this; never below 0.
        ranks: Whose operations were changed; empty for all.
    """

    what: str
    title: str
    step_ns: int
    recoverable_ns: int
    ranks: tuple[int, ...] = ()


class KindSlowdown(Record, frozen=True, kw_only=True):
    """S_t: the step with all ideal but this kind of operation, over the ideal step."""

    kind: str
    slowdown: float


class WorkerSlowdown(Record, frozen=True, kw_only=True):
    """S_w: the smaller of the slow-downs by the worker's data-parallel row and pipeline stage."""

    rank: int
    dp_rank: int | None
    stage: int | None
    slowdown: float


class StageSlowdown(Record, frozen=True, kw_only=True):
    """The step with all ideal but this pipeline stage, over the ideal step.

    Args:
        stage: Index along the pipeline.
        ranks: Its workers.
        slowdown: At least about 1; below 1 for a stage that is faster than the mean of all.
        compute_ns: Mean computation of a worker of the stage, per step.
    """

    stage: int
    ranks: tuple[int, ...]
    slowdown: float
    compute_ns: int


class StepSlowdown(Record, frozen=True, kw_only=True):
    """One step, simulated without launch delays, over the ideal step."""

    step: int
    slowdown: float


class PathShare(Record, frozen=True, kw_only=True):
    """Part of the critical path, mean per step.

    Args:
        rank: Whose operations; None for what several ranks do together.
        kind: ``compute``, ``transfer``, ``wait``, ``launch`` or ``other``.
        name: Class of kernel or collective, for example ``all_reduce dp``; empty for all.
        ns_per_step: Time on the path.
        share_ratio: Of the whole path.
    """

    rank: int | None
    kind: str
    name: str
    ns_per_step: int
    share_ratio: float


class WhatIfResult(Result, frozen=True, kw_only=True):
    """The simulated step, and what it would be otherwise; all None where it could not be simulated.

    Args:
        source: What the graph was made of: ``traces`` or ``operations``.
        num_operations: In the graph.
        num_steps: Steps that the figures are means over.
        step_ns: Mean measured step.
        replayed_ns: Mean simulated step, nothing changed.
        model_error_ratio: Simulated over measured, less 1.
        step_error_ratio: The same of each rank's steps, mean of the absolute values.
        ideal_ns: Mean step with every operation as long as the mean of its peers.
        slowdown: S = simulated without launch delays, over ideal.
        without: By what they recover, most first.
        kinds: S_t, largest first.
        workers: S_w, largest first.
        m_w: Share of the slow-down that the slowest 3 % of the workers explain.
        m_s: Share that the last pipeline stage explains.
        path: Critical path, largest share first.
        stages: Slow-down by pipeline stage, in order of stages.
        steps: Slowest steps, slowest first.
        micro_batch_correlation: Of the lengths of forward and backward of a micro-batch, each over
            the mean of its stage: near 1 where it is the data (sequence lengths) that differ.
    """

    source: str | None = None
    num_operations: int | None = None
    num_steps: int | None = None
    step_ns: int | None = None
    replayed_ns: int | None = None
    model_error_ratio: float | None = None
    step_error_ratio: float | None = None
    ideal_ns: int | None = None
    slowdown: float | None = None
    without: tuple[Scenario, ...] = ()
    kinds: tuple[KindSlowdown, ...] = ()
    workers: tuple[WorkerSlowdown, ...] = ()
    m_w: float | None = None
    m_s: float | None = None
    path: tuple[PathShare, ...] = ()
    stages: tuple[StageSlowdown, ...] = ()
    steps: tuple[StepSlowdown, ...] = ()
    micro_batch_correlation: float | None = None


def analyze_whatif(
    run: Run, measured: Measurements, stragglers: StragglersResult, moe: MoeResult
) -> WhatIfResult:
    """Simulate the run as it was, and without each cause that it shows.

    Args:
        run: The recording: traces, or another tool's log of operations.
        measured: What was measured rank by rank.
        stragglers: Ranks named in it get a scenario of their own.
        moe: Whether there are experts at all.

    Returns:
        The scenarios; without them, and with the reason in ``unavailable``, where the graph does
        not come out at the measured step.
    """
    if run.operations is not None:
        from distprof.analyzers.whatif.operations import simulate_operations

        return simulate_operations(run.operations)
    matched = run.matches.matched_ratio
    if not measured.analyses:
        return _nothing("no rank was measured")
    if len(measured.analyses) > 1 and (matched is None or matched < LEAST_MATCHED):
        share = format_ratio(matched or 0.0)
        return _nothing(f"{share} of the collectives found their partners on other ranks")
    named = {r.rank for r in stragglers.ranks if r.pattern is not StragglerPattern.NONE}
    return _of_traces(run, measured, frozenset(named), has_experts=bool(moe.layers))


def _of_traces(
    run: Run, measured: Measurements, named: Set[int], *, has_experts: bool
) -> WhatIfResult:
    # They hold results of this module
    from distprof.analyzers.whatif.critical_path import path_shares
    from distprof.analyzers.whatif.scenarios import scenarios
    from distprof.analyzers.whatif.sections import Sections
    from distprof.analyzers.whatif.slowdowns import slowdowns
    from distprof.analyzers.whatif.trace_graph import trace_graph

    try:
        graph = trace_graph(run, measured.analyses)
    except CycleError as error:
        return _nothing(f"matched collectives contradict each other: {error}")
    if graph is None or not graph.measured_ns.sum():
        return _nothing("the ranks have no windows in common")
    times = graph.simulate()
    base = _replayed(graph, times)
    if base.error_ratio > LARGEST_ERROR:
        off = format_ratio(base.error_ratio)
        why = f"The simulated step is {off} off the measured one: too far to conclude anything."
        return msgspec.structs.replace(base.result, unavailable=(why,))
    replayed_ns = base.result.replayed_ns or 0
    sections = Sections.of(graph, measured.analyses, has_experts=has_experts)
    slow = slowdowns(graph, sections, measured.analyses, replayed_ns)
    return msgspec.structs.replace(
        base.result,
        without=scenarios(graph, sections, measured.analyses, replayed_ns, named),
        path=path_shares(graph, times, replayed_ns),
        **({} if slow is None else slow.fields()),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Replayed:
    """The run simulated as it was; ``error_ratio`` is the worse of step by step and as a whole."""

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
        step_ns=round(graph.measured_ns.mean()),
        replayed_ns=round(spans.mean()),
        model_error_ratio=whole,
        step_error_ratio=by_step,
    )
    return _Replayed(result=result, error_ratio=max(abs(whole), by_step))


def _nothing(why: str) -> WhatIfResult:
    return WhatIfResult(unavailable=(f"The step was not simulated: {why}.",))
