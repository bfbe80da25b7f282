"""Pipeline parallelism: work of the stages beside each other.

Ranks that hold the same stages are one position of the pipeline. What a position works is what its
least busy rank works, so that a slow rank among several is not taken for an unequal split.
"""

from __future__ import annotations

from distprof.schema import Record
from distprof.sections.base import Result
from distprof.sections.pipeline.rows import PipelineGroup

__all__ = ["PipelinePosition", "PipelineRank", "PipelineResult"]


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
