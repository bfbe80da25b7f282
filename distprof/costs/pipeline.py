"""Pipelines: bubbles in closed form, the order of actions on each rank, and its replay.

Source of every formula here: formula sheet, "Pipeline bubble". The closed forms assume equal stages
and messages that take no time. P is the number of ranks of the pipeline, M that of micro-batches
per step, V that of stages per rank; each is 1 or more, or a ValueError says so.

In a replay, an action starts when its rank has finished the previous one and its inputs are there:

- a forward needs the forward of the previous stage, and a loss its stage's forward,
- a backward, or its input part, needs the forward (and loss) of its stage, and the gradient of the
  next stage,
- a weight part needs the input part of its stage.

The outputs of a pair are sent when both parts have ended, as in torch. Inputs from actions that are
missing, because a rank was not observed, are available from the start.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from distprof.replay import Graph, simulate
from distprof.schema import Bools, Int64Array
from distprof.terms import SlotKind


def bubble_fraction(
    num_stages: float, num_micro_batches: float, virtual_stages: float = 1
) -> float:
    """Idle over total time, 0 to 1: (P - 1) / (V · M + P - 1).

    Holds for GPipe and 1F1B (V = 1), and with at least as many micro-batches as ranks for
    interleaved 1F1B and looped breadth-first pipelines.
    """
    _check_counts(num_stages, num_micro_batches, virtual_stages)
    idle = num_stages - 1
    return idle / (virtual_stages * num_micro_batches + idle)


def bubble_overhead(
    num_stages: float, num_micro_batches: float, virtual_stages: float = 1
) -> float:
    """Idle over useful time: (P - 1) / (V · M), which is larger than the bubble fraction."""
    _check_counts(num_stages, num_micro_batches, virtual_stages)
    return (num_stages - 1) / (virtual_stages * num_micro_batches)


def _check_counts(*counts: float) -> None:
    if not all(count >= 1 for count in counts):
        raise ValueError(f"a pipeline has at least one stage and micro-batch, not {counts}")


class Action(NamedTuple):
    """One slot: the work of a stage on a micro-batch."""

    stage: int
    kind: SlotKind
    micro_batch: int

    def __str__(self) -> str:
        """The action in torch's notation, for example ``1F3``, ``0I2``, ``2W7``."""
        return f"{self.stage}{'FBIWLO'[self.kind]}{self.micro_batch}"


class Orders(msgspec.Struct, frozen=True, kw_only=True):
    """Actions of all ranks of one pipeline and step, rank by rank, in the order of each rank."""

    schedule: str  # Source of the order.
    num_ranks: int  # Ranks of the pipeline.
    rank: NDArray[np.int32]  # int32 per action, index in the pipeline's group from 0, ascending.
    stage: NDArray[np.int32]  # int32, from 0 over the whole pipeline.
    kind: NDArray[np.int8]  # int8, a SlotKind.
    micro_batch: NDArray[np.int32]  # int32, from 0.
    # bool, whether the schedule runs it concurrently with the rank's next action (DualPipe's pairs
    # of a forward and a backward).
    overlaps: Bools

    def __len__(self) -> int:
        return len(self.stage)

    @property
    def num_stages(self) -> int:
        """One more than the last stage with an action."""
        return int(self.stage.max()) + 1 if len(self) else 0

    @property
    def num_micro_batches(self) -> int:
        """Number of distinct micro-batches."""
        return len(np.unique(self.micro_batch))

    def actions(self, rank: int) -> tuple[Action, ...]:
        """Actions of one rank, in order."""
        rows = np.flatnonzero(self.rank == rank)
        columns = (self.stage[rows], self.kind[rows], self.micro_batch[rows])
        return tuple(
            Action(stage, SlotKind(kind), batch)
            for stage, kind, batch in zip(*(part.tolist() for part in columns), strict=True)
        )


def orders_from(
    ranks: Sequence[Iterable[tuple[int, int, int]] | NDArray[Any]],
    *,
    schedule: str = "observed",
    overlaps: Sequence[Sequence[bool]] | None = None,
) -> Orders:
    """Build :class:`Orders` from the actions of each rank, in order of start.

    A rank is any iterable of (stage, kind, micro-batch), or an integer array of shape (n, 3).
    ``overlaps`` are flags per rank and action; None if nothing overlaps.
    """
    parts = [
        np.asarray(rank if isinstance(rank, np.ndarray) else list(rank), np.int64).reshape(-1, 3)
        for rank in ranks
    ]
    rows = np.concatenate(parts) if parts else np.empty((0, 3), np.int64)
    pairs = [] if overlaps is None else [flag for rank in overlaps for flag in rank]
    return Orders(
        schedule=schedule,
        num_ranks=len(parts),
        rank=np.repeat(np.arange(len(parts)), [len(part) for part in parts]).astype(np.int32),
        stage=rows[:, 0].astype(np.int32),
        kind=rows[:, 1].astype(np.int8),
        micro_batch=rows[:, 2].astype(np.int32),
        overlaps=np.array(pairs, np.bool_) if pairs else np.zeros(len(rows), np.bool_),
    )


def in_flight_of(orders: Orders, *, by_stage: bool = False) -> Int64Array:
    """The largest number of activations held at once, each of one stage and micro-batch.

    An activation is held from the start of a forward to the end of its backward, or of the weight
    part if the backward is split. Counted per rank, shape (ranks,), or ``by_stage``, shape
    (stages,).
    """
    key = orders.stage if by_stage else orders.rank
    change = np.zeros(len(orders), np.int64)
    change[orders.kind == SlotKind.FORWARD] = 1
    change[np.isin(orders.kind, (SlotKind.BACKWARD, SlotKind.BACKWARD_WEIGHT))] = -1
    order = np.argsort(key, kind="stable")
    held = np.cumsum(change[order])
    size = orders.num_stages if by_stage else orders.num_ranks
    first = np.searchsorted(key[order], np.arange(size + 1))
    before = np.concatenate((np.zeros(1, np.int64), held))[first[:-1]]
    peak = np.zeros(size, np.int64)
    some = np.flatnonzero(np.diff(first))
    if len(some):
        peak[some] = np.maximum.reduceat(held, first[:-1][some]) - before[some]
    return np.maximum(peak, 0)


Durations = Mapping[SlotKind, ArrayLike]
_GRADIENT = (SlotKind.BACKWARD, SlotKind.BACKWARD_INPUT)


class Replay(msgspec.Struct, frozen=True, kw_only=True):
    """Start and end times of a pipeline's actions; the first action starts at 0."""

    orders: Orders  # The replayed actions.
    # Per action, int64, shape ``(n,)``, or ``(n, k)`` for k sets of durations.
    start_ns: Int64Array
    end_ns: Int64Array  # In the same form.
    busy_ns: Int64Array  # Busy time per rank, shape ``(ranks,)`` or ``(ranks, k)``.

    @property
    def makespan_ns(self) -> Any:
        """Time from the first start to the last end; one number per set of durations."""
        if not len(self.orders):
            return np.zeros(self.end_ns.shape[1:], np.int64)[()]
        return self.end_ns.max(axis=0)

    @property
    def idle_ns(self) -> Int64Array:
        """Idle time per rank within the makespan."""
        idle: Int64Array = self.makespan_ns - self.busy_ns
        return idle

    @property
    def bubble_fraction(self) -> Any:
        """Idle over total time of all ranks; 0 if nothing takes time."""
        total = np.maximum(self.makespan_ns * np.float64(self.orders.num_ranks), 1)
        return (self.idle_ns.sum(axis=0) / total)[()]

    @property
    def in_flight(self) -> Int64Array:
        """Per rank: the largest number of activations held at once."""
        return in_flight_of(self.orders)


def replay(
    orders: Orders, durations: Durations | NDArray[Any], *, transfer_ns: ArrayLike = 0
) -> Replay:
    """Compute start and end of every action if each starts as early as its inputs and rank allow.

    Args:
        orders: Actions of each rank, in order.
        durations: By kind: ns, one number for all stages or one per stage. ``BACKWARD`` may be left
            out if both its parts are given, ``LOSS`` is 0 unless given, and with ``OVERLAPPED``,
            pairs run at once for that time. Or an array with the duration of each action, shape
            ``(n,)`` or ``(n, k)``.
        transfer_ns: Time from the end of an action to the arrival of its output on another rank;
            one number or one per boundary between stages, shape ``(stages - 1,)``.

    Raises:
        ValueError: If a kind has no duration, a stage works twice on one micro-batch, or actions
            wait for each other (CycleError).
    """
    length, merged = _lengths(orders, durations), np.zeros(len(orders), np.bool_)
    if not isinstance(durations, np.ndarray) and SlotKind.OVERLAPPED in durations:
        # a pair is one operation of the given duration; other actions are one each
        merged = orders.overlaps
        length = np.where(merged, _by_stage(orders, durations[SlotKind.OVERLAPPED]), length)
    second = np.zeros_like(merged)
    second[1:] = merged[:-1]
    first = np.flatnonzero(~second)
    operation = np.cumsum(~second) - 1
    length = length[first]
    source, target, boundary = _edges(orders)
    outer = operation[source] != operation[target]
    graph = Graph.of(len(first), operation[source[outer]], operation[target[outer]])
    times = simulate(graph, length, delay=_delay(orders, boundary[outer], transfer_ns))
    busy = np.zeros((orders.num_ranks, *length.shape[1:]), np.int64)
    np.add.at(busy, orders.rank[first], length)
    return Replay(
        orders=orders, start_ns=times.start[operation], end_ns=times.end[operation], busy_ns=busy
    )


def _lengths(orders: Orders, durations: Durations | NDArray[Any]) -> Int64Array:
    """Duration of each action by itself."""
    if isinstance(durations, np.ndarray):
        if len(durations) != len(orders):
            raise ValueError(f"{len(durations)} durations for {len(orders)} actions")
        return as_ns(durations)
    given = {SlotKind.LOSS: 0, **durations}
    parts = [given.get(kind) for kind in (SlotKind.BACKWARD_INPUT, SlotKind.BACKWARD_WEIGHT)]
    if SlotKind.BACKWARD not in given and parts[0] is not None and parts[1] is not None:
        given[SlotKind.BACKWARD] = np.add(parts[0], parts[1])
    length = np.zeros(len(orders), np.int64)
    for kind in map(SlotKind, np.unique(orders.kind).tolist()):
        if kind not in given:
            raise ValueError(f"no duration of {kind.label} actions is given")
        rows = orders.kind == kind
        length[rows] = _by_stage(orders, given[kind])[rows]
    return length


def as_ns(values: ArrayLike) -> Int64Array:
    """Times as whole ns."""
    return np.rint(values).astype(np.int64)


def _by_stage(orders: Orders, values: ArrayLike) -> Int64Array:
    """One value per action, from one number or one per stage."""
    ns = as_ns(values)
    if ns.ndim == 0:
        return np.full(len(orders), ns)
    if len(ns) < orders.num_stages:
        raise ValueError(f"{len(ns)} durations for {orders.num_stages} stages")
    return ns[orders.stage]


def _delay(orders: Orders, boundary: Int64Array, transfer_ns: ArrayLike) -> Int64Array | None:
    """Delay per edge; ``boundary`` is the stage before it, or -1 within a rank."""
    transfer = as_ns(transfer_ns)
    if not transfer.any():
        return None
    if transfer.ndim and len(transfer) < orders.num_stages - 1:
        raise ValueError(f"{len(transfer)} transfer times for {orders.num_stages - 1} boundaries")
    crosses = boundary >= 0
    delay = np.zeros(len(boundary), np.int64)
    delay[crosses] = transfer[boundary[crosses]] if transfer.ndim else transfer
    return delay


def _edges(orders: Orders) -> tuple[Int64Array, Int64Array, Int64Array]:
    """Dependencies: sources, targets, and the stage boundary that each crosses."""
    row = np.arange(len(orders))
    same = row[1:][orders.rank[1:] == orders.rank[:-1]]
    places = _Places(orders)
    forward, loss = (SlotKind.FORWARD,), (SlotKind.LOSS,)
    found = [
        (same - 1, same),
        places.join(forward, forward, -1),
        places.join(_GRADIENT, _GRADIENT, 1),
        places.join(forward, loss, 0),
        places.join(forward, _GRADIENT, 0),
        places.join(loss, _GRADIENT, 0),
        places.join(_GRADIENT, (SlotKind.BACKWARD_WEIGHT,), 0),
    ]
    source, target = (np.concatenate([pair[side] for pair in found]) for side in (0, 1))
    crosses = orders.rank[source] != orders.rank[target]
    boundary = np.minimum(orders.stage[source], orders.stage[target]).astype(np.int64)
    # a pair also sends when its second part has ended
    source = source + (orders.overlaps[source] & crosses)
    return source, target, np.where(crosses, boundary, np.int64(-1))


class _Places:
    """Finds actions by stage, kind and micro-batch."""

    def __init__(self, orders: Orders) -> None:
        self._kind = orders.kind
        _, batch = np.unique(orders.micro_batch, return_inverse=True)
        self._width = np.int64(batch.max(initial=0) + 1)
        # lookups include stage -1 and the one after the last
        self._key = (orders.stage.astype(np.int64) + 1) * self._width + batch

    def join(
        self, sources: tuple[SlotKind, ...], targets: tuple[SlotKind, ...], shift: int
    ) -> tuple[Int64Array, Int64Array]:
        """Pairs of source and target actions, the source ``shift`` stages after the target."""
        source = np.flatnonzero(np.isin(self._kind, sources))
        target = np.flatnonzero(np.isin(self._kind, targets))
        source = source[np.argsort(self._key[source], kind="stable")]
        keys = self._key[source]
        twice = np.flatnonzero(keys[1:] == keys[:-1])
        if len(twice):
            stage, _ = divmod(int(keys[twice[0]]), int(self._width))
            raise ValueError(f"stage {stage - 1} works twice on one micro-batch")
        if not len(source):
            return source, source
        wanted = self._key[target] + shift * self._width
        at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
        there = keys[at] == wanted
        return source[at[there]], target[there]
