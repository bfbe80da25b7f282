"""Pipelines of a run: work of the stages, bubbles, predictions, and a picture of one step.

Ranks that hold the same stages are one position of the pipeline. The least busy rank defines the
work of a position, so a slow rank among several does not count as an unequal split.
"""

from __future__ import annotations

from distprof.artefacts.record import Record
from distprof.sections.base import Result
from distprof.terms import Confidence

LARGEST_FACTOR = 4
"""Largest proposed multiple of the present number of micro-batches. Smaller micro-batches no longer
take proportionally less time."""


class StageDetail(Record, frozen=True, kw_only=True):
    """One stage of a pipeline, mean per step.

    Args:
        stage: Number of the stage in the pipeline.
        rank: Global rank that holds it, in the pipeline of median span.
        position: Position of that rank in the pipeline.
        work_ns_per_step: Computation of the stage.
        forward_ns: Mean per micro-batch, including the loss; null if none was recorded.
        backward_ns: Mean per micro-batch, all parts together; null if none was recorded.
        bubble_fraction: Idle time of its rank over the pipeline's span. It is repeated for each
            stage of the rank.
        in_flight: Largest number of micro-batches at once whose forward had started and whose
            backward had not ended.
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
        what: Description of the change, for example ``M = 16 instead of 4``.
        change: ``micro-batches``, ``schedule``, ``virtual-stages`` or ``layer-split``.
        schedule: Name of the schedule.
        num_micro_batches: Number of micro-batches, M.
        virtual_stages: Stages per rank.
        bubble_fraction: Predicted bubble fraction.
        step_ns: Predicted step time for the same batch.
        saved_ns: Measured time less predicted time; below 0 if the prediction is longer.
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
"""Keys of the scenarios with another order of actions (:mod:`distprof.sections.whatif.refill`)."""


def refill_key(prediction: PipelinePrediction) -> str:
    """Key of the scenario with the predicted order."""
    return MICRO_BATCHES if prediction.change == MICRO_BATCHES else SCHEDULE


class PictureRow(Record, frozen=True, kw_only=True):
    """One slot of one step, for a picture of the schedule. Times since the step's first work.

    Args:
        rank: Global rank.
        stage: Pipeline stage, from 0.
        kind: Kind of work, for example forward or backward.
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
    """Pipelines of one shape; figures are those of the pipeline with the median span.

    The span of a step runs from the first work of any rank to the last. Idle is the time in the
    span that the mean rank does not work, including waiting for messages. ``idle_ns`` is, exactly,
    the sum of ``warm_up_drain_ns``, ``imbalance_ns``, ``variation_ns``, ``exposed_p2p_ns`` and
    ``host_ns``; all are means over steps.

    Args:
        schedule: Schedule recognised by its order, or ``unknown order``.
        ranks: Ranks of the pipeline with the median span, in the order of positions.
        replicas: Ranks of each pipeline of this shape, likewise.
        stages: Total number of stages.
        virtual_stages: Stages per rank.
        num_micro_batches: Micro-batches per step.
        source: Source of the slots.
        confidence: ``measured`` from marks around the work itself, otherwise ``inferred``.
        comparable_clocks: Whether times of different ranks could be compared. If not, the span is
            the longest span of a single rank.
        num_steps: Steps the figures are means over.
        step_ns: Mean training step: the span and all time outside the pipeline; null if unknown.
        span_ns: Mean span.
        work_ns: Work of the mean rank.
        idle_ns: Span less work.
        bubble_fraction: Idle over span.
        ideal_bubble_fraction: Bubble fraction with equal stages and messages that take no time.
        ideal_source: ``closed form`` or ``replay``; null without an ideal.
        imbalance_ratio: Work of the busiest position over the mean.
        warm_up_drain_ns: Idle time of the observed order with equal stages.
        imbalance_ns: Idle time added by unequal stages.
        variation_ns: Idle time added by micro-batches of different length on one stage.
        exposed_p2p_ns: Idle time added by waiting for messages that are already sent.
        host_ns: The rest: late launches, stalls inside slots, other communication.
        limiting_stage: The busiest stage of the busiest rank.
        limiting_rank: The busiest rank.
        model_error_ratio: Span of the replay without messages and CPU delays over the measured
            span, less 1.
        stages_detail: Each stage.
        message_ns: Median wait of an action for a message already sent; 0 if no action waits, null
            if clocks cannot be compared.
        predictions: Predictions for other configurations, best first.
        prediction_error_ratio: Relative error of the prediction for the present configuration, by
            which the others are corrected.
        picture: Slots of one step of median length, by rank and start; only some ranks if there
            are many slots.
        notes: Assumptions and omissions, one sentence each.
        samples_per_step: Samples of the pipeline per step, which its micro-batches share; null if
            they were not logged.
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
    samples_per_step: int | None = None

    def can_have(self, num_micro_batches: int) -> bool:
        """Whether that many micro-batches can share the samples of a step evenly."""
        return self.samples_per_step is None or self.samples_per_step % num_micro_batches == 0

    @property
    def better(self) -> tuple[PipelinePrediction, ...]:
        """The best prediction with more micro-batches, then the best with another schedule."""
        rows = [row for row in self.predictions if row.saved_ns > 0]
        most = LARGEST_FACTOR * self.num_micro_batches
        more = [
            r
            for r in rows
            if r.change == "micro-batches"
            and r.num_micro_batches <= most
            and self.can_have(r.num_micro_batches)
        ]
        other = [r for r in rows if r.change in ("schedule", "virtual-stages")]
        return (*more[:1], *other[:1])


class PipelinePosition(Record, frozen=True, kw_only=True):
    """Ranks that hold the same stages.

    Args:
        stages: Numbers of the stages, ascending.
        ranks: Global ranks.
        num_micro_batches: Micro-batches per step.
        work_ns_per_step: Computation of the least busy rank inside the marks of its stages; all
            computation of the rank if only messages show the stages.
        work_ns_per_micro_batch: Work per micro-batch; null without micro-batches or marks.
        excess_ratio: Work above the median of the other positions, over that median.
        chance: Probability that equal positions show this excess, at most 1.
        busiest_stage: The stage that works most; null if there is one, or no mark shows their work.
        busiest_ratio: Its share of the work; null as above.
    """

    stages: tuple[int, ...]
    ranks: tuple[int, ...]
    num_micro_batches: float
    work_ns_per_step: int
    work_ns_per_micro_batch: int | None
    excess_ratio: float
    chance: float
    busiest_stage: int | None = None
    busiest_ratio: float | None = None


class PipelineRank(Record, frozen=True, kw_only=True):
    """One rank's mean step.

    Args:
        rank: Global rank.
        stages: Stages that it holds.
        work_ns_per_step: Work in its stages.
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
    """Stages and ranks of a pipeline; empty if neither marks nor messages show one.

    Args:
        positions: Positions, sorted by stages.
        ranks: Ranks, ascending.
        max_over_mean: Work of the busiest position over the mean; 1 is even.
        lost_ns_per_step: Cost of uneven work. With M micro-batches the pipeline waits M - 1 times
            for the busiest position, (M - 1) / M of its work beyond the mean.
        step_ns: Mean step that the times are parts of; null without positions.
        groups: Pipelines, grouped by shape.
    """

    groups: tuple[PipelineGroup, ...] = ()
    positions: tuple[PipelinePosition, ...] = ()
    ranks: tuple[PipelineRank, ...] = ()
    max_over_mean: float | None = None
    lost_ns_per_step: int | None = None
    step_ns: int | None = None
