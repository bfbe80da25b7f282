"""How long the step would take without each cause, from simulations of the run as a graph.

Source of the definitions of S, S_t, S_w, M_W and M_S: formula sheet, "What-if".
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import msgspec

from distprof.artefacts.record import Record
from distprof.sections.base import Result

PAGEABLE = "pageable copies"
"""Name of what copies from pageable memory take beyond those from pinned memory, and of the idle
time after calls that had to wait for them."""


class Scenario(Record, frozen=True, kw_only=True):
    """The step simulated without one cause."""

    # Stable key, for example ``rank 3``, ``stage-imbalance``, ``launch-gaps``, that rules name in
    # ``Draft.without``.
    what: str
    title: str  # What is different, as a clause that follows "if".
    step_ns: int  # Simulated step.
    recoverable_ns: int  # Simulated step with nothing changed, less this one; never below 0.
    ranks: tuple[int, ...] = ()  # Ranks whose operations were changed; empty for all.


class Repair(Record, frozen=True, kw_only=True):
    """One change of a plan, made after those before it."""

    what: str  # Key of its scenario.
    title: str  # What is different, as a clause that follows "if".
    done: str  # The change as a fact, for example ``rank 6 fixed``.
    ranks: tuple[int, ...]  # Ranks whose operations change; empty for all.
    alone_ns: int  # Time per step that it recovers alone.
    gain_ns: int  # Time per step that it recovers after the changes before it.
    step_ns: int  # The simulated step after this change and those before it.


class RepairPlan(Record, frozen=True, kw_only=True):
    """Which changes to make, in which order, and how long the step takes afterwards."""

    # Mean simulated step, nothing changed, or the capture if nothing marks steps; null if the run
    # could not be simulated.
    step_ns: int | None = None
    repairs: tuple[Repair, ...] = ()  # Changes in order; empty if none recovers 2 % of the step.


class KindSlowdown(Record, frozen=True, kw_only=True):
    """S_t: the step with everything ideal except this kind of operation, over the ideal step."""

    kind: str  # Kind of operation.
    slowdown: float  # Step with everything ideal except this kind, over the ideal step; 1 is none.


class WorkerSlowdown(Record, frozen=True, kw_only=True):
    """S_w: the smaller of the slowdowns by the worker's data-parallel row and pipeline stage."""

    rank: int  # Worker.
    dp_rank: int | None  # Its data-parallel rank; null if unknown.
    stage: int | None  # Its pipeline stage; null if unknown.
    # The smaller of the slowdowns of its data-parallel rank and of its stage; 1 is none.
    slowdown: float


class StageSlowdown(Record, frozen=True, kw_only=True):
    """The step with everything ideal except this pipeline stage, over the ideal step."""

    stage: int  # Index along the pipeline.
    ranks: tuple[int, ...]  # Its workers.
    slowdown: float  # 1 is none; below 1 for a stage that is faster than the mean of all.
    compute_ns: int  # Mean computation of a worker of the stage, per step.


class StepSlowdown(Record, frozen=True, kw_only=True):
    """One step, simulated without launch delays, over the ideal step."""

    step: int  # Step number.
    slowdown: float  # The step simulated without launch delays, over the ideal step.


class PathShare(Record, frozen=True, kw_only=True):
    """Part of the critical path, mean per step."""

    rank: int | None  # Rank of the operations; None for operations of several ranks together.
    kind: str  # ``compute``, ``transfer``, ``wait``, ``launch`` or ``other``.
    name: str  # Class of kernel or collective, for example ``all_reduce dp``; empty for all.
    ns_per_step: int  # Time on the path.
    share_ratio: float  # Share of the whole path.


class WhatIfResult(Result, frozen=True, kw_only=True):
    """The simulated step with and without each cause; all None if it could not be simulated."""

    source: str | None = None  # Source of the graph: ``traces`` or ``operations``.
    num_operations: int | None = None  # Number of operations in the graph.
    num_steps: int | None = None  # Number of steps that the figures are means over.
    # Number of analysed steps left out because the run is large, half of them before and half after
    # the others; null if none are.
    num_left_out: int | None = None
    step_ns: int | None = None  # Mean measured step.
    replayed_ns: int | None = None  # Mean simulated step, nothing changed.
    model_error_ratio: float | None = None  # Simulated over measured, less 1.
    # The same for each rank's steps, mean of the absolute values.
    step_error_ratio: float | None = None
    ideal_ns: int | None = None  # Mean step with every operation as long as the mean of its peers.
    slowdown: float | None = None  # S = simulated without launch delays, over ideal.
    without: tuple[Scenario, ...] = ()  # Scenarios by the time that they recover, largest first.
    kinds: tuple[KindSlowdown, ...] = ()  # S_t of each kind of operation, largest first.
    workers: tuple[WorkerSlowdown, ...] = ()  # S_w of each worker, largest first.
    m_w: float | None = None  # Share of the slowdown that the slowest 3 % of the workers explain.
    m_s: float | None = None  # Share that the last pipeline stage explains.
    path: tuple[PathShare, ...] = ()  # Critical path, largest share first.
    stages: tuple[StageSlowdown, ...] = ()  # Slowdown by pipeline stage, in order of stages.
    steps: tuple[StepSlowdown, ...] = ()  # Slowest steps, slowest first.
    # Correlation between forward and backward lengths of micro-batches, each over the mean of its
    # stage: near 1 if the data (sequence lengths) differs.
    micro_batch_correlation: float | None = None

    @property
    def recoverable_ns(self) -> Mapping[str, int]:
        """Time per step that each scenario recovers, by key."""
        return {scenario.what: scenario.recoverable_ns for scenario in self.without}


# Causes of a logged job's slowdown: few workers, a stage, micro-batches or transfers --------------

TRANSFERS = ("send", "recv", "pp-comm", "all-reduce", "all-gather", "reduce-scatter", "clip")
"""Parts of the names of kinds of operations that move data."""

FEW_WORKERS_SHARE = 0.5
"""M_W from which few workers are to blame: their delays show in every other scenario too."""

DATA_CORRELATION = 0.9
"""Correlation of forward and backward from which micro-batches differ because of their data.

Source: J. Lin et al., "Understanding Stragglers in Large Model Training Using What-if Analysis"
(OSDI 2025), section 5.3.
"""


class CauseKind(StrEnum):
    """Why operations of a kind differ in length."""

    WORKERS = "workers"
    STAGES = "stages"
    DATA = "data"
    STALLS = "stalls"
    TRANSFERS = "transfers"


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """One cause of the slowdown."""

    kind: CauseKind  # Kind of the cause.
    scenario: Scenario  # The step without it.
    share: float  # Share of the slowdown that it explains; causes overlap.


def causes_of(whatif: WhatIfResult, min_share: float) -> tuple[Cause, ...]:
    """Causes that explain at least ``min_share`` of the slowdown, largest first.

    If few slow workers explain most of it and have faster peers on their stages, they are the only
    cause named. If all workers of a stage are slow, it has either more work or only slow machines.
    These cannot be distinguished, and the stage is named.
    """
    found = {scenario.what: scenario for scenario in whatif.without}
    few = _cause(whatif, CauseKind.WORKERS, found.get("slowest-workers"))
    if few is not None and (whatif.m_w or 0.0) >= FEW_WORKERS_SHARE:
        whole_stages = (stage.ranks for stage in whatif.stages)
        if not any({*few.scenario.ranks}.issuperset(ranks) for ranks in whole_stages):
            return (few,)
    correlation = whatif.micro_batch_correlation
    is_data = correlation is not None and correlation >= DATA_CORRELATION
    kind = CauseKind.DATA if is_data else CauseKind.STALLS
    transfers = [
        _cause(whatif, CauseKind.TRANSFERS, scenario)
        for what, scenario in found.items()
        if what.startswith("kind ") and any(word in what for word in TRANSFERS)
    ]
    causes = (
        _cause(whatif, CauseKind.STAGES, found.get("stage-imbalance")),
        _cause(whatif, kind, found.get("micro-batch-imbalance")),
        *transfers,
    )
    enough = [cause for cause in causes if cause is not None and cause.share >= min_share]
    return tuple(sorted(enough, key=lambda cause: -cause.share))


def limiting_stage(whatif: WhatIfResult) -> StageSlowdown | None:
    """The pipeline stage that computes longest; None for a single stage."""
    return max(whatif.stages, key=lambda stage: stage.compute_ns, default=None)


def _cause(whatif: WhatIfResult, kind: CauseKind, scenario: Scenario | None) -> Cause | None:
    if scenario is None:
        return None
    lost_ns = max(1, (whatif.replayed_ns or 0) - (whatif.ideal_ns or 0))
    share = scenario.recoverable_ns / lost_ns if whatif.replayed_ns and whatif.ideal_ns else 0.0
    return Cause(kind=kind, scenario=scenario, share=share)
