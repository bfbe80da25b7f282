"""Pipelines of logs that hold one row per operation: Megatron timelines, operation tables."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from distprof.analyzers.context import StageSlots
from distprof.analyzers.pipeline.groups import PipelineSlots
from distprof.run.operations import OperationLog
from distprof.schema import Int64Array, Table
from distprof.terms import SlotKind

__all__ = ["pipelines_of_log"]

_KINDS = {
    "forward-compute": SlotKind.FORWARD,
    "backward-compute": SlotKind.BACKWARD,
    "backward-input-compute": SlotKind.BACKWARD_INPUT,
    "backward-weight-compute": SlotKind.BACKWARD_WEIGHT,
}


def pipelines_of_log(log: OperationLog) -> tuple[PipelineSlots, ...]:
    """One pipeline per data-parallel rank; none where the log has no stages.

    Chunk c on pipeline rank p of P is stage c · P + p, as Megatron lays them out.
    """
    table = _compute_rows(log.operations)
    if not len(table):
        return ()
    step_ns = int(np.mean(list(log.step_ns.values()))) if log.step_ns else None
    offsets = _offsets(log.operations)
    place = table["stage"]
    num_places = max(int(place.max()) + 1, log.mesh.get("pp", 0))
    stage = (np.maximum(table["chunk"], 0) * num_places + place).astype(np.int32)
    replica = np.maximum(table["dp_rank"], 0)
    pipelines = []
    for number in np.unique(replica).tolist():
        mine = replica == number
        ranks = _by_place(table["rank"][mine], place[mine])
        slots = {
            rank: _slots(table, np.flatnonzero(mine & (table["rank"] == rank)), stage, offsets, log)
            for rank in ranks
        }
        pipelines.append(
            PipelineSlots(
                members=(*ranks, *[-1] * (num_places - len(ranks))),
                slots=slots,
                comparable=log.shares_clock,
                step_ns=step_ns,
            )
        )
    return tuple(pipelines)


def _compute_rows(table: Table) -> Table:
    known = table.coded("kind").isin(tuple(_KINDS))
    return table.take(known & (table["stage"] >= 0) & (table["micro_batch"] >= 0))


def _by_place(rank: NDArray[np.int32], place: NDArray[np.int32]) -> tuple[int, ...]:
    """Ranks in the order of their places in the pipeline."""
    distinct, first = np.unique(rank, return_index=True)
    order = np.lexsort((distinct, place[first]))
    return tuple(distinct[order].tolist())


def _offsets(table: Table) -> tuple[Int64Array, Int64Array]:
    """Steps, and where each begins when they are put one after another."""
    steps, inverse = np.unique(table["step"], return_inverse=True)
    length = np.zeros(len(steps), np.int64)
    np.maximum.at(length, inverse, table["end_ns"])
    return steps, np.cumsum(length) - length


def _slots(
    table: Table,
    rows: NDArray[np.intp],
    stage: NDArray[np.int32],
    offsets: tuple[Int64Array, Int64Array],
    log: OperationLog,
) -> StageSlots:
    steps, begin = offsets
    index = np.searchsorted(steps, table["step"][rows])
    start = table["start_ns"][rows] + begin[index]
    end = table["end_ns"][rows] + begin[index]
    names = table.coded("kind")
    kinds = np.array([_KINDS.get(name, -1) for name in names.values], np.int8)
    order = np.lexsort((end, start))
    return StageSlots(
        origin=log.origin,
        stage=stage[rows][order],
        kind=kinds[names.codes[rows]][order],
        micro_batch=table["micro_batch"][rows][order],
        step=index[order].astype(np.int64),
        start_ns=start[order],
        end_ns=end[order],
        work_ns=(end - start)[order],
    )
