"""The communication rows of all ranks side by side, as matching and alignment read them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from distprof.ingest.topology import group_key, groups_of_rows, world_size_of
from distprof.run.run import Rank
from distprof.run.topology import ProcessGroup
from distprof.schema import Int64Array, Table
from distprof.terms import StepSource

__all__ = ["NO_STEP", "Rows", "gather_rows", "step_labels"]

NO_STEP = np.iinfo(np.int64).min


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """One entry per COLLECTIVES row of any rank, rank by rank, in order of start.

    Args:
        rank: int32, rank number.
        row: int64, row in the rank's table.
        group: int32, index into the topology's groups.
        kind: int8, a CollectiveKind.
        bytes: int64, ABSENT where unknown.
        dtype: int32, a code that is the same for the same element type on every rank.
        seq: int64, ABSENT where unknown.
        peer: int32, ABSENT where unknown.
        end_ns: int64, end on the rank's own clock.
        step: int64, number of the step it belongs to, NO_STEP where unknown.
    """

    rank: NDArray[np.int32]
    row: Int64Array
    group: NDArray[np.int32]
    kind: NDArray[np.int8]
    bytes: Int64Array
    dtype: NDArray[np.int32]
    seq: Int64Array
    peer: NDArray[np.int32]
    end_ns: Int64Array
    step: Int64Array


def gather_rows(ranks: Sequence[Rank], groups: Sequence[ProcessGroup]) -> Rows:
    """The rows of all ranks.

    Args:
        ranks: Ranks of the run, ascending.
        groups: Groups of the run's topology.

    Raises:
        ValueError: If a row's group is not among ``groups``.
    """
    tables = [rank.collectives for rank in ranks]
    lengths = [len(table) for table in tables]
    return Rows(
        rank=np.repeat(np.array([rank.rank for rank in ranks], np.int32), lengths),
        row=np.concatenate([np.arange(n, dtype=np.int64) for n in lengths]),
        group=_group_index(ranks, groups),
        kind=np.concatenate([table["kind"] for table in tables]),
        bytes=np.concatenate([table["bytes"] for table in tables]),
        dtype=_dtype_codes(tables),
        seq=np.concatenate([table["seq"] for table in tables]),
        peer=np.concatenate([table["peer"] for table in tables]),
        end_ns=np.concatenate([table["end_ns"] for table in tables]),
        step=np.concatenate([step_labels(rank) for rank in ranks]),
    )


def step_labels(rank: Rank) -> Int64Array:
    """Number of the step that each collective of a rank belongs to, NO_STEP where unknown.

    Windows on the host hold the time a collective is asked for, windows on the device its start.
    Only the profiler's own numbers mean the same step on every rank.
    """
    table, steps = rank.collectives, rank.steps
    if rank.step_source not in (StepSource.PROFILER_STEP, StepSource.DEVICE) or not len(steps):
        return np.full(len(table), NO_STEP, np.int64)
    time = table["start_ns"]
    if rank.step_source is StepSource.PROFILER_STEP:
        time = np.where(table["enqueue_ns"] >= 0, table["enqueue_ns"], time)
    index = np.searchsorted(steps["start_ns"], time, side="right") - 1
    inside = (index >= 0) & (time < steps["end_ns"][np.maximum(index, 0)])
    labels: Int64Array = np.where(inside, steps["step"][np.maximum(index, 0)], NO_STEP)
    return labels


def _group_index(ranks: Sequence[Rank], groups: Sequence[ProcessGroup]) -> NDArray[np.int32]:
    known = {group_key(group): index for index, group in enumerate(groups)}
    world_size = world_size_of(ranks)
    parts = []
    for rank in ranks:
        found, index = groups_of_rows(rank, world_size)
        try:
            lookup = np.array([known[group_key(group)] for group in found], np.int32)
        except KeyError as error:
            raise ValueError(f"rank {rank.rank}: group {error} is not in the topology") from None
        parts.append(lookup[index] if len(found) else np.empty(0, np.int32))
    return np.concatenate(parts)


def _dtype_codes(tables: Sequence[Table]) -> NDArray[np.int32]:
    seen: dict[str, int] = {}
    parts = []
    for table in tables:
        column = table.coded("dtype")
        lookup = np.array([seen.setdefault(v, len(seen)) for v in column.values], np.int32)
        parts.append(lookup[column.codes] if len(lookup) else np.empty(0, np.int32))
    return np.concatenate(parts)
