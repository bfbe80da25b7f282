"""Logs of operations for tests: written by hand, or by a small pipeline that is simulated here.

The simulation is a few loops over one schedule and shares no code with distprof's: it is what
distprof's is judged by.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from distprof.run.evidence import OPERATIONS, OperationLog
from distprof.schema import Coded, Table

MS = 1_000_000

Row = tuple[int, int, str, int, int, int]
"""dp_rank, stage, kind, seq, start and end in ms."""

# Two stages, two micro-batches: stage 0 does F0 F1 B0 B1, stage 1 F0 B0 F1 B1. Forward and backward
# take 10 and 20 ms on stage 0, 20 and 40 ms on stage 1; messages 1 ms, clip 2 ms, optimizer 3 ms.
BY_HAND: tuple[Row, ...] = (
    (0, 0, "forward-compute", 0, 0, 10),
    (0, 0, "forward-compute", 1, 10, 20),
    (0, 0, "forward-send", 0, 10, 11),
    (0, 0, "forward-send", 1, 20, 32),
    (0, 0, "backward-recv", 0, 10, 72),
    (0, 0, "backward-compute", 0, 72, 92),
    (0, 0, "backward-recv", 1, 92, 132),
    (0, 0, "backward-compute", 1, 132, 152),
    (0, 0, "optimizer-clip-main-grad", 0, 152, 154),
    (0, 0, "optimizer", 0, 154, 157),
    (0, 1, "forward-recv", 0, 0, 11),
    (0, 1, "forward-compute", 0, 11, 31),
    (0, 1, "backward-compute", 0, 31, 71),
    (0, 1, "forward-recv", 1, 31, 32),
    (0, 1, "backward-send", 0, 71, 72),
    (0, 1, "forward-compute", 1, 71, 91),
    (0, 1, "backward-compute", 1, 91, 131),
    (0, 1, "backward-send", 1, 131, 132),
    (0, 1, "optimizer-clip-main-grad", 0, 131, 154),
    (0, 1, "optimizer", 0, 154, 157),
)


def log_of(rows: Sequence[Row], *, unit: int = MS, steps: Sequence[int] = (7,)) -> OperationLog:
    """The rows as a log, the same in every step."""
    many = [(step, *row) for step in steps for row in rows]
    stages = 1 + max(row[1] for row in rows)
    columns = {
        "rank": [row[1] * stages + row[2] for row in many],
        "dp_rank": [row[1] for row in many],
        "stage": [row[2] for row in many],
        "step": [row[0] for row in many],
        "start_ns": [row[5] * unit for row in many],
        "end_ns": [row[6] * unit for row in many],
        "seq": [row[4] for row in many],
        "chunk": [0] * len(many),
        "micro_batch": [row[4] if row[3].endswith("compute") else -1 for row in many],
    }
    dtypes = {column.name: column.dtype for column in OPERATIONS}
    arrays: dict[str, Any] = {n: np.array(v, dtypes[n]) for n, v in columns.items()}
    table = Table(OPERATIONS, {**arrays, "kind": Coded.encode([row[3] for row in many])})
    last = max(row[5] for row in rows) * unit
    return OperationLog(
        operations=table, origin="operation table", step_ns=dict.fromkeys(steps, last)
    )


def joined(logs: Sequence[OperationLog]) -> OperationLog:
    """Logs of different steps as one."""
    lengths = {step: ns for log in logs for step, ns in log.step_ns.items()}
    table = Table.concat(OPERATIONS, [log.operations for log in logs])
    return OperationLog(operations=table, origin="operation table", step_ns=lengths)


Length = Callable[[int, int, str, int], int]
"""dp_rank, stage, kind and micro-batch to a length in ns."""


def pipeline_rows(
    length: Length, *, dp: int, stages: int, micro_batches: int, message: int = 100
) -> list[Row]:
    """One step of GPipe, all forwards before all backwards, with a reduce-scatter at the end."""
    rows: list[Row] = []
    begins: list[list[int]] = []
    for replica in range(dp):
        own, ready = _replica(length, replica, stages, micro_batches, message)
        rows += own
        begins.append(ready)
    scattered = [max(begins[d][s] for d in range(dp)) + message for s in range(stages)]
    clipped = max(scattered) + message
    for replica in range(dp):
        for stage in range(stages):
            start, end = begins[replica][stage], scattered[stage]
            rows.append((replica, stage, "grads-reduce-scatter", 0, start, end))
            rows.append((replica, stage, "optimizer-clip-main-grad", 0, end, clipped))
            rows.append((replica, stage, "optimizer", 0, clipped, clipped + message))
    return rows


def _replica(
    length: Length, replica: int, stages: int, micro_batches: int, message: int
) -> tuple[list[Row], list[int]]:
    """One data-parallel row; a message begins when both sides are ready for it."""
    rows: list[Row] = []
    free, before_backward = [0] * stages, [0] * stages
    for way, order in (("forward", range(stages)), ("backward", range(stages - 1, -1, -1))):
        leaves: list[int] = []
        for place, stage in enumerate(order):
            posted = before_backward[stage] if way == "backward" else 0
            ends: list[int] = []
            sent = received = 0
            for batch in range(micro_batches):
                if place:
                    send, recv = max(leaves[batch], sent), max(posted, received)
                    sent = received = max(send, recv) + message
                    peer = stage - 1 if way == "forward" else stage + 1
                    rows.append((replica, peer, f"{way}-send", batch, send, sent))
                    rows.append((replica, stage, f"{way}-recv", batch, recv, received))
                start = max(free[stage], received)
                free[stage] = start + length(replica, stage, f"{way}-compute", batch)
                rows.append((replica, stage, f"{way}-compute", batch, start, free[stage]))
                posted = free[stage]
                ends.append(posted)
            leaves = ends
            if way == "forward" and micro_batches >= 2:
                before_backward[stage] = ends[-2]
    return rows, free


def write_table(path: Path, log: OperationLog, **changed: Any) -> Path:
    """The log as a Parquet file in the public layout; columns may be replaced or, by None, left."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = log.operations
    columns: dict[str, Any] = {
        "dp_rank": table["dp_rank"],
        "stage": table["stage"],
        "rank": table["rank"],
        "step": table["step"],
        "optype": table.coded("kind").decode(),
        "start_ts": table["start_ns"] / 1e9,
        "duration": (table["end_ns"] - table["start_ns"]) / 1e9,
        "seq_id": table["seq"],
        "mc": table["chunk"],
        "mb_id": table["micro_batch"],
    }
    columns.update(changed)
    kept = {name: values for name, values in columns.items() if values is not None}
    pq.write_table(pa.table(kept), path)
    return path
