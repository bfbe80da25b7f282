"""Pipelines of a run: work of the stages, bubbles, predictions, and a picture of one step."""

from __future__ import annotations

from distprof.artefacts.record import Record
from distprof.sections.base import Result
from distprof.terms import Confidence

LARGEST_FACTOR = 4
"""Largest proposed multiple of the present number of micro-batches. Smaller micro-batches no longer
take proportionally less time."""


class StageDetail(Record, frozen=True, kw_only=True):
    """One stage of a pipeline, mean per step."""

    stage: int  # Number of the stage in the pipeline.
    rank: int  # Global rank that holds it, in the pipeline of median span.
    position: int  # Position of that rank in the pipeline.
    work_ns_per_step: int  # Computation of the stage.
    forward_ns: int | None  # Mean per micro-batch, including the loss; null if none was recorded.
    backward_ns: int | None  # Mean per micro-batch, all parts together; null if none was recorded.
    # Idle time of its rank over the pipeline's span. It is repeated for each stage of the rank.
    bubble_fraction: float | None
    # Largest number of micro-batches at once whose forward had started and whose backward had not
    # ended.
    in_flight: int | None


class PipelinePrediction(Record, frozen=True, kw_only=True):
    """The pipeline in another configuration, on the same hardware."""

    what: str  # Description of the change, for example ``M = 16 instead of 4``.
    change: str  # ``micro-batches``, ``schedule``, ``virtual-stages`` or ``layer-split``.
    schedule: str  # Name of the schedule.
    num_micro_batches: int  # Number of micro-batches, M.
    virtual_stages: int  # Stages per rank.
    bubble_fraction: float  # Predicted bubble fraction.
    step_ns: int  # Predicted step time for the same batch.
    saved_ns: int  # Measured time less predicted time; below 0 if the prediction is longer.


MICRO_BATCHES, SCHEDULE = "micro-batches", "schedule"
"""Keys of the scenarios with another order of actions (:mod:`distprof.sections.whatif.plan`)."""


def refill_key(prediction: PipelinePrediction) -> str:
    """Key of the scenario with the predicted order."""
    return MICRO_BATCHES if prediction.change == MICRO_BATCHES else SCHEDULE


class PictureRow(Record, frozen=True, kw_only=True):
    """One slot of one step, for a picture of the schedule. Times since the step's first work."""

    rank: int  # Global rank.
    stage: int  # Pipeline stage, from 0.
    kind: str  # Kind of work, for example forward or backward.
    micro_batch: int  # Number of the micro-batch, from 0.
    start_ns: int  # Start, since the first work of the step.
    end_ns: int  # End, since the first work of the step.


class PipelineGroup(Record, frozen=True, kw_only=True):
    """Pipelines of one shape; figures are those of the pipeline with the median span.

    The span of a step runs from the first work of any rank to the last. Idle is the time in the
    span that the mean rank does not work, including waiting for messages. ``idle_ns`` is, exactly,
    the sum of ``warm_up_drain_ns``, ``imbalance_ns``, ``variation_ns``, ``exposed_p2p_ns`` and
    ``host_ns``; all are means over steps.
    """

    schedule: str  # Schedule recognised by its order, or ``unknown order``.
    ranks: tuple[int, ...]  # Ranks of the pipeline with the median span, in the order of positions.
    replicas: tuple[tuple[int, ...], ...] = ()  # Ranks of each pipeline of this shape, likewise.
    stages: int  # Total number of stages.
    virtual_stages: int  # Stages per rank.
    num_micro_batches: int  # Micro-batches per step.
    source: str  # Source of the slots.
    # ``measured`` from marks around the work itself, otherwise ``inferred``.
    confidence: Confidence
    # Whether times of different ranks could be compared. If not, the span is the longest span of a
    # single rank.
    comparable_clocks: bool = True
    num_steps: int = 0  # Steps the figures are means over.
    # Mean training step: the span and all time outside the pipeline; null if unknown.
    step_ns: int | None = None
    span_ns: int | None = None  # Mean span.
    work_ns: int | None = None  # Work of the mean rank.
    idle_ns: int | None = None  # Span less work.
    bubble_fraction: float | None = None  # Idle over span.
    # Bubble fraction with equal stages and messages that take no time.
    ideal_bubble_fraction: float | None = None
    ideal_source: str | None = None  # ``closed form`` or ``replay``; null without an ideal.
    imbalance_ratio: float | None = None  # Work of the busiest position over the mean.
    warm_up_drain_ns: int | None = None  # Idle time of the observed order with equal stages.
    imbalance_ns: int | None = None  # Idle time added by unequal stages.
    # Idle time added by micro-batches of different length on one stage.
    variation_ns: int | None = None
    # Idle time added by waiting for messages that are already sent.
    exposed_p2p_ns: int | None = None
    host_ns: int | None = None  # The rest: late launches, stalls inside slots, other communication.
    limiting_stage: int | None = None  # The busiest stage of the busiest rank.
    limiting_rank: int | None = None  # The busiest rank.
    # Span of the replay without messages and CPU delays over the measured span, less 1.
    model_error_ratio: float | None = None
    stages_detail: tuple[StageDetail, ...] = ()  # Each stage.
    # Median wait of an action for a message already sent; 0 if no action waits, null if clocks
    # cannot be compared.
    message_ns: int | None = None
    # Predictions for other configurations, best first.
    predictions: tuple[PipelinePrediction, ...] = ()
    # Relative error of the prediction for the present configuration, by which the others are
    # corrected.
    prediction_error_ratio: float | None = None
    # Slots of one step of median length, by rank and start; only some ranks if there are many
    # slots.
    picture: tuple[PictureRow, ...] = ()
    notes: tuple[str, ...] = ()  # Assumptions and omissions, one sentence each.
    # Samples of the pipeline per step, which its micro-batches share; null if they were not logged.
    samples_per_step: int | None = None

    @property
    def num_positions(self) -> int:
        """Ranks of one pipeline, with those that were not recorded."""
        return max(len(self.ranks), self.stages // max(self.virtual_stages, 1))

    @property
    def better(self) -> tuple[PipelinePrediction, ...]:
        """The best prediction with more micro-batches, then the best with another schedule."""
        rows = [row for row in self.predictions if row.saved_ns > 0]
        most, samples = LARGEST_FACTOR * self.num_micro_batches, self.samples_per_step
        more = [
            r
            for r in rows
            if r.change == "micro-batches"
            and r.num_micro_batches <= most
            and (samples is None or samples % r.num_micro_batches == 0)  # shared evenly
        ]
        other = [r for r in rows if r.change in ("schedule", "virtual-stages")]
        return (*more[:1], *other[:1])


class PipelinePosition(Record, frozen=True, kw_only=True):
    """Ranks that hold the same stages."""

    stages: tuple[int, ...]  # Numbers of the stages, ascending.
    ranks: tuple[int, ...]  # Global ranks.
    num_micro_batches: float  # Micro-batches per step.
    # Computation of the least busy rank inside the marks of its stages; all computation of the rank
    # if only messages show the stages.
    work_ns_per_step: int
    # Work per micro-batch; null without micro-batches or marks.
    work_ns_per_micro_batch: int | None
    excess_ratio: float  # Work above the median of the other positions, over that median.
    chance: float  # Probability that equal positions show this excess, at most 1.
    # The stage that works most; null if there is one, or no mark shows their work.
    busiest_stage: int | None = None
    busiest_ratio: float | None = None  # Its share of the work; null as above.


class PipelineRank(Record, frozen=True, kw_only=True):
    """One rank's mean step."""

    rank: int  # Global rank.
    stages: tuple[int, ...]  # Stages that it holds.
    work_ns_per_step: int  # Work in its stages.
    # Exposed sends and receives: waiting for other stages, and transfer. Collectives of other axes
    # are not included.
    wait_ns_per_step: int
    other_ns_per_step: int  # The rest: optimizer, input, waiting for the CPU.


class PipelineResult(Result, frozen=True, kw_only=True):
    """Stages and ranks of a pipeline; empty if neither marks nor messages show one."""

    groups: tuple[PipelineGroup, ...] = ()  # Pipelines, grouped by shape.
    positions: tuple[PipelinePosition, ...] = ()  # Positions, sorted by stages.
    ranks: tuple[PipelineRank, ...] = ()  # Ranks, ascending.
    max_over_mean: float | None = None  # Work of the busiest position over the mean; 1 is even.
    # Cost of uneven work. With M micro-batches the pipeline waits M - 1 times for the busiest
    # position, (M - 1) / M of its work beyond the mean.
    lost_ns_per_step: int | None = None
    step_ns: int | None = None  # Mean step that the times are parts of; null without positions.
