"""What the pipeline would take with other micro-batches, schedules, stages per rank and splits.

Durations are those measured on this hardware. The prediction of the present configuration is
compared with what was measured; the others are corrected by the same ratio.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from distprof.costs.actions import Orders
from distprof.costs.known_schedules import SCHEDULES
from distprof.costs.order_replay import replay
from distprof.costs.prediction import Candidate, Prediction, StageWork, predict
from distprof.sections.pipeline.bubble import message_lag, stage_means
from distprof.sections.pipeline.observed import ObservedPipeline
from distprof.sections.pipeline.rows import PipelineGroup, PipelinePrediction
from distprof.terms import SlotKind

__all__ = ["MAX_PREDICTIONS", "predictions_of"]

MAX_PREDICTIONS = 12
MAX_ACTIONS = 40_000
"""Of a configuration, beyond which it is not replayed."""

_MICRO_BATCHES, _SCHEDULE = "micro-batches", "schedule"
_VIRTUAL, _LAYERS = "virtual-stages", "layer-split"

Proposal = tuple[str, str, Candidate]


def predictions_of(
    observed: ObservedPipeline, orders: Orders, group: PipelineGroup
) -> tuple[tuple[PipelinePrediction, ...], float | None]:
    """Other configurations, shortest first, and the model's error on the present one.

    Args:
        observed: A whole pipeline.
        orders: Its order.
        group: What was measured of it.
    """
    span = group.span_ns or 0
    transfer = _transfer_ns(observed, orders) if group.comparable_clocks else 0
    present = np.asarray(replay(orders, stage_means(observed), transfer_ns=transfer).makespan_ns)
    modelled = float(present.mean())
    if span <= 0 or modelled <= 0:
        return (), None
    proposals = [part for part in _proposals(group) if _size(part[2], group) <= MAX_ACTIONS]
    outside = max((group.step_ns or span) - span, 0)
    work = _stage_work(observed)
    rows = [
        _row(what, change, made, span / modelled, span, outside)
        for what, change, candidate in proposals
        for made in predict(work, len(group.ranks), [candidate], transfer_ns=transfer)
    ]
    rows.sort(key=lambda row: row.step_ns)
    return tuple(rows[:MAX_PREDICTIONS]), modelled / span - 1


def _row(
    what: str, change: str, made: Prediction, scale: float, span_ns: int, outside_ns: int
) -> PipelinePrediction:
    makespan = round(made.makespan_ns * scale)
    useful = made.makespan_ns * (1 - made.bubble_fraction)
    return PipelinePrediction(
        what=what,
        change=change,
        schedule=made.schedule,
        num_micro_batches=made.num_micro_batches,
        virtual_stages=made.virtual_stages,
        bubble_fraction=max(0.0, 1 - useful / makespan) if makespan else 0.0,
        step_ns=makespan + outside_ns,
        saved_ns=span_ns - makespan,
    )


def _proposals(group: PipelineGroup) -> Iterator[Proposal]:
    """One thing changed at a time."""
    batches, virtual = group.num_micro_batches, group.virtual_stages
    if group.schedule in SCHEDULES:
        for factor in (2, 4, 8):
            yield (
                f"M = {factor * batches} instead of {batches}",
                _MICRO_BATCHES,
                Candidate(
                    schedule=group.schedule,
                    num_micro_batches=factor * batches,
                    virtual_stages=virtual,
                    keeps_stages=True,
                ),
            )
        yield (
            "equal stages",
            _LAYERS,
            Candidate(schedule=group.schedule, num_micro_batches=batches, virtual_stages=virtual),
        )
    for name in SCHEDULES:
        if name != group.schedule:
            yield _other_schedule(name, group)


def _other_schedule(name: str, group: PipelineGroup) -> Proposal:
    """Another schedule with the same micro-batches, and the same stages where they fit it."""
    schedule, present = SCHEDULES[name], SCHEDULES.get(group.schedule)
    virtual = group.virtual_stages
    same = schedule.fewest <= virtual and (schedule.most is None or virtual <= schedule.most)
    per_rank = virtual if same else schedule.fewest
    keeps = same and present is not None and schedule.goes_back == present.goes_back
    what = name if present is None else f"{name} instead of {group.schedule}"
    if not keeps:
        what += ", equal stages" if same else f", {per_rank} equal stages a rank"
    candidate = Candidate(
        schedule=name,
        num_micro_batches=group.num_micro_batches,
        virtual_stages=per_rank,
        keeps_stages=keeps,
    )
    return what, _SCHEDULE if same else _VIRTUAL, candidate


def _size(candidate: Candidate, group: PipelineGroup) -> int:
    per_rank = candidate.virtual_stages or 1
    return 3 * candidate.num_micro_batches * per_rank * len(group.ranks)


def _transfer_ns(observed: ObservedPipeline, orders: Orders) -> int:
    """Median time that an action waited for a message already sent, of those that waited."""
    lag = message_lag(observed, orders)
    waited = lag[lag > 0]
    return int(np.median(waited)) if waited.size else 0


def _stage_work(observed: ObservedPipeline) -> StageWork:
    """Mean per stage and micro-batch; a whole backward is taken for two equal halves."""
    batches = observed.orders.num_micro_batches
    whole = _per_stage(observed, SlotKind.BACKWARD) / batches
    inputs = _per_stage(observed, SlotKind.BACKWARD_INPUT) / batches
    weights = _per_stage(observed, SlotKind.BACKWARD_WEIGHT) / batches
    return StageWork(
        forward_ns=_ns(_per_stage(observed, SlotKind.FORWARD) / batches),
        backward_input_ns=_ns(inputs + whole / 2),
        backward_weight_ns=_ns(weights + whole / 2),
        num_micro_batches=batches,
    )


def _ns(values: NDArray[np.float64]) -> NDArray[np.int64]:
    return np.rint(values).astype(np.int64)


def _per_stage(observed: ObservedPipeline, kind: SlotKind) -> NDArray[np.float64]:
    """Work of a mean step in slots of one kind, per stage."""
    rows = observed.orders.kind == kind
    work = observed.work_ns[rows].mean(axis=1)
    total = np.bincount(observed.orders.stage[rows], work, minlength=observed.orders.num_stages)
    return total.astype(np.float64)
