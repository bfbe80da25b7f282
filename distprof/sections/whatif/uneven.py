"""What a logged job's slow-down comes from: few workers, a stage, micro-batches, or transfers.

Read off a :class:`~distprof.sections.whatif.result.WhatIfResult` alone, so that rules and
reports agree.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from distprof.sections.whatif.result import Scenario, StageSlowdown, WhatIfResult

__all__ = ["Cause", "CauseKind", "causes_of", "limiting_stage", "share_of"]

FEW_WORKERS_SHARE = 0.5
"""M_W from which few workers are to blame: what they do shows in every other scenario too."""

DATA_CORRELATION = 0.9
"""Correlation of forward and backward from which micro-batches differ by their data.

Source: J. Lin et al., "Understanding Stragglers in Large Model Training Using What-if Analysis"
(OSDI 2025), section 5.3.
"""

_TRANSFERS = ("send", "recv", "pp-comm", "all-reduce", "all-gather", "reduce-scatter", "clip")


class CauseKind(StrEnum):
    """Why operations of a kind take unequally long."""

    WORKERS = "workers"
    STAGES = "stages"
    DATA = "data"
    STALLS = "stalls"
    TRANSFERS = "transfers"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """One cause.

    Args:
        kind: Which.
        scenario: The step without it.
        share: Part of the slow-down that goes with it; causes overlap.
    """

    kind: CauseKind
    scenario: Scenario
    share: float


def causes_of(whatif: WhatIfResult, min_share: float) -> tuple[Cause, ...]:
    """Causes that explain at least ``min_share`` of the slow-down, largest first.

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
        if what.startswith("kind ") and any(word in what for word in _TRANSFERS)
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
    """Part of the slow-down that the scenario recovers."""
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
