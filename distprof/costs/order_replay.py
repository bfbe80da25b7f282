"""Replay an order of a pipeline's actions to find when each would start and end.

Built on :mod:`distprof.replay`. An action starts when its rank has finished the previous action and
its inputs are available:

- a forward needs the forward of the previous stage,
- a loss needs its stage's forward,
- a backward, or its input part, needs the forward (and loss) of its stage, and the gradient of the
  next stage,
- a weight part needs the input part of its stage.

The outputs of a pair are sent when both parts have ended, as in torch. Inputs from actions that are
missing, because a rank was not observed, are available from the start.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from distprof.costs.actions import Orders, in_flight_of
from distprof.replay import Graph, simulate
from distprof.terms import SlotKind

Durations = Mapping[SlotKind, ArrayLike]

_GRADIENT = (SlotKind.BACKWARD, SlotKind.BACKWARD_INPUT)


class Replay(msgspec.Struct, frozen=True, kw_only=True):
    """Start and end times of a pipeline's actions; the first action starts at 0."""

    orders: Orders  # The replayed actions.
    # Per action, int64, shape ``(n,)``, or ``(n, k)`` for k sets of durations.
    start_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]  # In the same form.
    busy_ns: NDArray[np.int64]  # Busy time per rank, shape ``(ranks,)`` or ``(ranks, k)``.

    @property
    def makespan_ns(self) -> Any:
        """Time from the first start to the last end; one number per set of durations."""
        if not len(self.orders):
            return np.zeros(self.end_ns.shape[1:], np.int64)[()]
        return self.end_ns.max(axis=0)

    @property
    def idle_ns(self) -> NDArray[np.int64]:
        """Idle time per rank within the makespan."""
        idle: NDArray[np.int64] = self.makespan_ns - self.busy_ns
        return idle

    @property
    def bubble_fraction(self) -> Any:
        """Idle over total time of all ranks; 0 if nothing takes time."""
        total = np.maximum(self.makespan_ns * np.float64(self.orders.num_ranks), 1)
        return (self.idle_ns.sum(axis=0) / total)[()]

    @property
    def in_flight(self) -> NDArray[np.int64]:
        """Per rank: the largest number of activations held at once."""
        return in_flight_of(self.orders)


def replay(
    orders: Orders,
    durations: Durations | NDArray[Any],
    *,
    transfer_ns: ArrayLike = 0,
) -> Replay:
    """Compute start and end of every action if each starts as early as its inputs and rank allow.

    Args:
        orders: Actions of each rank, in order.
        durations: By kind: ns, one number for all stages or one per stage. ``BACKWARD`` may be left
            out if both its parts are given, and ``LOSS`` is 0 unless given. If ``OVERLAPPED`` is
            given, pairs run concurrently for that time, else one part after the other. Or an array
            with the duration of each action of ``orders``, shape ``(n,)`` or ``(n, k)``.
        transfer_ns: Time from the end of an action to the arrival of its output, between stages on
            different ranks; one number or one per boundary between stages, shape ``(stages - 1,)``.

    Raises:
        ValueError: If a kind has no duration, a stage works twice on one micro-batch, or
            (:class:`~distprof.replay.CycleError`) actions wait for each other.
    """
    part_ns, pair_ns = _lengths(orders, durations)
    merged = orders.overlaps if pair_ns is not None else np.zeros(len(orders), np.bool_)
    # a merged pair is one operation of the given duration; other actions are one each
    second = _after(merged)
    first = np.flatnonzero(~second)
    operation = np.cumsum(~second) - 1
    length = (part_ns if pair_ns is None else np.where(merged, pair_ns, part_ns))[first]
    source, target, boundary = _edges(orders)
    outer = operation[source] != operation[target]
    graph = Graph.of(len(first), operation[source[outer]], operation[target[outer]])
    times = simulate(graph, length, delay=_delay(orders, boundary[outer], transfer_ns))
    busy = np.zeros((orders.num_ranks, *length.shape[1:]), np.int64)
    np.add.at(busy, orders.rank[first], length)
    return Replay(
        orders=orders, start_ns=times.start[operation], end_ns=times.end[operation], busy_ns=busy
    )


def _as_ns(values: ArrayLike) -> NDArray[np.int64]:
    return np.rint(values).astype(np.int64)


def _after(flags: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Mask of the rows that follow a flagged one."""
    shifted = np.zeros_like(flags)
    shifted[1:] = flags[:-1]
    return shifted


def _lengths(
    orders: Orders, durations: Durations | NDArray[Any]
) -> tuple[NDArray[np.int64], NDArray[np.int64] | None]:
    """Duration of each action and, if given, of its pair with the next action."""
    if isinstance(durations, np.ndarray):
        if len(durations) != len(orders):
            raise ValueError(f"{len(durations)} durations for {len(orders)} actions")
        return _as_ns(durations), None
    each = _of_kinds(orders, durations)
    if SlotKind.OVERLAPPED not in durations:
        return each, None
    return each, _by_stage(orders, durations[SlotKind.OVERLAPPED])


def _of_kinds(orders: Orders, durations: Durations) -> NDArray[np.int64]:
    given = dict(durations)
    parts = [given.get(kind) for kind in (SlotKind.BACKWARD_INPUT, SlotKind.BACKWARD_WEIGHT)]
    if SlotKind.BACKWARD not in given and parts[0] is not None and parts[1] is not None:
        given[SlotKind.BACKWARD] = np.add(parts[0], parts[1])
    given.setdefault(SlotKind.LOSS, 0)
    length = np.zeros(len(orders), np.int64)
    for kind in map(SlotKind, np.unique(orders.kind).tolist()):
        if kind not in given:
            raise ValueError(f"no duration of {kind.name.lower()} actions is given")
        rows = orders.kind == kind
        length[rows] = _by_stage(orders, given[kind])[rows]
    return length


def _by_stage(orders: Orders, values: ArrayLike) -> NDArray[np.int64]:
    """One value per action, from one number or one per stage."""
    ns = _as_ns(values)
    if ns.ndim == 0:
        return np.full(len(orders), ns)
    if len(ns) < orders.num_stages:
        raise ValueError(f"{len(ns)} durations for {orders.num_stages} stages")
    return ns[orders.stage]


def _delay(
    orders: Orders, boundary: NDArray[np.int64], transfer_ns: ArrayLike
) -> NDArray[np.int64] | None:
    """Delay per edge; ``boundary`` is the stage before it, or -1 within a rank."""
    transfer = _as_ns(transfer_ns)
    if not transfer.any():
        return None
    if transfer.ndim and len(transfer) < orders.num_stages - 1:
        raise ValueError(f"{len(transfer)} transfer times for {orders.num_stages - 1} boundaries")
    crosses = boundary >= 0
    delay = np.zeros(len(boundary), np.int64)
    delay[crosses] = transfer[boundary[crosses]] if transfer.ndim else transfer
    return delay


def _edges(
    orders: Orders,
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
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
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
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
