"""Small traces written out by hand, and ways to lay them out as writers do."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

import numpy as np

from distprof.ingest.kineto.parsed import ParsedTrace
from distprof.ingest.kineto.reader import read_trace
from distprof.schema import Table

BASE_NS = 1_759_300_074_000_000_000

OPERATOR = {
    "ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 10, "tid": 11,
    "ts": 100.001, "dur": 20.5, "args": {"External id": 1, "Input Dims": [[2, 3], []]},
}  # fmt: skip
LAUNCH = {
    "ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 10, "tid": 11,
    "ts": 105.25, "dur": 3.0, "args": {"cbid": 211, "correlation": 77, "External id": 1},
}  # fmt: skip
FLOW = {"ph": "s", "id": 77, "pid": 10, "tid": 11, "ts": 105.25, "cat": "ac2g", "name": "ac2g"}
KERNEL = {
    "ph": "X", "cat": "kernel", "name": "gemm<float, 1>", "pid": 0, "tid": 7,
    "ts": 130.999, "dur": 40.001,
    "args": {"device": 0, "stream": 7, "correlation": 77, "grid": [1, 2, 3], "queued": 0},
}  # fmt: skip
COPY = {
    "ph": "X", "cat": "gpu_memcpy", "name": "Memcpy HtoD", "pid": 0, "tid": 22,
    "ts": 180.0, "dur": 2.002,
    "args": {"device": 0, "stream": 22, "correlation": 78, "bytes": 4096},
}  # fmt: skip
REDUCE = {
    "ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce", "pid": 0, "tid": 24,
    "ts": 190.5, "dur": 9.5,
    "args": {
        "device": 0, "stream": 24, "correlation": 79, "External id": 5,
        "Collective name": "allreduce", "In msg nelems": 1024, "Out msg nelems": 1024,
        "dtype": "Float", "Group size": 2, "Process Group Name": "0",
        "Process Group Description": "default_pg", "Process Group Ranks": "[0, 1]",
        "In split size": "[]", "Out split size": "[]",
    },
}  # fmt: skip
PARAMS = {
    "ph": "X", "cat": "cpu_op", "name": "record_param_comms", "pid": 10, "tid": 11,
    "ts": 110.0, "dur": 1.0,
    "args": {
        "External id": 5, "Collective name": "allreduce", "In msg nelems": "1024",
        "Process Group Ranks": [0, 1], "Seq": 3, "Comms Id": 98765432109876543210,
        "Input Dims": [[1024]],
    },
}  # fmt: skip
STEP = {
    "ph": "X", "cat": "user_annotation", "name": "ProfilerStep#4", "pid": 10, "tid": 11,
    "ts": 99.0, "dur": 150.0, "args": {"External id": 2},
}  # fmt: skip
FRAME = {
    "ph": "X", "cat": "python_function", "name": "train.py(3): main", "pid": 10, "tid": 11,
    "ts": 90.0, "dur": 500.0, "args": {"Python id": 1},
}  # fmt: skip
THREAD = {
    "name": "thread_name", "ph": "M", "ts": 90.0, "pid": 10, "tid": 11,
    "args": {"name": "thread 11 (python)"},
}  # fmt: skip

EVENTS: list[dict[str, Any]] = [
    OPERATOR, LAUNCH, FLOW, KERNEL, FRAME, COPY, REDUCE, PARAMS, STEP, THREAD,
]  # fmt: skip

METADATA: dict[str, Any] = {
    "schemaVersion": 1,
    "deviceProperties": [{"id": 0, "name": "GPU"}, {"id": 1, "name": "GPU"}],
    "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 2},
    "baseTimeNanoseconds": BASE_NS,
}


def _object(metadata_first: bool, **form: Any) -> Callable[[list[Any]], str]:
    def write(events: list[Any]) -> str:
        first, last = (METADATA, {}) if metadata_first else ({}, METADATA)
        return json.dumps({**first, "traceEvents": events, **last}, **form)

    return write


def _kineto(events: list[Any]) -> str:
    """Several keys a line, as Kineto wrote until 2026, the base at the end."""
    texts = []
    for event in events:
        rest = dict(event)
        args = rest.pop("args", None)
        times = {key: rest.pop(key) for key in ("ts", "dur") if key in rest}
        lines = [json.dumps(rest)[1:-1], json.dumps(times)[1:-1]]
        if args is not None:
            lines.append('"args": {\n      ' + json.dumps(args)[1:-1] + "\n    }")
        texts.append("  {\n    " + ",\n    ".join(lines) + "\n  }")
    metadata = json.dumps(METADATA, indent=2)[1:-1].rstrip()
    return '{\n  "traceEvents": [\n' + ",\n".join(texts) + "\n  ]," + metadata + "\n}\n"


def _one_key_a_line(events: list[Any]) -> str:
    """Kineto from 2026: a line for each key, a comma alone before the arguments."""
    texts = []
    for event in events:
        rest = dict(event)
        args = rest.pop("args", None)
        text = "  {\n    " + ",\n    ".join(json.dumps({k: v})[1:-1] for k, v in rest.items())
        if args is not None:
            text += '\n    ,\n    "args": {\n      ' + json.dumps(args)[1:-1] + "\n    }"
        texts.append(text + "\n  }")
    head = json.dumps(METADATA, indent=2)[:-1].rstrip()
    return head + ',\n  "traceEvents": [\n' + ",\n".join(texts) + '\n  ], "traceName": "t"\n}'


LAYOUTS: dict[str, Callable[[list[Any]], str]] = {
    "kineto": _kineto,
    "one key a line": _one_key_a_line,
    "compact": _object(True, separators=(",", ":")),
    "one line": _object(False),
    "indent 2": _object(False, indent=2),
    "indent 4": _object(True, indent=4),
    "tabs, crlf": lambda events: _object(True, indent="\t")(events).replace("\n", "\r\n"),
    "byte order mark": lambda events: "\ufeff" + _kineto(events),
}


def read_text(text: str | bytes, **options: Any) -> ParsedTrace:
    """Parse a text as if it were a file."""
    data = text if isinstance(text, bytes) else text.encode()
    return read_trace(io.BytesIO(data), **options)


def rows_of(table: Table) -> list[tuple[Any, ...]]:
    """The rows of a table, decoded, in order of start and name."""
    columns = [
        table.coded(column.name).decode()
        if column.dtype == "category"
        else table[column.name].tolist()
        for column in table.schema
    ]
    return sorted(zip(*columns, strict=True), key=repr)


def same_tables(one: ParsedTrace, other: ParsedTrace) -> bool:
    """Whether two results hold the same rows and metadata."""
    return (
        all(
            rows_of(getattr(one, name)) == rows_of(getattr(other, name))
            for name in ("activity", "host", "comm_args")
        )
        and one.thread_names == other.thread_names
        and (one.first_ns, one.last_ns) == (other.first_ns, other.last_ns)
    )


def total_ns(table: Table) -> int:
    """Sum of all durations, exactly."""
    return int(np.sum(table["end_ns"] - table["start_ns"]))
