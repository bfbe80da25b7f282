"""Pipelines of a run, from the slots of its ranks: members, schedule, stages and idle time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec
import numpy as np
from msgspec.structs import replace

from distprof.artefacts.record import grouped, shared_fields
from distprof.costs.known_schedules import SCHEDULES, orders
from distprof.costs.pipeline import Orders, bubble_fraction, in_flight_of, replay
from distprof.run.tables import runs_of
from distprof.schema import Bools
from distprof.sections.context import StageSlots
from distprof.sections.pipeline import PictureRow, PipelineGroup, StageDetail
from distprof.sections.pipeline.bubble import (
    IdleParts,
    ObservedPipeline,
    equal_stages,
    idle_parts,
    observe,
    predictions_of,
    spans,
    typical_message,
)
from distprof.sections.pipeline.slots import UNKNOWN_STAGE
from distprof.terms import Confidence, SlotKind
from distprof.units import fold_ranks

MAX_ROWS = 4_000
"""With more rows, only evenly spaced ranks are kept, including the first and the last."""


def picture_of(observed: ObservedPipeline, *, comparable: bool) -> tuple[PictureRow, ...]:
    """Slots of the step of median length, sorted by position of the rank and start."""
    length = observed.end_ns.max(axis=0) - observed.start_ns.min(axis=0)
    column = int(np.argsort(length, kind="stable")[(len(length) - 1) // 2])
    start, end = observed.start_ns[:, column], observed.end_ns[:, column]
    orders = observed.orders
    # positions of the ranks to draw
    count = np.bincount(observed.orders.rank)
    fits = max(1, int(MAX_ROWS // max(count.max(initial=1), 1)))
    places = np.linspace(0, len(count) - 1, min(fits, len(count)))
    rows = np.flatnonzero(np.isin(orders.rank, sorted({int(place) for place in np.rint(places)})))
    rows = rows[:MAX_ROWS]
    zero = np.full(len(observed.ranks), start.min())
    if not comparable:
        zero = np.minimum.reduceat(start, runs_of(orders.rank)[0])
    low, high = start - zero[orders.rank], end - zero[orders.rank]
    columns = (orders.rank, orders.stage, orders.kind, orders.micro_batch, low, high)
    return tuple(
        PictureRow(
            rank=observed.ranks[place],
            stage=stage,
            kind=SlotKind(kind).label,
            micro_batch=batch,
            start_ns=begins,
            end_ns=ends,
        )
        for place, stage, kind, batch, begins, ends in zip(
            *(column[rows].tolist() for column in columns), strict=True
        )
    )


# Pipelines ----------------------------------------------------------------------------------------

UNKNOWN_ORDER = "unknown order"
MAX_RECOGNISED = 50_000  # Pipelines with more actions are not compared with known orders
_CLOSED = ("gpipe", "1f1b", "interleaved-1f1b", "looped-bfs")


class PipelineSlots(msgspec.Struct, frozen=True, kw_only=True):
    """Slots of the ranks of one pipeline."""

    members: tuple[int, ...]  # Global ranks of the pipeline, in stage order if it is known.
    # By rank, times on the common clock; ranks without slots are missing.
    slots: Mapping[int, StageSlots]
    comparable: bool = True  # Whether times of different ranks can be compared.
    residual_ns: int = 0  # Uncertainty of a difference between times of two ranks.
    step_ns: int | None = None  # Mean training step; None if unknown.
    notes: tuple[str, ...] = ()  # Assumptions, one sentence each.


class _Pipeline(msgspec.Struct, frozen=True, kw_only=True):
    """An observed pipeline and its shape."""

    given: PipelineSlots
    observed: ObservedPipeline
    orders: Orders
    schedule: str
    virtual_stages: int
    is_whole: bool
    notes: list[str] = msgspec.field(default_factory=list)

    @property
    def num_ranks(self) -> int:
        return len(self.given.members)

    @property
    def num_stages(self) -> int:
        return self.num_ranks * self.virtual_stages

    @property
    def shape(self) -> tuple[object, ...]:
        """Key of the group: its pipelines have equal shapes."""
        return (self.schedule, self.num_ranks, self.virtual_stages, len(self.orders), self.is_whole)

    @property
    def span_ns(self) -> int:
        return int(spans(self.observed, comparable=self.given.comparable).mean())


def groups_of(pipelines: Iterable[PipelineSlots]) -> tuple[PipelineGroup, ...]:
    """One group per shape of pipeline; pipelines without a complete step are left out."""
    observed = [one for one in map(_observed, pipelines) if one is not None]
    by_shape = grouped([(one.shape, one) for one in observed])
    return tuple(_group(same_shape) for same_shape in by_shape.values())


def _observed(given: PipelineSlots) -> _Pipeline | None:
    """The pipeline with its shape and schedule; None if no step is complete."""
    slots = _in_order(given)
    observed = observe(slots)
    if observed is None:
        return None
    per_rank = [np.unique(part.stage).size for part in slots.values() if len(part)]
    virtual = max(per_rank)
    num_ranks = max(len(given.members), -(-(max(observed.stages) + 1) // virtual))
    whole = (
        len(observed.ranks) == num_ranks
        and observed.stages == tuple(range(num_ranks * virtual))
        and min(per_rank) == virtual
    )
    schedule, order = _recognised(observed, num_ranks, virtual, whole=whole)
    notes = list(given.notes)
    if not whole:
        missing = sorted({*range(num_ranks * virtual)} - {*observed.stages})
        notes.append(
            f"{len(observed.stages)} of the pipeline's {num_ranks * virtual} stages were recorded "
            f"(missing: {fold_ranks(missing)}): idle time covers only the recorded ranks, and its "
            "causes cannot be separated."
            if missing
            else "Ranks hold unequal numbers of stages: idle time cannot be split into causes."
        )
    if observed.num_left_out:
        notes.append(
            f"{observed.num_left_out} more steps had another order or were incomplete, "
            "and were left out."
        )
    if not given.comparable:
        notes.append(
            "Clocks of the ranks cannot be compared: the span is the longest span of a single "
            "rank, and waiting for messages cannot be separated from CPU time."
        )
    return _Pipeline(
        given=replace(given, members=_members(given, observed, num_ranks)),
        observed=observed,
        orders=order if order is not None and whole else observed.orders,
        schedule=schedule,
        virtual_stages=virtual,
        is_whole=whole,
        notes=notes,
    )


def _members(given: PipelineSlots, observed: ObservedPipeline, num_ranks: int) -> tuple[int, ...]:
    """Recorded ranks by position, then missing ones; -1 for each unknown rank."""
    if len(observed.ranks) == num_ranks:
        return observed.ranks
    missing = [rank for rank in given.members if rank not in observed.ranks]
    unknown = num_ranks - len(observed.ranks) - len(missing)
    return (*observed.ranks, *missing, *([-1] * max(unknown, 0)))


def _in_order(given: PipelineSlots) -> dict[int, StageSlots]:
    """Slots by position. If names lack the stage, it is the rank's place in the group."""
    staged = {
        rank: replace(part, stage=np.full_like(part.stage, place))
        if len(part) and (part.stage == UNKNOWN_STAGE).any()
        else part
        for place, rank in enumerate(given.members)
        if (part := given.slots.get(rank)) is not None and len(part)
    }
    return dict(sorted(staged.items(), key=lambda item: int(item[1].stage.min())))


def _recognised(
    observed: ObservedPipeline, num_ranks: int, virtual_stages: int, *, whole: bool
) -> tuple[str, Orders | None]:
    """The schedule with the observed order; several if missing ranks leave it ambiguous."""
    batches, batch = np.unique(observed.orders.micro_batch, return_inverse=True)
    actual = replace(observed.orders, micro_batch=batch.astype(np.int32))
    if num_ranks * virtual_stages * len(batches) > MAX_RECOGNISED:
        return UNKNOWN_ORDER, None
    matching: dict[str, Orders] = {}
    for name in SCHEDULES:
        try:
            order = orders(name, num_ranks, len(batches), virtual_stages)
        except ValueError:
            continue
        # every observed rank ran the actions of a rank of this order
        by_stages = {_key(order.actions(rank)) for rank in range(order.num_ranks)}
        if all(_key(actual.actions(rank)) in by_stages for rank in range(actual.num_ranks)):
            matching[name] = order
            if whole:
                return name, order if len(order) == len(actual) else None
    return " or ".join(matching) or UNKNOWN_ORDER, None


def _key(actions: Sequence[tuple[int, int, int]]) -> tuple[tuple[int, int, int], ...]:
    return tuple((stage, int(kind), batch) for stage, kind, batch in actions)


# Groups -------------------------------------------------------------------------------------------


def _group(pipelines: Sequence[_Pipeline]) -> PipelineGroup:
    """The pipeline of median span represents all pipelines of its shape."""
    chosen = sorted(pipelines, key=lambda pipeline: pipeline.span_ns)[(len(pipelines) - 1) // 2]
    observed, comparable = chosen.observed, chosen.given.comparable
    span = int(np.rint(spans(observed, comparable=comparable).mean()))
    busy = observed.busy_ns
    work = int(np.rint(busy.mean()))
    per_rank = busy.mean(axis=1)
    parts = _parts(chosen)
    slots = next(part for part in chosen.given.slots.values() if len(part))
    is_sure = all(part.is_sure for part in chosen.given.slots.values())
    limiting = _limiting(observed)
    group = PipelineGroup(
        schedule=chosen.schedule,
        ranks=observed.ranks,
        replicas=tuple(sorted(pipeline.observed.ranks for pipeline in pipelines)),
        stages=chosen.num_stages,
        virtual_stages=chosen.virtual_stages,
        num_micro_batches=observed.orders.num_micro_batches,
        source=slots.origin,
        confidence=Confidence.MEASURED if is_sure and comparable else Confidence.INFERRED,
        comparable_clocks=comparable,
        num_steps=len(observed.step),
        step_ns=chosen.given.step_ns,
        span_ns=span,
        work_ns=work,
        bubble_fraction=max(0.0, 1 - work / span) if span > 0 else None,
        imbalance_ratio=float(per_rank.max() / per_rank.mean()) if work > 0 else None,
        limiting_stage=limiting[0],
        limiting_rank=limiting[1],
        stages_detail=tuple(_stages(chosen, span)),
        picture=picture_of(observed, comparable=comparable),
        notes=tuple(dict.fromkeys(chosen.notes)),
    )
    return _with_parts(group, chosen, parts) if parts is not None else group


def _with_parts(group: PipelineGroup, chosen: _Pipeline, parts: IdleParts) -> PipelineGroup:
    from msgspec.structs import replace as with_fields

    span = group.span_ns or 0
    group = with_fields(
        group,
        **shared_fields(PipelineGroup, parts),
        model_error_ratio=parts.replayed_ns / span - 1 if span else None,
        message_ns=typical_message(chosen.observed, chosen.orders)
        if group.comparable_clocks
        else None,
        **_ideal(chosen),
    )
    predicted, error = predictions_of(chosen.observed, chosen.orders, group)
    return with_fields(group, predictions=predicted, prediction_error_ratio=error)


def _parts(chosen: _Pipeline) -> IdleParts | None:
    """Causes of the idle time; None if a stage is missing or no work was recorded."""
    if not chosen.is_whole or not chosen.observed.work_ns.any():
        return None
    try:
        return idle_parts(
            chosen.observed,
            chosen.orders,
            comparable=chosen.given.comparable,
            residual_ns=chosen.given.residual_ns,
        )
    except ValueError as error:
        chosen.notes.append(f"The order cannot be replayed: {error}.")
        return None


def _ideal(chosen: _Pipeline) -> dict[str, object]:
    """Bubble fraction with equal stages and free messages."""
    batches, ranks = chosen.orders.num_micro_batches, chosen.num_ranks
    fills = (
        chosen.virtual_stages == 1
        or batches % ranks == 0
        or (chosen.schedule == "looped-bfs" and batches >= ranks)
    )
    if chosen.schedule in _CLOSED and fills:
        fraction = bubble_fraction(ranks, batches, chosen.virtual_stages)
        return {"ideal_bubble_fraction": float(fraction), "ideal_source": "closed form"}
    equal = replay(chosen.orders, equal_stages(chosen.observed))
    fraction = float(np.mean(equal.bubble_fraction))
    return {"ideal_bubble_fraction": fraction, "ideal_source": "replay"}


def _limiting(observed: ObservedPipeline) -> tuple[int | None, int | None]:
    """The busiest rank, and its busiest stage."""
    per_rank = observed.busy_ns.mean(axis=1)
    if not per_rank.any():
        return None, None
    place = int(per_rank.argmax())
    mine = observed.orders.rank == place
    work = np.bincount(observed.orders.stage[mine], observed.work_ns[mine].mean(axis=1))
    return int(work.argmax()), observed.ranks[place]


def _stages(chosen: _Pipeline, span_ns: int) -> Iterator[StageDetail]:
    observed = chosen.observed
    orders_, busy = observed.orders, observed.busy_ns.mean(axis=1)
    in_flight = in_flight_of(orders_, by_stage=True)
    is_backward = orders_.kind != SlotKind.FORWARD
    for stage in observed.stages:
        rows = orders_.stage == stage
        place = int(orders_.rank[rows][0])
        idle = 1 - float(busy[place]) / span_ns if span_ns > 0 else None
        yield StageDetail(
            stage=stage,
            rank=observed.ranks[place],
            position=place,
            work_ns_per_step=int(observed.work_ns[rows].sum(axis=0).mean()),
            forward_ns=_each(observed, rows & (orders_.kind == SlotKind.FORWARD)),
            backward_ns=_each(observed, rows & is_backward),
            bubble_fraction=None if idle is None else min(max(idle, 0.0), 1.0),
            in_flight=int(in_flight[stage]) if (rows & is_backward).any() else None,
        )


def _each(observed: ObservedPipeline, rows: Bools) -> int | None:
    if not rows.any():
        return None
    batches = np.unique(observed.orders.micro_batch[rows]).size
    return int(observed.work_ns[rows].sum(axis=0).mean() / batches)
