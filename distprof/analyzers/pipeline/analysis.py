"""Pipeline parallelism: work of the stages beside each other.

Ranks that hold the same stages are one position of the pipeline. What a position works is what its
least busy rank works, so that a slow rank among several is not taken for an unequal split.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from distprof.analyzers.chance import chance_of_mean
from distprof.analyzers.context import RankAnalysis
from distprof.analyzers.own_time import over_peers
from distprof.analyzers.pipeline.from_messages import groups_from_messages
from distprof.analyzers.pipeline.from_operations import pipelines_of_log
from distprof.analyzers.pipeline.groups import groups_of
from distprof.analyzers.pipeline.ranks import pipelines_of
from distprof.analyzers.pipeline.rows import (
    PictureRow,
    PipelineGroup,
    PipelinePrediction,
    StageDetail,
)
from distprof.analyzers.result import Record, Result
from distprof.run.run import Run

__all__ = [
    "PictureRow",
    "PipelineGroup",
    "PipelinePosition",
    "PipelinePrediction",
    "PipelineRank",
    "PipelineResult",
    "StageDetail",
    "analyze_pipeline",
]

NO_MARKS = "no marks of pipeline stages in the traces"
NO_STAGES = "the log names no pipeline stages with forward and backward passes"


class PipelinePosition(Record, frozen=True, kw_only=True):
    """Ranks that hold the same stages.

    Args:
        stages: Numbers of the stages, ascending.
        ranks: Global ranks.
        num_micro_batches: Per step.
        work_ns_per_step: Computation inside the marks of its stages, of the least busy rank.
        work_ns_per_micro_batch: The same over the micro-batches, None without any.
        excess_ratio: What it works beyond the median of the other positions, over that median.
        chance: That positions which are all alike show such an excess, at most 1.
    """

    stages: tuple[int, ...]
    ranks: tuple[int, ...]
    num_micro_batches: float
    work_ns_per_step: int
    work_ns_per_micro_batch: int | None
    excess_ratio: float
    chance: float


class PipelineRank(Record, frozen=True, kw_only=True):
    """One rank's mean step.

    Args:
        rank: Global rank.
        stages: That it holds.
        work_ns_per_step: In its stages.
        wait_ns_per_step: Sends and receives that no computation hides: waiting for other stages,
            and transfer. Collectives of other axes are no part of it.
        other_ns_per_step: The rest: optimizer, input, idling for the host.
    """

    rank: int
    stages: tuple[int, ...]
    work_ns_per_step: int
    wait_ns_per_step: int
    other_ns_per_step: int


class PipelineResult(Result, frozen=True, kw_only=True):
    """Stages and ranks of a pipeline; empty without marks.

    Args:
        positions: By their first stage.
        ranks: Ascending.
        max_over_mean: Work of the busiest position over the mean; 1 is even.
        lost_ns_per_step: What uneven work costs: with M micro-batches the pipeline waits M - 1
            times for the busiest position, (M - 1) / M of its work beyond the mean.
        step_ns: Mean step that the times are parts of, None without marks.
        groups: Pipelines, those of one shape together.
    """

    groups: tuple[PipelineGroup, ...] = ()
    positions: tuple[PipelinePosition, ...] = ()
    ranks: tuple[PipelineRank, ...] = ()
    max_over_mean: float | None = None
    lost_ns_per_step: int | None = None
    step_ns: int | None = None


def analyze_pipeline(run: Run, analyses: Mapping[int, RankAnalysis]) -> PipelineResult:
    """Work, waiting and bubble of a run's pipelines.

    Args:
        run: For its clock and its groups, or the operations that a log holds in place of traces.
        analyses: By global rank; those without slots take no part.

    Source:
        Formula sheet, "Pipeline bubble": stage imbalance is maximum over mean stage time.
    """
    if run.operations is not None:
        groups = groups_of(pipelines_of_log(run.operations))
        return PipelineResult(groups=groups, unavailable=() if groups else (NO_STAGES,))
    groups = groups_of(pipelines_of(run, analyses))
    marked = {rank: a for rank, a in analyses.items() if a.stages and a.steps}
    if not marked:
        groups = groups or groups_from_messages(run, analyses)
        return PipelineResult(groups=groups, unavailable=() if groups else (NO_MARKS,))
    return _with_positions(marked, groups)


def _with_positions(
    marked: Mapping[int, RankAnalysis], groups: tuple[PipelineGroup, ...]
) -> PipelineResult:
    """Work of positions beside each other."""
    positions = _positions(marked)
    work = np.array([position.work_ns_per_step for position in positions], dtype=np.float64)
    uneven = float(work.max() - work.mean())
    batches = max(position.num_micro_batches for position in positions)
    spans = [step.span_ns for analysis in marked.values() for step in analysis.steps]
    return PipelineResult(
        groups=groups,
        positions=positions,
        ranks=tuple(_rank(analysis) for analysis in marked.values()),
        max_over_mean=float(work.max() / work.mean()) if work.mean() > 0 else None,
        lost_ns_per_step=int(uneven * max(batches - 1, 0) / max(batches, 1)),
        step_ns=int(np.mean(spans)) if spans else None,
    )


def _positions(analyses: Mapping[int, RankAnalysis]) -> tuple[PipelinePosition, ...]:
    held: dict[tuple[int, ...], list[RankAnalysis]] = {}
    for analysis in analyses.values():
        held.setdefault(analysis.stage_numbers, []).append(analysis)
    order = sorted(held)
    work = np.stack([np.min([_work(rank) for rank in held[key]], axis=0) for key in order])
    excess = over_peers(work)
    chance = np.minimum(1.0, len(order) * chance_of_mean(excess))
    return tuple(
        _position(key, held[key], work[i], excess[i], float(chance[i]))
        for i, key in enumerate(order)
    )


def _position(
    stages: tuple[int, ...],
    ranks: Sequence[RankAnalysis],
    work: NDArray[np.int64],
    excess: NDArray[np.float64],
    chance: float,
) -> PipelinePosition:
    batches = np.mean([mark.num_micro_batches.mean() for rank in ranks for mark in rank.stages])
    mean, peers = float(work.mean()), float((work - excess).mean())
    return PipelinePosition(
        stages=stages,
        ranks=tuple(rank.rank for rank in ranks),
        num_micro_batches=float(batches),
        work_ns_per_step=int(mean),
        work_ns_per_micro_batch=int(mean / batches) if batches else None,
        excess_ratio=float(excess.mean()) / peers if peers > 0 else 0.0,
        chance=chance,
    )


def _rank(analysis: RankAnalysis) -> PipelineRank:
    span = np.mean([step.span_ns for step in analysis.steps])
    wait = _message_wait(analysis)
    work = _work(analysis).mean()
    return PipelineRank(
        rank=analysis.rank,
        stages=analysis.stage_numbers,
        work_ns_per_step=int(work),
        wait_ns_per_step=int(wait),
        other_ns_per_step=max(0, int(span - wait - work)),
    )


def _message_wait(analysis: RankAnalysis) -> float:
    """Mean per step, in sends and receives only where they are told from other communication."""
    if analysis.message_wait_ns is not None:
        return float(analysis.message_wait_ns.mean())
    return float(np.mean([step.exposed_comm_ns for step in analysis.steps]))


def _work(analysis: RankAnalysis) -> NDArray[np.int64]:
    total: NDArray[np.int64] = np.sum([mark.work_ns for mark in analysis.stages], axis=0)
    return total
