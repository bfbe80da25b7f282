"""One observed pipeline: actions of all its ranks, and their times in every step.

Each step in which the ranks worked in the most common order is one column. A schedule that runs
several times in one training step gives several columns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from distprof.costs.pipeline import Orders, orders_from
from distprof.schema import ABSENT, Int64Array
from distprof.sections.context import StageSlots
from distprof.terms import SlotKind


def changes(*keys: NDArray[np.integer]) -> NDArray[np.bool_]:
    """Mask of rows that differ from the one before."""
    changed = np.ones(len(keys[0]), dtype=np.bool_)
    changed[1:] = np.any([key[1:] != key[:-1] for key in keys], axis=0)
    return changed


def number_in_run(*keys: NDArray[np.integer]) -> Int64Array:
    """0, 1, 2, … within each run of equal rows."""
    row = np.arange(len(keys[0]))
    changed = changes(*keys)
    return (row - np.maximum.accumulate(np.where(changed, row, 0))).astype(np.int64)


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
        first = np.flatnonzero(np.diff(self.orders.rank, prepend=-1))
        low = np.minimum.reduceat(self.start_ns, first, axis=0)
        high = np.maximum.reduceat(self.end_ns, first, axis=0)
        own: Int64Array = high - low
        return own


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
        changed = np.flatnonzero(
            (np.diff(self.step, prepend=-2) != 0) | (np.diff(self.round, prepend=-2) != 0)
        )
        bounds = [*changed.tolist(), len(self.step)]
        keys = zip(self.step[changed].tolist(), self.round[changed].tolist(), strict=True)
        return {
            key: slice(low, high)
            for key, low, high in zip(keys, bounds[:-1], bounds[1:], strict=True)
        }


def observe(slots: Mapping[int, StageSlots]) -> ObservedPipeline | None:
    """Combine the slots of a pipeline's ranks; None if no step has slots of all of them.

    Ranks are in the order of positions, their times on a common clock if there is one.
    """
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
    raw = (slots.step, slots.stage, slots.micro_batch, slots.kind)
    order = np.lexsort((slots.start_ns, *reversed(raw)))
    again = np.empty(len(slots), np.int64)
    again[order] = number_in_run(*(part[order] for part in raw))
    kind = np.where(slots.kind == SlotKind.LOSS, SlotKind.FORWARD, slots.kind)
    keys = (slots.step, again, slots.stage, kind, slots.micro_batch)
    order = np.lexsort((slots.start_ns, *reversed(keys)))
    first = np.flatnonzero(changes(*(key[order] for key in keys)))
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
