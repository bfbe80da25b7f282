"""Operations of a job as a tool logged them: no trace, one row per operation of one worker.

A table of a what-if study, or the timeline that a pipeline's own timers wrote. Times are int64 ns;
whether ranks share a clock is said beside them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from distprof.schema import Column, Table, TableSchema

__all__ = ["OPERATIONS", "OperationLog"]

OPERATIONS = TableSchema(
    name="operations",
    doc="Operations of workers as another tool logged them, by rank, step and start.",
    columns=(
        Column(name="rank", dtype="int32", doc="Worker: a rank, or ranks that act as one."),
        Column(name="dp_rank", dtype="int32", nullable=True, doc="Index along data parallelism."),
        Column(name="stage", dtype="int32", nullable=True, doc="Index along the pipeline."),
        Column(name="step", dtype="int64", doc="Training step."),
        Column(
            name="kind",
            dtype="category",
            doc="forward-compute, backward-compute, or the log's own word for anything else.",
        ),
        Column(name="start_ns", dtype="int64", unit="ns", doc="Start, since the step's."),
        Column(name="end_ns", dtype="int64", unit="ns", doc="End; never before the start."),
        Column(name="seq", dtype="int64", nullable=True, doc="Number among its kind in the step."),
        Column(name="chunk", dtype="int32", nullable=True, doc="Model chunk of the rank."),
        Column(name="micro_batch", dtype="int32", nullable=True, doc="Micro-batch."),
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationLog:
    """A job's operations, and what the log says of the job.

    Args:
        operations: OPERATIONS table.
        origin: What kind of log, for people: ``operation table`` or ``pipeline timeline``.
        world_size: Of the job, None where the log does not say.
        mesh: Axis to size, for example ``{"dp": 2, "pp": 4}``.
        num_micro_batches: Per step, None where the log does not say.
        shares_clock: Whether times of different ranks can be compared.
        step_ns: Step number to the step's length, where the log says it.
        notes: What was assumed, one sentence each.
    """

    operations: Table
    origin: str
    world_size: int | None = None
    mesh: Mapping[str, int] = field(default_factory=dict)
    num_micro_batches: int | None = None
    shares_clock: bool = True
    step_ns: Mapping[int, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
