"""The tables of one rank. All times are int64 ns since the epoch on that rank's own clock."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import msgspec
import numpy as np
from numpy.typing import NDArray

from distprof.intervals import Intervals
from distprof.schema import ABSENT, Bools, Column, Int64Array, Table, TableSchema, text, whole
from distprof.terms import ActivityKind

_START = Column("start_ns", "int64", "Start on the rank's own clock.", unit="ns")
_END = Column("end_ns", "int64", "End, never before the start.", unit="ns")
_CORRELATION = whole("correlation", "Links a GPU activity to the runtime call that launched it.")

ACTIVITY = TableSchema(
    name="activity",
    doc=(
        "Activity of the GPU: kernels, copies and annotated ranges. On CPU-only traces, "
        "activity of the CPU threads: operators count as computation, executed gloo operations "
        "as communication, and time blocked in send or recv as waiting."
    ),
    columns=(
        _START,
        _END,
        Column("name", "category", "Kernel, copy or operator name."),
        Column("kind", "int8", "An ActivityKind."),
        whole("stream", "Stream; on CPU, a thread index."),
        Column("device", "int32", "GPU index.", nullable=True),
        _CORRELATION,
        whole("bytes", "Bytes that a copy moves.", "B"),
        Column(
            "blocks",
            "int32",
            "Thread blocks in a kernel's grid, which is the size of its work.",
            nullable=True,
        ),
    ),
)

HOST = TableSchema(
    name="host",
    doc=(
        "Activity of the CPU threads: operators, runtime calls and annotations. Of Python frames "
        "only calls of an nn.Module."
    ),
    columns=(
        _START,
        _END,
        Column("name", "category", "Operator, call or annotation name."),
        Column(
            "category",
            "category",
            "cpu_op, runtime, driver, annotation, sync, python_function for the call of a module, "
            "or the category that the trace names.",
        ),
        Column("thread", "category", "Process and thread id, as pid/tid."),
        _CORRELATION,
        Column(
            name="sequence",
            dtype="int32",
            nullable=True,
            doc="Autograd's number of an operator, which its backward pass shares.",
        ),
        Column(
            name="inputs",
            dtype="category",
            nullable=True,
            doc="Sizes, types and values of an operator's inputs, three lists as JSON; not of "
            "operators that launch no kernel themselves.",
        ),
    ),
)

COLLECTIVES = TableSchema(
    name="collectives",
    doc="One row per communication operation of this rank, in order of start.",
    columns=(
        Column("start_ns", "int64", "Start of execution.", unit="ns"),
        Column("end_ns", "int64", "End of execution.", unit="ns"),
        Column(
            "is_timed",
            "bool",
            "Whether start and end are those of execution. False for sends and receives of "
            "gloo: only the time of posting is known, and both columns hold it.",
        ),
        whole(
            "enqueue_ns", "When the CPU requested it: the launch call or the c10d operator.", "ns"
        ),
        Column("kind", "int8", "A CollectiveKind."),
        Column("kind_origin", "int8", "An Origin: arguments or the kernel's name."),
        text("group", "Process group name."),
        text("group_desc", "Process group description."),
        text("group_ranks", "Global ranks of the group, as folded ranges such as 0-3,8."),
        Column("group_size", "int32", "Number of ranks in the group.", nullable=True),
        Column("group_origin", "int8", "An Origin for the group columns."),
        whole("seq", "Sequence number in the group."),
        text("dtype", "Element type as PyTorch names it."),
        whole("bytes", "Full (unsharded) buffer, as nccl-tests counts.", "B"),
        Column("bytes_origin", "int8", "An Origin for bytes."),
        Column("peer", "int32", "Global rank of the other end.", nullable=True),
        text("in_splits", "Input split sizes, 1,2,…"),
        text("out_splits", "Output split sizes."),
        whole("stream", "Stream it ran on."),
        _CORRELATION,
        Column("name", "category", "Name of the activity."),
    ),
)

STEPS = TableSchema(
    name="steps",
    doc="Training steps in order of time, or the whole capture if it has no step marks.",
    columns=(
        Column("step", "int64", "Step number of the profiler, otherwise 0, 1, 2, …"),
        _START,
        _END,
        Column("complete", "bool", "False if the capture cut the step."),
    ),
)

TABLES = (ACTIVITY, HOST, COLLECTIVES, STEPS)


class RankTables(msgspec.Struct, frozen=True, kw_only=True):
    """The tables of one rank.

    If only GPU rows were read, ``host`` is empty and ``has_host`` false. Otherwise ``host`` holds
    all calls and annotations, and the operators requested when the tables were loaded.
    """

    activity: Table
    host: Table
    collectives: Table
    steps: Table
    has_host: bool


def intervals_of(table: Table) -> Intervals:
    """The rows of a table as intervals, in row order."""
    return Intervals(table["start_ns"], table["end_ns"])


# Small codes for integer columns, without sorting the rows ----------------------------------------

Number = TypeVar("Number", bound=np.integer[Any])
_SMALL_TABLE = 1 << 10
_MAX_TABLE = 1 << 24  # entries of a lookup table; above this, rows are sorted


def among(values: Int64Array, ordered: Int64Array) -> Bools:
    """Whether each value is among others, which ascend."""
    if len(ordered) == 0:
        return np.zeros(len(values), dtype=np.bool_)
    at = np.minimum(np.searchsorted(ordered, values), len(ordered) - 1)
    found: Bools = ordered[at] == values
    return found


def distinct(values: NDArray[Number]) -> NDArray[Number]:
    """Distinct integers, ascending.

    Same as ``np.unique(values)``, whose first call imports ``numpy.ma``: a tenth of the start-up
    time of a process.
    """
    if len(values) == 0:
        return values
    if values.min() >= 0 and values.max() < 8 * len(values) + _SMALL_TABLE:
        used = np.zeros(int(values.max()) + 1, np.bool_)
        used[values] = True
        return np.flatnonzero(used).astype(values.dtype)
    ordered = np.sort(values)
    result: NDArray[Number] = ordered[np.append(True, ordered[1:] != ordered[:-1])]
    return result


def encode(values: NDArray[Any]) -> tuple[Int64Array, Int64Array]:
    """Distinct values, ascending, and the index of each row's value among them.

    Same as ``np.unique(values, return_inverse=True)``, but in linear time for small non-negative
    values such as ranks, groups and pairs of them.
    """
    largest = min(_MAX_TABLE, 8 * len(values) + _SMALL_TABLE)  # sizes in bytes are few and large
    if len(values) == 0 or values.min() < 0 or values.max() >= largest:
        distinct, code = np.unique(values, return_inverse=True)
        return distinct.astype(np.int64), code.astype(np.int64)
    used = np.zeros(int(values.max()) + 1, np.bool_)
    used[values] = True
    table = np.cumsum(used, dtype=np.int64) - 1
    return np.flatnonzero(used).astype(np.int64), table[values]


class DistinctRows:
    """Distinct rows of some columns, for one rank after another.

    Ranks of one program usually have the same rows, so the result of the last rank is reused as
    long as the columns stay the same.
    """

    def __init__(self) -> None:
        self._columns: Sequence[NDArray[Any]] = ()
        self._found: tuple[Int64Array, Int64Array] | None = None

    def of(self, columns: Sequence[NDArray[Any]]) -> tuple[Int64Array, Int64Array]:
        """First position of each distinct row, and the index of each row among them.

        Distinct rows are in ascending order of their values. Do not change the arrays.
        """
        if self._found is None or not all(map(np.array_equal, columns, self._columns)):
            self._columns, self._found = columns, self._of(columns)
        return self._found

    @staticmethod
    def _of(columns: Sequence[NDArray[Any]]) -> tuple[Int64Array, Int64Array]:
        code = np.zeros(len(columns[0]), dtype=np.int64)
        for column in columns:
            values, inverse = encode(column)
            code = encode(code * max(len(values), 1) + inverse)[1]
        first = np.empty(int(code.max(initial=-1)) + 1, np.int64)
        first[code[::-1]] = np.arange(len(code))[::-1]  # the last write wins: the first row
        return first, code


def same_as_before(*columns: NDArray[Any]) -> Bools:
    """Whether each row equals the one before it in every column."""
    same = np.ones(len(columns[0]), np.bool_)
    same[:1] = False
    for column in columns:
        same[1:] &= column[1:] == column[:-1]
    return same


def ends_of_runs(*columns: NDArray[Any]) -> Bools:
    """Whether each row is the last of a run of rows that are equal in every column."""
    return np.roll(~same_as_before(*columns), -1)


def runs_of(*columns: NDArray[Any]) -> tuple[Int64Array, Int64Array]:
    """Where each run of rows that are equal in every column begins, and its length."""
    begins = np.flatnonzero(~same_as_before(*columns))
    return begins, np.diff(begins, append=len(columns[0]))


def numbers_in(*columns: NDArray[Any]) -> Int64Array:
    """0, 1, 2, … among the rows that are equal in every column, in the order of the rows."""
    order = np.lexsort(columns[::-1])
    begins, lengths = runs_of(*(column[order] for column in columns))
    number = np.empty(len(order), np.int64)
    number[order] = np.arange(len(order)) - np.repeat(begins, lengths)
    return number


def order_of_codes(codes: Int64Array, count: int) -> Int64Array:
    """Rows in stable order of codes (0 to ``count - 1``), by a radix sort of 16 bits at a time."""
    order: Int64Array = np.argsort(codes.astype(np.uint16), kind="stable")
    for bits in range(16, (count - 1).bit_length(), 16):
        digit = (codes >> bits).astype(np.uint16)
        order = order[np.argsort(digit[order], kind="stable")]
    return order


def parts_by(values: NDArray[Any], rows: Int64Array) -> dict[int, Int64Array]:
    """The parts of ``rows`` with equal values, by ascending value; rows keep their order."""
    if not len(rows):
        return {}
    found, code = encode(values)
    parts = np.split(rows[order_of_codes(code, len(found))], np.cumsum(np.bincount(code))[:-1])
    return dict(zip(found.tolist(), parts, strict=True))


# Launch call of each GPU activity, joined by correlation id ---------------------------------------

NO_THREAD = -1
CALL_CATEGORIES = ("runtime", "driver")

MODULE_CATEGORY = "python_function"
"""Of the Python frames only calls of an ``nn.Module`` are rows."""


class Launches(msgspec.Struct, frozen=True, kw_only=True):
    """The launch call of each activity; arrays as long as the activities."""

    known: Bools  # Whether the launch was recorded. The other columns hold ABSENT if it was not.
    row: Int64Array  # Row of the call in HOST.
    start: Int64Array  # Start of the call.
    end: Int64Array  # End of the call.
    thread: NDArray[np.int32]  # Code of the calling thread in HOST's ``thread`` column.


def main_stream(work: Table) -> Bools:
    """Mask of the activities on the stream that computes most, or is busiest if none computes."""
    if len(work) == 0:
        return np.zeros(0, np.bool_)
    streams, which = encode(work["stream"] - ABSENT)  # from 0 on, which are encoded faster
    busy = (work["end_ns"] - work["start_ns"]).astype(np.float64)
    computing = work["kind"] == ActivityKind.COMPUTATION
    if computing.any():
        busy = np.where(computing, busy, 0.0)
    totals = np.bincount(which, weights=busy, minlength=len(streams))
    mask: Bools = which == int(totals.argmax())
    return mask


def join_launches(correlation: Int64Array, host: Table) -> Launches:
    """Find each activity's launch call.

    Several calls may have one correlation id (a runtime call and the driver call inside it). The
    earliest of them is the launch. Several activities may share a call, as in a graph launch. Ids
    that are not positive match nothing, since profilers write them for an unknown id.
    """
    known, row = _find_calls(correlation, host)
    if not known.any():
        absent = np.full(len(row), ABSENT, np.int64)
        thread = np.full(len(row), NO_THREAD, np.int32)
        return Launches(known=known, row=absent, start=absent, end=absent, thread=thread)
    unknown = ~known

    def of_call(values: NDArray[Number]) -> NDArray[Number]:
        found = values[row]
        found[unknown] = ABSENT
        return found

    return Launches(
        known=known,
        row=row,
        start=of_call(host["start_ns"]),
        end=of_call(host["end_ns"]),
        thread=of_call(host.coded("thread").codes),
    )


def have_launches(correlation: Int64Array, host: Table) -> Bools:
    """Mask of the activities whose launch call :func:`join_launches` finds."""
    return _find_calls(correlation, host)[0]


def _find_calls(correlation: Int64Array, host: Table) -> tuple[Bools, Int64Array]:
    """Whether each activity's launch call is known, and its row, ABSENT if unknown."""
    calls = _calls_by_correlation(host)
    if len(calls) == 0:
        return np.zeros(len(correlation), np.bool_), np.full(len(correlation), ABSENT, np.int64)
    ids = host["correlation"][calls]
    at = np.searchsorted(ids, correlation, side="left")
    np.minimum(at, len(ids) - 1, out=at)
    known = ids[at] == correlation
    del ids  # much larger than the result
    known &= correlation > 0
    row = calls[at].astype(np.int64)
    row[~known] = ABSENT
    return known, row


_calls_of: WeakKeyDictionary[Table, NDArray[np.int32]] = WeakKeyDictionary()


def _calls_by_correlation(host: Table) -> NDArray[np.int32]:
    """Rows of HOST that are calls with an id, in order of id, then start."""
    if (known := _calls_of.get(host)) is not None:
        return known
    is_call = host.coded("category").isin(CALL_CATEGORIES)
    is_call &= host["correlation"] > 0
    rows = np.flatnonzero(is_call).astype(np.int32)
    ids = host["correlation"][rows]
    if not (ids[1:] > ids[:-1]).all():
        order = np.argsort(ids, kind="stable")  # fast: ids ascend within each thread
        ordered = ids[order]
        if (ordered[1:] == ordered[:-1]).any():
            order = np.lexsort((host["start_ns"][rows], ids))
        rows = rows[order]
    _calls_of[host] = rows
    return rows
