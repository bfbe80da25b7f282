"""The order of actions on the ranks of a pipeline, from a schedule or from observation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from distprof.terms import SlotKind


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
    overlaps: NDArray[np.bool_]

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

    A rank is any iterable of (stage, kind, micro-batch), or an integer array of shape (n, 3); empty
    if it has no actions, or unknown ones. ``overlaps`` are flags per rank and action; None if
    nothing overlaps.
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


def in_flight_of(orders: Orders, *, by_stage: bool = False) -> NDArray[np.int64]:
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
