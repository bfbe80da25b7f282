"""Who and what slows a logged job: S by kind, data-parallel row, stage and worker.

Source of the definitions: J. Lin et al., "Understanding Stragglers in Large Model Training Using
What-if Analysis" (OSDI 2025); formula sheet, "What-if".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from distprof.schema import Int64Array
from distprof.sections.whatif.operation_graph import KINDS, StepRows, graph_of
from distprof.sections.whatif.operation_replay import Mask, OperationReplay

__all__ = [
    "Workers",
    "balanced_stages",
    "by_dp_rank",
    "by_kind",
    "by_stage",
    "even_micro_batches",
    "micro_batch_correlation",
    "slowest",
    "workers_of",
]

SLOWEST_PERCENT = 3
MAX_CELLS = 500_000_000
"""Operations times steps times rows that are simulated to tell rows apart: about a minute."""

COMPUTE = ("forward-compute", "backward-compute")
_TOGETHER = {
    "forward-pp-comm": ("forward-send", "forward-recv"),
    "backward-pp-comm": ("backward-send", "backward-recv"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Workers:
    """Workers of the log in order of rank, arrays of shape ``(w,)``.

    Args:
        rank: As the log numbers it.
        dp_rank: Row of the mesh.
        stage: Column of the mesh.
    """

    rank: Int64Array
    dp_rank: Int64Array
    stage: Int64Array


def workers_of(rows: StepRows) -> Workers:
    """All workers that operations are of."""
    rank, first = np.unique(rows.rank, return_index=True)
    return Workers(rank=rank, dp_rank=rows.dp_rank[first], stage=rows.stage[first])


def masks_by_kind(rows: StepRows) -> dict[str, Mask]:
    """Operations of each kind there is; sends and receives of one direction are one kind."""
    grouped = {kind: name for name, kinds in _TOGETHER.items() for kind in kinds}
    names = dict.fromkeys(grouped.get(KINDS[code], KINDS[code]) for code in np.unique(rows.kind))
    return {name: rows.of(*_TOGETHER.get(name, (name,))) for name in names}


def by_kind(replay: OperationReplay) -> dict[str, Int64Array]:
    """int64 ns, shape ``(s,)`` per kind: all is ideal but operations of the kind."""
    masks = masks_by_kind(replay.rows)
    return dict(zip(masks, replay.keeping(list(masks.values())), strict=True))


def by_stage(replay: OperationReplay) -> Int64Array:
    """int64 ns, shape ``(p, s)``: all is ideal but one pipeline stage."""
    stage = replay.rows.stage
    return replay.keeping_each(replay.rows.num_stages, lambda number: stage == number)


def by_dp_rank(replay: OperationReplay) -> Int64Array | None:
    """int64 ns, shape ``(d, s)``: all is ideal but one data-parallel row.

    Where all rows do the same operations, the ideal ones are alike, so that one of them stands for
    all: a simulation of two rows instead of d.

    Returns:
        None where rows differ and are too many to simulate each among all.
    """
    dp_rank = replay.rows.dp_rank
    num = int(dp_rank.max()) + 1
    pair = _as_pair(replay, num)
    if pair is None:
        if num * replay.actual.size > MAX_CELLS:
            return None
        return replay.keeping_each(num, lambda number: dp_rank == number)
    length: Int64Array = pair.keeping([pair.rows.dp_rank == 0])[0]
    return length.reshape(num, replay.num_steps)


def _as_pair(replay: OperationReplay, num: int) -> OperationReplay | None:
    """Two rows whose first is each row in turn; None where rows differ in their operations."""
    rows = replay.rows
    if num < 3 or len(rows) % num:
        return None
    size = len(rows) // num
    keys = np.stack([rows.lane % rows.num_stages, rows.kind, rows.seq, rows.chunk])
    keys = keys.reshape(len(keys), num, size)
    if (keys != keys[:, :1]).any():
        return None
    two = slice(0, 2 * size)
    pair = replace(
        rows,
        kind=rows.kind[two],
        lane=rows.lane[two],
        worker=rows.worker[two],
        rank=rows.rank[two],
        seq=rows.seq[two],
        chunk=rows.chunk[two],
        micro_batch=np.tile(rows.micro_batch[:size], 2),
        start=np.tile(rows.start[:size], (2, 1)),
        end=np.tile(rows.end[:size], (2, 1)),
    )
    by_row = replay.actual.reshape(num, size, replay.num_steps).swapaxes(0, 1)
    in_turn = by_row.reshape(size, num * replay.num_steps)
    return OperationReplay(
        rows=pair,
        graph=graph_of(pair),
        actual=np.concatenate([in_turn, in_turn]),
        ideal=replay.ideal[two],
    )


def slowest(workers: Workers, slowdown: NDArray[np.float64]) -> Int64Array:
    """Ranks of the slowest 3 %, rounded up; of equally slow ones the lower ranks."""
    num = -(-len(workers.rank) * SLOWEST_PERCENT // 100)
    order = np.lexsort((workers.rank, -slowdown))
    return workers.rank[order[:num]]


def balanced_stages(replay: OperationReplay) -> Int64Array:
    """int64 ns, shape ``(s,)``: every stage computes as long as the mean of all stages.

    Lengths are scaled, so that what differs between micro-batches and workers of a stage stays.
    """
    factor = np.ones(len(replay.rows))
    for members, whole in _by_kind_and_stage(replay):
        mean = replay.actual[members].mean()
        factor[members] = replay.actual[whole].mean() / mean if mean > 0 else 1.0
    return replay.scaled(factor)


def even_micro_batches(replay: OperationReplay) -> Int64Array:
    """int64 ns, shape ``(s,)``: every computation takes the mean of its kind and stage."""
    even = replay.actual.copy()
    for members, _ in _by_kind_and_stage(replay):
        even[members] = round(float(replay.actual[members].mean()))
    return replace(replay, actual=even).simulated()


def _by_kind_and_stage(replay: OperationReplay) -> Iterator[tuple[Mask, Mask]]:
    """Computation of each kind and stage, beside that of the kind on all stages."""
    rows = replay.rows
    for kind in COMPUTE:
        whole = rows.of(kind)
        for stage in np.unique(rows.stage[whole]).tolist():
            yield whole & (rows.stage == stage), whole


def micro_batch_correlation(replay: OperationReplay) -> float | None:
    """How alike forward and backward of micro-batches deviate; None where nothing deviates."""
    forward, backward = (_deviations(replay, kind) for kind in COMPUTE)
    if forward.shape != backward.shape or forward.size < 8:
        return None
    if forward.std() == 0 or backward.std() == 0:
        return None
    return float(np.corrcoef(forward.ravel(), backward.ravel())[0, 1])


def _deviations(replay: OperationReplay, kind: str) -> NDArray[np.float64]:
    """Lengths over the mean of their stage, by worker, chunk and micro-batch."""
    rows = replay.rows
    chosen = np.flatnonzero(rows.of(kind) & (rows.micro_batch >= 0))
    keys = (rows.micro_batch[chosen], rows.chunk[chosen], rows.lane[chosen])
    chosen = chosen[np.lexsort(keys)]
    length = replay.actual[chosen].astype(np.float64)
    for stage in np.unique(rows.stage[chosen]).tolist():
        members = rows.stage[chosen] == stage
        length[members] /= max(length[members].mean(), 1.0)
    return length
