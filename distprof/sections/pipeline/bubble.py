"""The bubble of one pipeline, its causes, and predictions for other configurations.

Repeated replays of the observed order split the idle time. Each restores one more effect:

1. equal stages: the cost of the order itself, warm-up and drain;
2. each stage with its own mean durations: stage imbalance;
3. each action with its own duration: variation between micro-batches;
4. the wait of each action for its message after it had been sent: exposed messages;
5. as measured: late launches and stalls inside slots.

The difference between the spans of two successive replays is one part of the idle time. The parts
add up to the idle time exactly.

Predictions use the durations measured on this hardware. The prediction for the present
configuration is compared with the measurement, and the others are corrected by the same ratio.

Source:
    Formula sheet, "Pipeline bubble": 1 - work / span of the group, with waits counted as idle.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from distprof.artefacts.record import made_from
from distprof.costs.known_schedules import SCHEDULES
from distprof.costs.pipeline import Orders, as_ns, orders_from, replay
from distprof.costs.prediction import Candidate, Prediction, StageWork, predict
from distprof.run.tables import numbers_in, runs_of
from distprof.schema import ABSENT, Floats, Int64Array
from distprof.sections.context import StageSlots
from distprof.sections.pipeline import PipelineGroup, PipelinePrediction
from distprof.terms import SlotKind

_GRADIENTS = (SlotKind.BACKWARD, SlotKind.BACKWARD_INPUT)
_NEVER = np.iinfo(np.int64).min // 2


class IdleParts(msgspec.Struct, frozen=True, kw_only=True):
    """Mean idle time per step in ns; parts add up to ``idle_ns``."""

    idle_ns: int
    warm_up_drain_ns: int
    imbalance_ns: int
    variation_ns: int
    exposed_p2p_ns: int
    host_ns: int
    replayed_ns: int  # Mean span of the replay without messages and CPU delays.


def spans(observed: ObservedPipeline, *, comparable: bool) -> Int64Array:
    """Span of each step, from the first work to the last, shape ``(k,)``.

    If clocks cannot be compared, it is the longest span of a single rank. For orders that begin and
    end on the same rank, this is the span of the whole pipeline.
    """
    if comparable:
        whole: Int64Array = observed.end_ns.max(axis=0) - observed.start_ns.min(axis=0)
        return whole
    longest: Int64Array = observed.own_span_ns.max(axis=0)
    return longest


def idle_parts(
    observed: ObservedPipeline, orders: Orders, *, comparable: bool, residual_ns: int = 0
) -> IdleParts:
    """Split the idle time of a whole pipeline into causes.

    If times of different ranks are not ``comparable``, waiting for messages and for the CPU cannot
    be separated: all of it counts as CPU and other. Message waits shorter than ``residual_ns``, the
    uncertainty between clocks of different ranks, do not count. An order in which an action waits
    for itself is a ValueError.
    """
    work, k = observed.work_ns, observed.work_ns.shape[1]
    own = stage_means(observed)
    lag = message_lag(observed, orders, residual_ns) if comparable else np.zeros_like(work)
    sets = np.concatenate((equal_stages(observed), own, work, work + lag), axis=1)
    replayed = np.asarray(replay(orders, sets).makespan_ns).reshape(4, k)
    busy = np.rint(observed.busy_ns.mean(axis=0)).astype(np.int64)
    levels = np.concatenate((busy[None], replayed, spans(observed, comparable=comparable)[None]))
    # A replay with fewer effects may be slightly longer. The effect then costs nothing. No effect
    # costs more than the measured idle time.
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
    """Work of each action, ``(n, k)``, replaced by the mean of its kind over all stages."""
    return _means(observed.work_ns, observed.orders.kind.astype(np.int64))


def stage_means(observed: ObservedPipeline) -> Int64Array:
    """Work of each action, ``(n, k)``, replaced by the mean of its kind on its stage."""
    key = observed.orders.stage.astype(np.int64) * len(SlotKind) + observed.orders.kind
    return _means(observed.work_ns, key)


def _means(work: Int64Array, key: Int64Array) -> Int64Array:
    """Each row replaced by the mean of the rows with its key."""
    _, group, count = np.unique(key, return_inverse=True, return_counts=True)
    total = np.zeros((len(count), work.shape[1]), np.float64)
    np.add.at(total, group, work)
    return np.rint(total / count[:, None]).astype(np.int64)[group]


def message_lag(observed: ObservedPipeline, orders: Orders, residual_ns: int = 0) -> Int64Array:
    """Wait of each action for its input after another rank had produced it, ``(n, k)``.

    If the trace has no waits, all time until the action starts counts as its message's, provided
    that the message was sent after the rank's previous action. Lags of at most ``residual_ns``
    count as 0. An overlapping pair sends when both actions have ended, and its second action waits
    only for messages sent after the first one ended.
    """
    start, sent = observed.start_ns, observed.end_ns
    if orders.overlaps.any():
        sent = sent.copy()
        first = np.flatnonzero(orders.overlaps[:-1])
        sent[first] = np.maximum(sent[first], sent[first + 1])
    # for each action, the action of the neighbouring stage that it needs; -1 if none
    batch = orders.micro_batch.astype(np.int64)
    width = int(batch.max(initial=0)) + 1
    key = (orders.stage.astype(np.int64) + 1) * width + batch
    producer = np.full(len(orders), -1, np.int64)
    for kinds, shift in (((SlotKind.FORWARD,), -1), (_GRADIENTS, 1)):
        rows = np.flatnonzero(np.isin(orders.kind, kinds))
        producer[rows] = _rows_with_key(key, rows, key[rows] + shift * width)
    is_remote = (producer >= 0) & (orders.rank[np.maximum(producer, 0)] != orders.rank)
    produced = np.where(is_remote[:, None], sent[np.maximum(producer, 0)], _NEVER)
    before = np.full_like(start, _NEVER)
    follows = np.flatnonzero(orders.rank[1:] == orders.rank[:-1]) + 1
    before[follows] = observed.end_ns[follows - 1]
    second = np.concatenate(([False], orders.overlaps[:-1]))
    is_remote &= ~second | (produced > before).any(axis=1)
    ready = np.maximum(produced, before)
    arrived = start
    if observed.wait_end_ns is not None:
        arrived = np.where(observed.wait_end_ns == ABSENT, _NEVER, observed.wait_end_ns)
    elif is_remote.any():
        arrived = np.where(produced >= before, start, _NEVER)
    lag = np.maximum(np.minimum(arrived, start) - ready, 0)
    return np.where(is_remote[:, None] & (lag > residual_ns), lag, 0)


def _rows_with_key(key: Int64Array, rows: NDArray[np.intp], wanted: Int64Array) -> Int64Array:
    """The row among ``rows`` with each wanted key; -1 if none."""
    if not len(rows):
        return np.empty(0, np.int64)
    by_key = rows[np.argsort(key[rows], kind="stable")]
    at = np.minimum(np.searchsorted(key[by_key], wanted), len(by_key) - 1)
    return np.where(key[by_key[at]] == wanted, by_key[at], -1)


# Other micro-batches, schedules, stages per rank and splits ---------------------------------------

MAX_PREDICTIONS = 12
MAX_ACTIONS = 40_000  # Configurations with more actions are not replayed
_MICRO_BATCHES, _SCHEDULE = "micro-batches", "schedule"
_VIRTUAL, _LAYERS = "virtual-stages", "layer-split"
Proposal = tuple[str, str, Candidate]


def predictions_of(
    observed: ObservedPipeline, orders: Orders, group: PipelineGroup
) -> tuple[tuple[PipelinePrediction, ...], float | None]:
    """Other configurations, shortest first, and the model's error on the present one."""
    span = group.span_ns or 0
    transfer = group.message_ns or 0
    present = np.asarray(replay(orders, stage_means(observed), transfer_ns=transfer).makespan_ns)
    modelled = float(present.mean())
    if span <= 0 or modelled <= 0:
        return (), None
    proposals = [part for part in _proposals(group) if _size(part[2], group) <= MAX_ACTIONS]
    outside = max((group.step_ns or span) - span, 0)
    batches = observed.orders.num_micro_batches
    # A whole backward counts as two equal halves.
    whole = _per_stage(observed, SlotKind.BACKWARD) / batches
    inputs = _per_stage(observed, SlotKind.BACKWARD_INPUT) / batches
    weights = _per_stage(observed, SlotKind.BACKWARD_WEIGHT) / batches
    work = StageWork(
        forward_ns=as_ns(_per_stage(observed, SlotKind.FORWARD) / batches),
        backward_input_ns=as_ns(inputs + whole / 2),
        backward_weight_ns=as_ns(weights + whole / 2),
        num_micro_batches=batches,
    )
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
    return made_from(
        made,
        PipelinePrediction,
        what=what,
        change=change,
        bubble_fraction=max(0.0, 1 - useful / makespan) if makespan else 0.0,
        step_ns=makespan + outside_ns,
        saved_ns=span_ns - makespan,
    )


def _proposals(group: PipelineGroup) -> Iterator[Proposal]:
    """Configurations that differ from the present one in one respect."""
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
    """Another schedule with the same micro-batches, and the same stages if they fit it."""
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
    """Median wait for a message already sent, over the actions that waited."""
    lag = message_lag(observed, orders)
    waited = lag[lag > 0]
    return int(np.median(waited)) if waited.size else 0


def _per_stage(observed: ObservedPipeline, kind: SlotKind) -> Floats:
    """Work of a mean step in slots of one kind, per stage."""
    rows = observed.orders.kind == kind
    work = observed.work_ns[rows].mean(axis=1)
    total = np.bincount(observed.orders.stage[rows], work, minlength=observed.orders.num_stages)
    return total.astype(np.float64)


# The pipeline -------------------------------------------------------------------------------------


class ObservedPipeline(msgspec.Struct, frozen=True, kw_only=True):
    """The n actions of one pipeline, in k steps of the same order."""

    ranks: tuple[int, ...]  # Global ranks by position, without missing ones.
    orders: Orders  # Actions of the ranks in their order.
    start_ns: Int64Array  # Shape ``(n, k)``, on the common clock if there is one.
    end_ns: Int64Array  # Shape ``(n, k)``, likewise.
    work_ns: Int64Array  # Shape ``(n, k)``, computation inside the slot.
    # Shape ``(n, k)``, end of the last wait for a message before the slot, ABSENT without a wait;
    # None if waits are unknown.
    wait_end_ns: Int64Array | None
    step: Int64Array  # Shape ``(k,)``, index of the step of each column.
    num_left_out: int = 0  # Number of steps in another order, or incomplete.

    @property
    def stages(self) -> tuple[int, ...]:
        """Stages with at least one action, ascending."""
        return tuple(np.unique(self.orders.stage).tolist())

    @property
    def busy_ns(self) -> Int64Array:
        """Work per position and step, shape ``(ranks, k)``."""
        busy = np.zeros((len(self.ranks), self.work_ns.shape[1]), np.int64)
        np.add.at(busy, self.orders.rank, self.work_ns)
        return busy

    @property
    def own_span_ns(self) -> Int64Array:
        """From a rank's first start to its last end, shape ``(ranks, k)``."""
        first, _ = runs_of(self.orders.rank)
        low = np.minimum.reduceat(self.start_ns, first, axis=0)
        high = np.maximum.reduceat(self.end_ns, first, axis=0)
        return high - low


class _Merged(msgspec.Struct, frozen=True, kw_only=True):
    """One rank's slots by step and start, one row per action; losses are part of forwards."""

    step: Int64Array
    round: Int64Array
    action: Int64Array  # columns stage, kind, micro-batch
    start_ns: Int64Array
    end_ns: Int64Array
    work_ns: Int64Array
    wait_end_ns: Int64Array

    @property
    def units(self) -> dict[tuple[int, int], slice]:
        """Rows of each step and round."""
        begins, lengths = runs_of(self.step, self.round)
        columns = (self.step[begins], self.round[begins], begins, begins + lengths)
        units = zip(*(column.tolist() for column in columns), strict=True)
        return {(step, again): slice(low, high) for step, again, low, high in units}


def observe(slots: Mapping[int, StageSlots]) -> ObservedPipeline | None:
    """Combine the slots of a pipeline's ranks; None if no step has slots of all of them."""
    merged = {rank: _merge(part) for rank, part in slots.items() if len(part)}
    if not merged:
        return None
    units = {rank: part.units for rank, part in merged.items()}
    everywhere = set.intersection(*(set(part) for part in units.values()))
    orders = {
        unit: tuple(merged[rank].action[units[rank][unit]].tobytes() for rank in merged)
        for unit in sorted(everywhere)
    }
    if not orders:
        return None
    usual, _ = Counter(orders.values()).most_common(1)[0]
    chosen = [unit for unit, order in orders.items() if order == usual]
    every = set.union(*(set(part) for part in units.values()))
    rows = [[units[rank][unit] for unit in chosen] for rank in merged]
    parts = list(merged.values())
    knows_waits = all(part.wait_end_ns is not None for part in slots.values())
    return ObservedPipeline(
        ranks=tuple(merged),
        orders=orders_from([part.action[mine[0]] for part, mine in zip(parts, rows, strict=True)]),
        start_ns=_columns([part.start_ns for part in parts], rows),
        end_ns=_columns([part.end_ns for part in parts], rows),
        work_ns=_columns([part.work_ns for part in parts], rows),
        wait_end_ns=_columns([part.wait_end_ns for part in parts], rows) if knows_waits else None,
        step=np.array([unit[0] for unit in chosen], np.int64),
        num_left_out=len(every) - len(chosen),
    )


def _columns(values: Sequence[Int64Array], rows: Sequence[Sequence[slice]]) -> Int64Array:
    """Values as ``(n, k)``: the actions of all ranks in rows, the steps in columns."""
    return np.concatenate(
        [
            np.stack([part[unit] for unit in mine], axis=1)
            for part, mine in zip(values, rows, strict=True)
        ]
    )


def _merge(slots: StageSlots) -> _Merged:
    """Slots sorted by step and start, with the pieces of one action merged."""
    wait = slots.wait_end_ns
    again = numbers_in(slots.step, slots.stage, slots.micro_batch, slots.kind)
    kind = np.where(slots.kind == SlotKind.LOSS, SlotKind.FORWARD, slots.kind)
    keys = (slots.step, again, slots.stage, kind, slots.micro_batch)
    order = np.lexsort((slots.start_ns, *reversed(keys)))
    first, _ = runs_of(*(key[order] for key in keys))
    start = np.minimum.reduceat(slots.start_ns[order], first)
    action = np.stack([key[order][first] for key in keys[2:]], axis=1).astype(np.int64)
    by_start = np.lexsort((start, again[order][first], slots.step[order][first]))
    waits = np.full(len(slots), ABSENT, np.int64) if wait is None else wait
    return _Merged(
        step=slots.step[order][first][by_start],
        round=again[order][first][by_start],
        action=np.ascontiguousarray(action[by_start]),
        start_ns=start[by_start],
        end_ns=np.maximum.reduceat(slots.end_ns[order], first)[by_start],
        work_ns=np.add.reduceat(slots.work_ns[order], first)[by_start],
        wait_end_ns=waits[order][first][by_start],
    )
