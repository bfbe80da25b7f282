"""The bubble of one pipeline, what it is made of, and what other configurations would make of it.

Repeated replays of the observed order split the idle time. Each restores one more effect:

1. equal stages: what the order itself costs, warm-up and drain; 2. each stage with its own mean
durations: stage imbalance; 3. each action with its own duration: variation between micro-batches;
4. what each action waited for its message after that had been sent: exposed messages; 5. as
measured: late launches and stalls inside slots.

Each replay's span less the one before is a part; parts add up to the idle, exactly.

Predictions take the durations measured on this hardware. The prediction of the present
configuration is compared with what was measured; the others are corrected by the same ratio.

Source:
    Formula sheet, "Pipeline bubble": 1 - work / span of the group, with waits counted as idle.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np
from numpy.typing import NDArray

from distprof.costs.actions import Orders
from distprof.costs.known_schedules import SCHEDULES
from distprof.costs.order_replay import replay
from distprof.costs.prediction import Candidate, Prediction, StageWork, predict
from distprof.schema import ABSENT, Int64Array
from distprof.sections.pipeline.observed import ObservedPipeline
from distprof.sections.pipeline.result import PipelineGroup, PipelinePrediction
from distprof.terms import SlotKind

__all__ = [
    "MAX_PREDICTIONS",
    "IdleParts",
    "equal_stages",
    "idle_parts",
    "message_lag",
    "predictions_of",
    "spans",
    "stage_means",
    "typical_message",
]

_GRADIENTS = (SlotKind.BACKWARD, SlotKind.BACKWARD_INPUT)

_NEVER = np.iinfo(np.int64).min // 2


class IdleParts(msgspec.Struct, frozen=True, kw_only=True):
    """Mean idle of a step in ns; parts add up to ``idle_ns``.

    Args:
        replayed_ns: Mean span of the replay without messages and host.
    """

    idle_ns: int
    warm_up_drain_ns: int
    imbalance_ns: int
    variation_ns: int
    exposed_p2p_ns: int
    host_ns: int
    replayed_ns: int


def spans(observed: ObservedPipeline, *, comparable: bool) -> Int64Array:
    """Span of each step, from the first work to the last, shape ``(k,)``.

    Where clocks cannot be compared it is the longest of a rank's own, which is that of the whole
    pipeline for orders that begin and end on the same rank.
    """
    if comparable:
        whole: Int64Array = observed.end_ns.max(axis=0) - observed.start_ns.min(axis=0)
        return whole
    longest: Int64Array = observed.own_span_ns.max(axis=0)
    return longest


def idle_parts(
    observed: ObservedPipeline, orders: Orders, *, comparable: bool, residual_ns: int = 0
) -> IdleParts:
    """What the idle of a whole pipeline is made of.

    Args:
        observed: With all stages.
        orders: Its order, under the name of its schedule.
        comparable: Whether times of different ranks can be compared. If not, waiting for messages
            and for the CPU cannot be separated: all of it counts as CPU and other.
        residual_ns: Uncertainty of times of different ranks: no message is blamed for less.

    Raises:
        ValueError: If the order is none: an action waits for itself.
    """
    work, k = observed.work_ns, observed.work_ns.shape[1]
    own = stage_means(observed)
    lag = message_lag(observed, orders, residual_ns) if comparable else np.zeros_like(work)
    sets = np.concatenate((equal_stages(observed), own, work, work + lag), axis=1)
    replayed = np.asarray(replay(orders, sets).makespan_ns).reshape(4, k)
    busy = np.rint(observed.busy_ns.mean(axis=0)).astype(np.int64)
    levels = np.concatenate((busy[None], replayed, spans(observed, comparable=comparable)[None]))
    # A replay with fewer effects may be a little longer: the effect then costs nothing, and never
    # more than there is.
    levels = np.minimum(np.maximum.accumulate(levels, axis=0), levels[-1])
    mean = np.rint(levels.mean(axis=1)).astype(np.int64)
    parts = np.diff(mean).tolist()
    return IdleParts(
        idle_ns=int(mean[-1] - mean[0]),
        warm_up_drain_ns=parts[0],
        imbalance_ns=parts[1],
        variation_ns=parts[2],
        exposed_p2p_ns=parts[3],
        host_ns=parts[4],
        replayed_ns=int(np.rint(replayed[2].mean())),
    )


def equal_stages(observed: ObservedPipeline) -> Int64Array:
    """Work of each action, ``(n, k)``, as the mean of its kind over all stages."""
    return _means(observed.work_ns, observed.orders.kind.astype(np.int64))


def stage_means(observed: ObservedPipeline) -> Int64Array:
    """Work of each action, ``(n, k)``, as the mean of its kind on its stage."""
    key = observed.orders.stage.astype(np.int64) * len(SlotKind) + observed.orders.kind
    return _means(observed.work_ns, key)


def _means(work: Int64Array, key: Int64Array) -> Int64Array:
    """Each row as the mean of the rows of its key."""
    _, group, count = np.unique(key, return_inverse=True, return_counts=True)
    total = np.zeros((len(count), work.shape[1]), np.float64)
    np.add.at(total, group, work)
    mean: Int64Array = np.rint(total / count[:, None]).astype(np.int64)[group]
    return mean


def message_lag(observed: ObservedPipeline, orders: Orders, residual_ns: int = 0) -> Int64Array:
    """How long each action waited for its input after that had been made elsewhere, ``(n, k)``.

    Where the trace has no waits, all of the time until the action starts is taken for its
    message's, if the message was what it waited for. Lags of at most ``residual_ns`` count as 0.
    A pair that overlaps sends when both have ended; its second waits only for what was sent later
    than the first ended.
    """
    start, sent = observed.start_ns, observed.end_ns
    if orders.overlaps.any():
        sent = sent.copy()
        first = np.flatnonzero(orders.overlaps[:-1])
        sent[first] = np.maximum(sent[first], sent[first + 1])
    producer = _producers(orders)
    away = (producer >= 0) & (orders.rank[np.maximum(producer, 0)] != orders.rank)
    made = np.where(away[:, None], sent[np.maximum(producer, 0)], _NEVER)
    before = np.full_like(start, _NEVER)
    follows = np.flatnonzero(orders.rank[1:] == orders.rank[:-1]) + 1
    before[follows] = observed.end_ns[follows - 1]
    second = np.concatenate(([False], orders.overlaps[:-1]))
    away &= ~second | (made > before).any(axis=1)
    ready = np.maximum(made, before)
    there = start
    if observed.wait_end_ns is not None:
        there = np.where(observed.wait_end_ns == ABSENT, _NEVER, observed.wait_end_ns)
    elif away.any():
        there = np.where(made >= before, start, _NEVER)
    lag = np.maximum(np.minimum(there, start) - ready, 0)
    waits: Int64Array = np.where(away[:, None] & (lag > residual_ns), lag, 0)
    return waits


def _producers(orders: Orders) -> Int64Array:
    """For each action the one of the neighbouring stage that it needs; -1 without one."""
    batch = orders.micro_batch.astype(np.int64)
    width = int(batch.max(initial=0)) + 1
    key = (orders.stage.astype(np.int64) + 1) * width + batch
    result = np.full(len(orders), -1, np.int64)
    for kinds, shift in (((SlotKind.FORWARD,), -1), (_GRADIENTS, 1)):
        rows = np.flatnonzero(np.isin(orders.kind, kinds))
        result[rows] = _looked_up(key, rows, key[rows] + shift * width)
    return result


def _looked_up(key: Int64Array, rows: NDArray[np.intp], wanted: Int64Array) -> Int64Array:
    """The row among ``rows`` that has each wanted key; -1 without one."""
    if not len(rows):
        return np.empty(0, np.int64)
    by_key = rows[np.argsort(key[rows], kind="stable")]
    at = np.minimum(np.searchsorted(key[by_key], wanted), len(by_key) - 1)
    found: Int64Array = np.where(key[by_key[at]] == wanted, by_key[at], -1)
    return found


# Other micro-batches, schedules, stages per rank and splits ---------------------------------------

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
    transfer = group.message_ns or 0
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
        what += ", equal stages" if same else f", {per_rank} equal stages per rank"
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


def typical_message(observed: ObservedPipeline, orders: Orders) -> int:
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
