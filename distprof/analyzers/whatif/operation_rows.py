"""Operations of a log laid out step by step, so that one graph serves every step.

A job does the same operations in each step. The commonest set of operations is the step; steps that
lack one of them, or have one more, are left out and counted.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from distprof.run.operations import OperationLog
from distprof.schema import Int64Array, Table

__all__ = ["KINDS", "MESSAGES", "StepRows", "lay_out"]

KINDS = (
    "forward-compute",
    "backward-compute",
    "forward-send",
    "forward-recv",
    "backward-send",
    "backward-recv",
    "params-all-gather",
    "grads-reduce-scatter",
    "separate-grads-all-reduce",
    "layernorm-grads-all-reduce",
    "embedding-grads-all-reduce",
    "optimizer-clip-main-grad",
    "optimizer",
    "gc",
)
"""Kinds whose place in a step is known; ``StepRows.kind`` is an index into them."""

MESSAGES = ("forward-send", "forward-recv", "backward-send", "backward-recv")

RowIndex = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRows:
    """n operations of one step, and when each ran in each of s steps.

    Args:
        steps: int64, shape ``(s,)``, step numbers.
        kind: int64, shape ``(n,)``, index into KINDS.
        lane: int64, shape ``(n,)``: worker, numbered ``dp_rank * num_stages + stage``.
        worker: int64, shape ``(n,)``: the same, numbered without gaps.
        rank: int64, shape ``(n,)``, as the log numbers it.
        seq: int64, shape ``(n,)``.
        chunk: int64, shape ``(n,)``, 0 where the log does not say.
        micro_batch: int64, shape ``(n,)``, or absent.
        start: int64 ns, shape ``(n, s)``.
        end: int64 ns, shape ``(n, s)``.
        num_stages: p.
        notes: What was left out, one sentence each.
    """

    steps: Int64Array
    kind: Int64Array
    lane: Int64Array
    worker: Int64Array
    rank: Int64Array
    seq: Int64Array
    chunk: Int64Array
    micro_batch: Int64Array
    start: Int64Array
    end: Int64Array
    num_stages: int
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.kind)

    @property
    def stage(self) -> Int64Array:
        """int64, shape ``(n,)``."""
        return self.lane % self.num_stages

    @property
    def dp_rank(self) -> Int64Array:
        """int64, shape ``(n,)``."""
        return self.lane // self.num_stages

    def of(self, *kinds: str) -> NDArray[np.bool_]:
        """Mask of the operations of these kinds."""
        return np.isin(self.kind, [KINDS.index(kind) for kind in kinds])


def lay_out(log: OperationLog) -> StepRows | None:
    """The log's operations step by step; None where it holds none whose place is known."""
    table = log.operations
    kind = _kind_codes(table)
    known = np.flatnonzero(kind >= 0)
    if len(known) == 0:
        return None
    notes = _unknown_kinds(table, kind)
    num_stages = int(table["stage"].max()) + 1
    place = np.maximum(table["stage"], 0).astype(np.int64)
    lane = np.maximum(table["dp_rank"], 0).astype(np.int64) * max(num_stages, 1) + place
    order = known[np.lexsort((table["seq"][known], kind[known], lane[known], table["step"][known]))]
    keys = np.stack([lane[order], kind[order], table["seq"][order]], axis=1)
    steps, rows, left_out = _alike(table["step"][order], keys)
    if left_out:
        notes.append(
            "Steps left out because they have other operations than most: "
            f"{left_out:,} of {left_out + len(steps):,}."
        )
    first, every = order[rows[:, 0]], order[rows]
    return StepRows(
        steps=steps,
        kind=kind[first],
        lane=lane[first],
        worker=np.unique(lane[first], return_inverse=True)[1],
        rank=table["rank"][first].astype(np.int64),
        seq=table["seq"][first],
        chunk=np.maximum(table["chunk"][first], 0).astype(np.int64),
        micro_batch=table["micro_batch"][first].astype(np.int64),
        start=table["start_ns"][every],
        end=table["end_ns"][every],
        num_stages=max(num_stages, 1),
        notes=tuple(notes),
    )


def _kind_codes(table: Table) -> Int64Array:
    """Per row the index into KINDS, -1 for other kinds."""
    coded = table.coded("kind")
    lookup = np.array([KINDS.index(v) if v in KINDS else -1 for v in coded.values], np.int64)
    return lookup[coded.codes] if len(lookup) else np.empty(0, np.int64)


def _unknown_kinds(table: Table, kind: Int64Array) -> list[str]:
    unknown = table.coded("kind").take(kind < 0)
    if not len(unknown):
        return []
    names = sorted({unknown.values[code] for code in np.unique(unknown.codes).tolist()})
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return [
        "Operations left out because it is not known what waits for their kind: "
        f"{len(unknown):,} of {len(table):,} ({', '.join(names[:5])}{more})."
    ]


def _alike(step: Int64Array, keys: Int64Array) -> tuple[Int64Array, RowIndex, int]:
    """Steps with the commonest operations, their rows ``(n, s)``, and how many steps differ.

    Args:
        step: int64 per row, ascending.
        keys: What operation each row is, in order within a step.
    """
    numbers, first = np.unique(step, return_index=True)
    bounds = [*first.tolist(), len(step)]
    signatures = [hash(keys[low:high].tobytes()) for low, high in pairwise(bounds)]
    common, _ = Counter(signatures).most_common(1)[0]
    chosen = np.array([i for i, sign in enumerate(signatures) if sign == common], np.int64)
    length = bounds[chosen[0] + 1] - bounds[chosen[0]]
    rows = first[chosen][np.newaxis, :] + np.arange(length)[:, np.newaxis]
    return numbers[chosen], rows, len(numbers) - len(chosen)
