"""Operation timelines of what-if straggler studies: a list of Chrome events, gzipped or not.

The layout is that of ByteDance-Seed/StragglerAnalysis, which renders its operation tables in this
form: the process is the data-parallel index, the name of the thread is ``PP rank 3, TP rank 0,
compute``, and ``args`` hold ``step``, ``model_chunk``, ``mb_id`` and ``seq_id``. The operations are
those of the table (:mod:`.operation_table`) and are read the same way.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import msgspec
import numpy as np

from distprof.bounds import Bound
from distprof.errors import InputError
from distprof.ingest.files import beginning, decoded
from distprof.ingest.kinds.operation_table import JobSizes, log_of_columns
from distprof.ingest.source import Source
from distprof.run.evidence import OperationLog
from distprof.schema import Coded

ORIGIN = "operation timeline"
BOUND = Bound(
    reads=f"an {ORIGIN}", num_bytes=500_000_000, rows=1_000_000, depth=1_000, beyond="refused"
)
_MOST_PARTS = 20  # values per event
_SNIFFED_BYTES = 1 << 13
_SIGNS = (b'"model_chunk"', b'"mb_id"', b'"seq_id"', b'"step"')
_STAGE = re.compile(r"PP rank (\d{1,4}), TP rank (\d{1,4}),")
_LABELS = ("step", "model_chunk", "mb_id", "seq_id")


class _Event(msgspec.Struct):
    """The fields of an event that are read."""

    ph: str
    name: str
    pid: int
    tid: int = -1
    ts: float = 0.0
    dur: float = 0.0
    args: dict[str, Any] = {}


def fits_operation_timeline(source: str) -> bool:
    """Whether a file begins like such a timeline; never raises for other files."""
    start = beginning(source, _SNIFFED_BYTES, endings=(".json", ".json.gz"))
    return start.lstrip().startswith(b"[") and all(sign in start for sign in _SIGNS)


def read_operation_timeline(source: str) -> OperationLog:
    """Read an operation timeline."""
    events = decoded(source, BOUND, list[_Event], _refuse, _MOST_PARTS)
    if BOUND.rows is not None and len(events) > BOUND.rows:
        _refuse(source, f"{len(events):,} events, more than {BOUND.rows:,}")
    if any(not 0 <= event.pid < 1 << 20 for event in events):
        _refuse(source, "a process id that is not a data-parallel index")
    stages = _stages(source, events)
    operations = [event for event in events if event.ph == "X"]
    if not operations:
        _refuse(source, "no operation")
    unnamed = sum((event.pid, event.tid) not in stages for event in operations)
    if unnamed:
        _refuse(source, f"{unnamed:,} operations on threads without a stage in their names")
    return log_of_columns(source, _columns(operations, stages), ORIGIN, JobSizes(mesh={}))


def _columns(operations: Sequence[_Event], stages: Mapping[tuple[int, int], int]) -> dict[str, Any]:
    """The columns of an operation table; times in seconds."""
    stage = np.array([stages[event.pid, event.tid] for event in operations], np.int64)
    dp_rank = np.array([event.pid for event in operations], np.int64)
    labels = {
        name: np.array([_label(event.args.get(name)) for event in operations], np.int64)
        for name in _LABELS
    }
    kinds = sorted({event.name[:200] for event in operations})
    codes = {name: code for code, name in enumerate(kinds)}
    return {
        "dp_rank": dp_rank,
        "stage": stage,
        "rank": stage * (int(dp_rank.max()) + 1) + dp_rank,
        "step": labels["step"],
        "optype": Coded(
            np.array([codes[event.name[:200]] for event in operations], np.int32), tuple(kinds)
        ),
        "start_ts": np.array([event.ts for event in operations], np.float64) / 1e6,
        "duration": np.array([event.dur for event in operations], np.float64) / 1e6,
        "seq_id": labels["seq_id"],
        "mc": labels["model_chunk"],
        "mb_id": labels["mb_id"],
    }


def _label(value: Any) -> int:
    """A number of an operation; -1 if it has none."""
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    return value if is_whole and -1 <= value < 1 << 31 else -1


def _stages(source: str, events: Sequence[_Event]) -> dict[tuple[int, int], int]:
    """Process and thread to the stage in the thread's name."""
    stages: dict[tuple[int, int], int] = {}
    for event in events:
        if event.ph != "M" or event.name != "thread_name":
            continue
        match = _STAGE.match(str(event.args.get("name", ""))[:200])
        if match is not None and int(match[2]):
            _refuse(source, "operations of several tensor-parallel ranks")
        if match is not None:
            stages[event.pid, event.tid] = int(match[1])
    return stages


def _refuse(source: str, found: str) -> NoReturn:
    raise InputError(
        source,
        expected="a list of Chrome events, one per operation, on threads named after their stage",
        found=found,
        fix="analyse the operation table behind the timeline instead",
    )


SOURCE = Source(
    bound=BOUND,
    place=30,
    origin=ORIGIN,
    fits=fits_operation_timeline,
    read=read_operation_timeline,
    notes="assumed",
)
