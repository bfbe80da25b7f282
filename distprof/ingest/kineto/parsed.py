"""What parsing one Kineto file yields, before anything is concluded from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from distprof.run.run import Quality
from distprof.schema import Column, Table, TableSchema

__all__ = ["COMM_ARGS", "ParsedTrace"]

COMM_ARGS = TableSchema(
    name="comm_args",
    doc=(
        "Events that carry collective arguments or name a communication operator, as written: "
        "device kernels and record_param_comms with NCCL arguments, c10d:: and gloo: events."
    ),
    columns=(
        Column(name="start_ns", dtype="int64", unit="ns", doc="Start."),
        Column(name="end_ns", dtype="int64", unit="ns", doc="End."),
        Column(name="name", dtype="category", doc="Event name."),
        Column(name="category", dtype="category", doc="As in HOST; kernel for device rows."),
        Column(name="thread", dtype="category", doc="Process and thread id, as pid/tid."),
        Column(name="stream", dtype="int64", nullable=True, doc="Stream of a device row."),
        Column(name="correlation", dtype="int64", nullable=True, doc="Launch correlation."),
        Column(name="external_id", dtype="int64", nullable=True, doc="External id argument."),
        Column(name="collective", dtype="category", nullable=True, doc="Collective name."),
        Column(name="in_nelems", dtype="int64", nullable=True, doc="In msg nelems."),
        Column(name="out_nelems", dtype="int64", nullable=True, doc="Out msg nelems."),
        Column(name="dtype", dtype="category", nullable=True, doc="Element type."),
        Column(name="group_size", dtype="int64", nullable=True, doc="Group size."),
        Column(name="group", dtype="category", nullable=True, doc="Process Group Name."),
        Column(
            name="group_desc", dtype="category", nullable=True, doc="Process Group Description."
        ),
        Column(
            name="group_ranks", dtype="category", nullable=True, doc="Process Group Ranks, raw."
        ),
        Column(name="seq", dtype="int64", nullable=True, doc="Seq."),
        Column(name="comms_id", dtype="category", nullable=True, doc="Comms Id; may exceed int64."),
        Column(name="in_splits", dtype="category", nullable=True, doc="In split size, raw."),
        Column(name="out_splits", dtype="category", nullable=True, doc="Out split size, raw."),
        Column(name="src_rank", dtype="int64", nullable=True, doc="Src Rank."),
        Column(name="dst_rank", dtype="int64", nullable=True, doc="Dst Rank."),
        Column(name="input_dims", dtype="category", nullable=True, doc="Input Dims, JSON text."),
        Column(name="input_types", dtype="category", nullable=True, doc="Input type, JSON text."),
        Column(
            name="concrete_inputs",
            dtype="category",
            nullable=True,
            doc="Concrete Inputs, JSON text.",
        ),
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedTrace:
    """One Kineto file as tables, with exact int64 ns times.

    Args:
        metadata: Top-level keys of the file but ``traceEvents``, for example ``distributedInfo``.
        thread_names: ``pid/tid`` to the last name given to that thread; empty when only device rows
            were read.
        activity: ACTIVITY table; kernels are COMPUTATION until classified, copies and annotations
            are told apart by category.
        host: HOST table. With a host sink, only the rows that analyses need (runtime and driver
            calls, annotations, synchronisation, communication and data loading operators); the
            sink got all of them. Without a sink, all rows. Step marks alone when only device rows
            were read.
        host_is_complete: Whether ``host`` holds all host rows.
        comm_args: COMM_ARGS table.
        first_ns: Start of the first event.
        last_ns: End of the last event.
        has_epoch: Whether times are since the Unix epoch.
        quality: What was met.
    """

    metadata: Mapping[str, Any]
    thread_names: Mapping[str, str]
    activity: Table
    host: Table
    host_is_complete: bool
    comm_args: Table
    first_ns: int
    last_ns: int
    has_epoch: bool
    quality: Quality
