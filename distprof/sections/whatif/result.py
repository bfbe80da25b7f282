"""What the step would take without a cause: the run as a graph, simulated, and simulated again.

Source of the definitions of S, S_t, S_w, M_W and M_S: formula sheet, "What-if".
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import msgspec

from distprof.artefacts.record import Record
from distprof.sections.base import Result

__all__ = [
    "TRANSFERS",
    "Cause",
    "CauseKind",
    "KindSlowdown",
    "PathShare",
    "Repair",
    "RepairPlan",
    "Scenario",
    "StageSlowdown",
    "StepSlowdown",
    "WhatIfResult",
    "WorkerSlowdown",
    "causes_of",
    "limiting_stage",
    "share_of",
]


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


class Repair(Record, frozen=True, kw_only=True):
    """One change of a plan, made after those before it.

    Args:
        what: Key of its scenario.
        title: What is different, as a clause that follows "if".
        done: The change as a fact, for example ``rank 6 mended``.
        ranks: Whose operations change; empty for all.
        alone_ns: What it gives back alone, per step.
        gain_ns: What it gives back after those before it, per step.
        step_ns: The simulated step after it and those before it.
    """

    what: str
    title: str
    done: str
    ranks: tuple[int, ...]
    alone_ns: int
    gain_ns: int
    step_ns: int


class RepairPlan(Record, frozen=True, kw_only=True):
    """What to mend, in which order, and where the step is afterwards.

    Args:
        step_ns: Mean simulated step, nothing changed, or capture where nothing marks steps; null
            where the run could not be simulated.
        repairs: Changes in order; empty where none gives back 2 % of the step.
    """

    step_ns: int | None = None
    repairs: tuple[Repair, ...] = ()


class KindSlowdown(Record, frozen=True, kw_only=True):
    """S_t: the step with all ideal but this kind of operation, over the ideal step.

    Args:
        kind: Kind of operation.
        slowdown: Step with everything ideal but this kind, over the ideal step; 1 is no slow-down.
    """

    kind: str
    slowdown: float


class WorkerSlowdown(Record, frozen=True, kw_only=True):
    """S_w: the smaller of the slowdowns by the worker's data-parallel row and pipeline stage.

    Args:
        rank: Worker.
        dp_rank: Its data-parallel rank; null where unknown.
        stage: Its pipeline stage; null where unknown.
        slowdown: The smaller of the slow-downs of its data-parallel rank and of its stage; 1 is
            none.
    """

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
    """One step, simulated without launch delays, over the ideal step.

    Args:
        step: Step number.
        slowdown: The step simulated without launch delays, over the ideal step.
    """

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
        num_left_out: Analysed steps that are not among them, half before and half after, because
            the run is large; null where all are.
        step_ns: Mean measured step.
        replayed_ns: Mean simulated step, nothing changed.
        model_error_ratio: Simulated over measured, less 1.
        step_error_ratio: The same of each rank's steps, mean of the absolute values.
        ideal_ns: Mean step with every operation as long as the mean of its peers.
        slowdown: S = simulated without launch delays, over ideal.
        without: By what they recover, most first.
        kinds: S_t, largest first.
        workers: S_w, largest first.
        m_w: Share of the slowdown that the slowest 3 % of the workers explain.
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
    num_left_out: int | None = None
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

    @property
    def recoverable_ns(self) -> Mapping[str, int]:
        """Key of each scenario to the step time that comes back in it."""
        return {scenario.what: scenario.recoverable_ns for scenario in self.without}


# What a logged job's slowdown comes from: few workers, a stage, micro-batches, or transfers -----

TRANSFERS = ("send", "recv", "pp-comm", "all-reduce", "all-gather", "reduce-scatter", "clip")
"""Parts of the names of kinds of operations that move data."""

FEW_WORKERS_SHARE = 0.5
"""M_W from which few workers are to blame: what they do shows in every other scenario too."""

DATA_CORRELATION = 0.9
"""Correlation of forward and backward from which micro-batches differ by their data.

Source: J. Lin et al., "Understanding Stragglers in Large Model Training Using What-if Analysis"
(OSDI 2025), section 5.3.
"""


class CauseKind(StrEnum):
    """Why operations of a kind take unequally long."""

    WORKERS = "workers"
    STAGES = "stages"
    DATA = "data"
    STALLS = "stalls"
    TRANSFERS = "transfers"


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """One cause.

    Args:
        kind: Which.
        scenario: The step without it.
        share: Part of the slowdown that goes with it; causes overlap.
    """

    kind: CauseKind
    scenario: Scenario
    share: float


def causes_of(whatif: WhatIfResult, min_share: float) -> tuple[Cause, ...]:
    """Causes that explain at least ``min_share`` of the slowdown, largest first.

    Few slow workers, where they explain most of it and have faster peers on their stages, are the
    only cause named. A stage whose every worker is slow has more work, or slow machines only: that
    cannot be told, and is called the stage.
    """
    found = {scenario.what: scenario for scenario in whatif.without}
    few = _cause(whatif, CauseKind.WORKERS, found.get("slowest-workers"))
    if few is not None and (whatif.m_w or 0.0) >= FEW_WORKERS_SHARE and _have_peers(whatif, few):
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


def share_of(whatif: WhatIfResult, scenario: Scenario) -> float:
    """Part of the slowdown that the scenario recovers."""
    if whatif.replayed_ns is None or whatif.ideal_ns is None:
        return 0.0
    return scenario.recoverable_ns / max(1, whatif.replayed_ns - whatif.ideal_ns)


def _have_peers(whatif: WhatIfResult, few: Cause) -> bool:
    """Whether no stage consists of these workers alone."""
    ranks = set(few.scenario.ranks)
    return not any(ranks.issuperset(stage.ranks) for stage in whatif.stages)


def _cause(whatif: WhatIfResult, kind: CauseKind, scenario: Scenario | None) -> Cause | None:
    if scenario is None:
        return None
    return Cause(kind=kind, scenario=scenario, share=share_of(whatif, scenario))
