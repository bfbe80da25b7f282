"""The intact trace that broken inputs start from, and ways to change it."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

Build = Callable[[Path], Path]
Trace = dict[str, Any]


class Outcome(Enum):
    """What must come of an input; a traceback never."""

    REFUSED = "exit code 3 and a sentence"
    TOLD = "a result, and the report says what was wrong"
    FINE = "the same numbers as from the intact trace"
    SALVAGED = "a result, and the report says what was lost; or a refusal"
    EITHER = "a result or a refusal"


@dataclass(frozen=True)
class Case:
    """One kind of broken input."""

    name: str
    outcome: Outcome
    build: Build


def intact(rank: int = 0, world_size: int = 1) -> Trace:
    """A valid trace: two steps, each with two kernels, a copy and an all-reduce."""
    events: list[Trace] = [
        {"ph": "M", "name": "process_name", "pid": 100, "tid": 0, "ts": 0, "args": {"name": "py"}}
    ]
    for step in range(2):
        at = 1000.0 * step
        span = {"name": f"ProfilerStep#{step + 3}", "ts": at, "dur": 900.5}
        events.append(event_of(cat="user_annotation", args={"External id": step}, **span))
        for number, name in enumerate(("gemm", "relu", "Memcpy HtoD", "ncclDevKernel_AllReduce")):
            events += _launched(name, at + 10.0 + 100 * number, 10 * step + number + 1)
    return {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "NVIDIA H100", "totalGlobalMem": 80_000_000_000}],
        "distributedInfo": _distributed(rank, world_size),
        "baseTimeNanoseconds": 1_700_000_000_000_000_000,
        "traceEvents": events,
        "traceName": "trace.json",
    }


def _distributed(rank: int, world_size: int) -> Trace:
    group = {"pg_name": "0", "pg_desc": "default_pg", "backend_config": "cuda:nccl"}
    return {
        "backend": "nccl",
        "rank": rank,
        "world_size": world_size,
        "pg_count": 1,
        "pg_config": [{**group, "ranks": list(range(world_size)), "pg_size": world_size}],
        "nccl_version": "2.27.5",
    }


def event_of(**fields: Any) -> Trace:
    return {"ph": "X", "pid": 100, "tid": 100, **fields}


def _launched(name: str, at: float, correlation: int) -> list[Trace]:
    is_copy, is_comm = name.startswith("Mem"), name.startswith("nccl")
    call = "cudaMemcpyAsync" if is_copy else "cudaLaunchKernel"
    args: Trace = {"stream": 20 if is_comm else 7, "correlation": correlation, "device": 0}
    if is_copy:
        args["bytes"] = 4096
    if is_comm:
        args |= {"Collective name": "allreduce", "In msg nelems": 1024, "Out msg nelems": 1024}
        args |= {"Group size": 1, "dtype": "Float", "Process Group Name": "0"}
        args |= {"Process Group Description": "default_pg", "Process Group Ranks": "[0]", "Seq": 1}
    return [
        event_of(cat="cpu_op", name="aten::op", ts=at - 5, dur=20.0, args={"External id": 7}),
        event_of(cat="cuda_runtime", name=call, ts=at, dur=5.25, args={"correlation": correlation}),
        {
            **event_of(name=name, ts=at + 8.125, dur=80.5, args=args),
            "cat": "gpu_memcpy" if is_copy else "kernel",
            "pid": 0,
            "tid": args["stream"],
        },
    ]


class Cases(list[Case]):
    """Cases in the order they were added."""

    def add(self, name: str, outcome: Outcome, build: Build) -> None:
        self.append(Case(name, outcome, build))


def content(data: bytes, name: str = "trace.json") -> Build:
    """A file of exactly ``data``."""

    def build(folder: Path) -> Path:
        path = folder / name
        path.write_bytes(data)
        return path

    return build


def dumped(value: Any) -> bytes:
    return json.dumps(value).encode()


def changed(change: Callable[[Trace], Any]) -> Build:
    """The intact trace after ``change``, which may edit it in place or return another value."""

    def build(folder: Path) -> Path:
        trace = intact()
        result = change(trace)
        return content(dumped(trace if result is None else result))(folder)

    return build


def text(old: bytes, new: bytes, *, count: int = 1) -> Build:
    """The intact trace with bytes replaced after it was written."""
    data = dumped(intact())
    if old not in data:
        raise ValueError(f"the intact trace has no {old!r}")
    return content(data.replace(old, new, count))


INTACT = dumped(intact())
PRETTY = json.dumps(intact(), indent=2).encode()
GZ = gzip.compress(INTACT, mtime=0)
NOISE = random.Random(7).randbytes(4096)
REFUSED, TOLD, FINE, SALVAGED, EITHER = Outcome
