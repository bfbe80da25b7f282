"""Pipelines of a run: work of the stages, bubbles, predictions, and a picture of one step.

Ranks that hold the same stages are one position of the pipeline. The least busy rank defines the
work of a position, so that a slow rank among several does not count as an unequal split.
"""

from __future__ import annotations

from distprof.artefacts.record import Record
from distprof.sections.base import Result
from distprof.terms import Confidence

__all__ = [
    "MICRO_BATCHES",
    "SCHEDULE",
    "PictureRow",
    "PipelineGroup",
    "PipelinePosition",
    "PipelinePrediction",
    "PipelineRank",
    "PipelineResult",
    "StageDetail",
    "refill_key",
]


LARGEST_FACTOR = 4
"""The largest multiple of the present number of micro-batches that is proposed: more of them are so
small that they no longer take time in proportion."""


class StageDetail(Record, frozen=True, kw_only=True):
    """One stage of a pipeline, mean per step.

    Args:
        stage: Its number in the pipeline.
        rank: Global rank that holds it, in the pipeline that was looked at.
        position: Of that rank in the pipeline.
        work_ns_per_step: Computation of the stage.
        forward_ns: Mean per micro-batch, the loss included; None where none was seen.
        backward_ns: Mean per micro-batch, all parts of it together; None where none was seen.
        bubble_fraction: Of its rank: idle over the pipeline's span. Ranks with several stages
            have it at each of them.
        in_flight: Most micro-batches at once whose forward had started and backward not ended.
    """

    stage: int
    rank: int
    position: int
    work_ns_per_step: int
    forward_ns: int | None
    backward_ns: int | None
    bubble_fraction: float | None
    in_flight: int | None


class PipelinePrediction(Record, frozen=True, kw_only=True):
    """The pipeline in another configuration, on the same hardware.

    Args:
        what: What is different, for people, for example ``M = 16 instead of 4``.
        change: ``micro-batches``, ``schedule``, ``virtual-stages`` or ``layer-split``.
        schedule: Name of the schedule.
        num_micro_batches: M.
        virtual_stages: Stages per rank.
        bubble_fraction: Predicted.
        step_ns: Predicted time for the same batch, all micro-batches.
        saved_ns: The measured time less that; below 0 where it would take longer.
    """

    what: str
    change: str
    schedule: str
    num_micro_batches: int
    virtual_stages: int
    bubble_fraction: float
    step_ns: int
    saved_ns: int


MICRO_BATCHES, SCHEDULE = "micro-batches", "schedule"
"""Keys of the scenarios with another order of the work (:mod:`distprof.sections.whatif.refill`)."""


def refill_key(prediction: PipelinePrediction) -> str:
    """Key of the scenario with the predicted order."""
    return MICRO_BATCHES if prediction.change == MICRO_BATCHES else SCHEDULE


class PictureRow(Record, frozen=True, kw_only=True):
    """One slot of one step, for a picture of the schedule. Times since the step's first work.

    Args:
        rank: Global rank.
        stage: Pipeline stage, from 0.
        kind: What the slot holds, for example forward or backward.
        micro_batch: Number of the micro-batch, from 0.
        start_ns: Start, since the first work of the step.
        end_ns: End, since the first work of the step.
    """

    rank: int
    stage: int
    kind: str
    micro_batch: int
    start_ns: int
    end_ns: int


class PipelineGroup(Record, frozen=True, kw_only=True):
    """Pipelines of one shape; numbers are those of the one whose span is the median.

    The span of a step runs from the first work of any rank to the last. Idle is the time in the
    span that the mean rank does not work, including waiting for messages. ``idle_ns`` is, exactly,
    the sum of ``warm_up_drain_ns``, ``imbalance_ns``, ``variation_ns``, ``exposed_p2p_ns`` and
    ``host_ns``; all are means over steps.

    Args:
        schedule: As recognised by its order, else ``unknown order``.
        ranks: Of the pipeline that was looked at, in the order of positions.
        replicas: All pipelines of this shape, likewise.
        stages: Stages in all.
        virtual_stages: Stages per rank.
        num_micro_batches: Per step.
        source: What slots were read from.
        confidence: ``measured`` from marks of work itself, else ``inferred``.
        comparable_clocks: Whether times of different ranks could be compared; else the span is
            that of the rank whose own is the longest.
        num_steps: Steps the figures are means over.
        step_ns: Mean training step, the span and what is outside of the pipeline; None if unknown.
        span_ns: Mean span.
        work_ns: Work of the mean rank.
        idle_ns: Span less work.
        bubble_fraction: Idle over span.
        ideal_bubble_fraction: With equal stages and messages that take no time.
        ideal_source: ``closed form`` or ``replay``; None without an ideal.
        imbalance_ratio: Work of the busiest position over the mean.
        warm_up_drain_ns: Idle of the observed order with equal stages.
        imbalance_ns: What unequal stages add to it.
        variation_ns: What is added because one stage's micro-batches differ in time.
        exposed_p2p_ns: What waiting for messages adds, when they are already sent.
        host_ns: The rest: late launches, stalls inside slots, other communication.
        limiting_stage: The busiest stage of the busiest rank.
        limiting_rank: Its rank.
        model_error_ratio: Span of the replay without messages and host, over the measured, less 1.
        stages_detail: By stage.
        message_ns: Median time that an action waits for a message already sent; 0 where none does,
            None where clocks cannot be compared.
        predictions: Best first.
        prediction_error_ratio: What the prediction of the present configuration is off by; the
            others are corrected for it.
        picture: Slots of one step of median length, by rank and start; empty where too large.
        notes: What was assumed or left out, one sentence each.
    """

    schedule: str
    ranks: tuple[int, ...]
    replicas: tuple[tuple[int, ...], ...] = ()
    stages: int
    virtual_stages: int
    num_micro_batches: int
    source: str
    confidence: Confidence
    comparable_clocks: bool = True
    num_steps: int = 0
    step_ns: int | None = None
    span_ns: int | None = None
    work_ns: int | None = None
    idle_ns: int | None = None
    bubble_fraction: float | None = None
    ideal_bubble_fraction: float | None = None
    ideal_source: str | None = None
    imbalance_ratio: float | None = None
    warm_up_drain_ns: int | None = None
    imbalance_ns: int | None = None
    variation_ns: int | None = None
    exposed_p2p_ns: int | None = None
    host_ns: int | None = None
    limiting_stage: int | None = None
    limiting_rank: int | None = None
    model_error_ratio: float | None = None
    stages_detail: tuple[StageDetail, ...] = ()
    message_ns: int | None = None
    predictions: tuple[PipelinePrediction, ...] = ()
    prediction_error_ratio: float | None = None
    picture: tuple[PictureRow, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def better(self) -> tuple[PipelinePrediction, ...]:
        """The best prediction with more micro-batches, then the best with another schedule."""
        rows = [row for row in self.predictions if row.saved_ns > 0]
        most = LARGEST_FACTOR * self.num_micro_batches
        more = [r for r in rows if r.change == "micro-batches" and r.num_micro_batches <= most]
        other = [r for r in rows if r.change in ("schedule", "virtual-stages")]
        return (*more[:1], *other[:1])


class PipelinePosition(Record, frozen=True, kw_only=True):
    """Ranks that hold the same stages.

    Args:
        stages: Numbers of the stages, ascending.
        ranks: Global ranks.
        num_micro_batches: Per step.
        work_ns_per_step: Computation inside the marks of its stages, of the least busy rank; all
            computation of the rank where only messages show the stages.
        work_ns_per_micro_batch: The same over the micro-batches, None without any or without marks.
        excess_ratio: What it works beyond the median of the other positions, over that median.
        chance: Probability that equal positions show this excess, at most 1.
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
        wait_ns_per_step: Exposed sends and receives: waiting for other stages, and transfer.
            Collectives of other axes are not included.
        other_ns_per_step: The rest: optimizer, input, waiting for the CPU.
    """

    rank: int
    stages: tuple[int, ...]
    work_ns_per_step: int
    wait_ns_per_step: int
    other_ns_per_step: int


class PipelineResult(Result, frozen=True, kw_only=True):
    """Stages and ranks of a pipeline; empty where neither marks nor messages show one.

    Args:
        positions: By their first stage.
        ranks: Ascending.
        max_over_mean: Work of the busiest position over the mean; 1 is even.
        lost_ns_per_step: What uneven work costs: with M micro-batches the pipeline waits M - 1
            times for the busiest position, (M - 1) / M of its work beyond the mean.
        step_ns: Mean step that the times are parts of, None without positions.
        groups: Pipelines, those of one shape together.
    """

    groups: tuple[PipelineGroup, ...] = ()
    positions: tuple[PipelinePosition, ...] = ()
    ranks: tuple[PipelineRank, ...] = ()
    max_over_mean: float | None = None
    lost_ns_per_step: int | None = None
    step_ns: int | None = None
