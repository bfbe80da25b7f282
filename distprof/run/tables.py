"""The tables of one rank. All times are int64 ns since the epoch on that rank's own clock."""

from __future__ import annotations

from dataclasses import dataclass

from distprof.intervals import Intervals
from distprof.schema import Column, Table, TableSchema

__all__ = ["ACTIVITY", "COLLECTIVES", "HOST", "STEPS", "TABLES", "RankTables", "intervals_of"]

_START = Column(name="start_ns", dtype="int64", unit="ns", doc="Start on the rank's own clock.")
_END = Column(name="end_ns", dtype="int64", unit="ns", doc="End; never before the start.")
_CORRELATION = Column(
    name="correlation",
    dtype="int64",
    nullable=True,
    doc="Joins a device activity with the runtime call that launched it.",
)

ACTIVITY = TableSchema(
    name="activity",
    doc=(
        "What the device did: kernels, copies, ranges drawn on it. On CPU-only traces, what the "
        "host threads did: operators as computation, executed gloo operations as communication, "
        "being blocked in send or recv as waiting."
    ),
    columns=(
        _START,
        _END,
        Column(name="name", dtype="category", doc="Kernel, copy or operator name."),
        Column(name="kind", dtype="int8", doc="An ActivityKind."),
        Column(name="stream", dtype="int64", nullable=True, doc="Stream; on CPU, a thread index."),
        Column(name="device", dtype="int32", nullable=True, doc="Device index."),
        _CORRELATION,
        Column(name="bytes", dtype="int64", unit="B", nullable=True, doc="Bytes a copy moves."),
    ),
)

HOST = TableSchema(
    name="host",
    doc="What the host threads did: operators, runtime calls, annotations. Python frames excluded.",
    columns=(
        _START,
        _END,
        Column(name="name", dtype="category", doc="Operator, call or annotation name."),
        Column(
            name="category",
            dtype="category",
            doc="cpu_op, runtime, driver, annotation, sync or the trace's own word.",
        ),
        Column(name="thread", dtype="category", doc="Process and thread id, as pid/tid."),
        _CORRELATION,
    ),
)

COLLECTIVES = TableSchema(
    name="collectives",
    doc="One row per communication operation this rank took part in, in order of start.",
    columns=(
        Column(name="start_ns", dtype="int64", unit="ns", doc="Start of execution."),
        Column(name="end_ns", dtype="int64", unit="ns", doc="End of execution."),
        Column(
            name="is_timed",
            dtype="bool",
            doc="Whether start and end are those of execution. False for sends and receives of "
            "gloo, of which only the moment of posting is known: start and end are both that.",
        ),
        Column(
            name="enqueue_ns",
            dtype="int64",
            unit="ns",
            nullable=True,
            doc="When the host asked for it: the launch call, or the c10d operator.",
        ),
        Column(name="kind", dtype="int8", doc="A CollectiveKind."),
        Column(name="kind_origin", dtype="int8", doc="An Origin: arguments or the kernel's name."),
        Column(name="group", dtype="category", nullable=True, doc="Process group name."),
        Column(name="group_desc", dtype="category", nullable=True, doc="Its description."),
        Column(
            name="group_ranks",
            dtype="category",
            nullable=True,
            doc="Global ranks of the group, as folded ranges such as 0-3,8.",
        ),
        Column(name="group_size", dtype="int32", nullable=True, doc="Members of the group."),
        Column(name="group_origin", dtype="int8", doc="An Origin for the group columns."),
        Column(name="seq", dtype="int64", nullable=True, doc="Sequence number in the group."),
        Column(name="dtype", dtype="category", nullable=True, doc="Element type as PyTorch says."),
        Column(
            name="bytes",
            dtype="int64",
            unit="B",
            nullable=True,
            doc="Full (unsharded) buffer, as nccl-tests counts it.",
        ),
        Column(name="bytes_origin", dtype="int8", doc="An Origin for bytes."),
        Column(name="peer", dtype="int32", nullable=True, doc="Global rank of the other end."),
        Column(name="in_splits", dtype="category", nullable=True, doc="Input split sizes, 1,2,…"),
        Column(name="out_splits", dtype="category", nullable=True, doc="Output split sizes."),
        Column(name="stream", dtype="int64", nullable=True, doc="Stream it ran on."),
        _CORRELATION,
        Column(name="name", dtype="category", doc="Name of the activity."),
    ),
)

STEPS = TableSchema(
    name="steps",
    doc="Training steps in order of time, or the whole capture where there are no step marks.",
    columns=(
        Column(name="step", dtype="int64", doc="Step number of the profiler, else 0, 1, 2, …"),
        _START,
        _END,
        Column(name="complete", dtype="bool", doc="False where the capture cut the step."),
    ),
)

TABLES = (ACTIVITY, HOST, COLLECTIVES, STEPS)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTables:
    """The tables of one rank.

    ``host`` is empty with ``has_host`` false when only device rows were read. Otherwise it holds
    all calls and annotations, and operators as far as asked for when the tables were loaded.
    """

    activity: Table
    host: Table
    collectives: Table
    steps: Table
    has_host: bool


def intervals_of(table: Table) -> Intervals:
    """The rows of a table as intervals, in row order."""
    return Intervals(table["start_ns"], table["end_ns"])
