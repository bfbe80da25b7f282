"""Ranks that compute on GPUs and communicate by gloo: the GPU idles while a CPU thread reduces."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

import distprof

MS = 1_000.0  # of trace files, whose unit is the microsecond


def event(name: str, category: str, start: float, end: float, **more: Any) -> dict[str, Any]:
    return {
        "ph": "X", "cat": category, "name": name, "pid": 1, "tid": 1,
        "ts": start, "dur": end - start, "args": {}, **more,
    }  # fmt: skip


def kernel(number: int, start: float, end: float) -> list[dict[str, Any]]:
    args = {"correlation": number, "stream": 7, "device": 0}
    return [
        event("gemm", "kernel", start, end, pid=0, tid=7, args=args),
        event("cudaLaunchKernel", "cuda_runtime", start - 10, start - 5, args=args),
    ]


def trace_of(rank: int, *, late: float) -> dict[str, Any]:
    """Three steps of 10 ms: 4 ms of a kernel, then an all-reduce until the step's end."""
    events = []
    for step in range(3):
        begin = 20 * MS + step * 10 * MS
        events += kernel(step + 1, begin + 50, begin + 4 * MS + late)
        asked = begin + 4 * MS + late
        shape = {"Input Dims": [[1024]], "Input type": ["float"]}
        events += [
            event(f"ProfilerStep#{step}", "user_annotation", begin, begin + 10 * MS),
            event("c10d::allreduce_", "cpu_op", asked, asked + 20, args=shape),
            event(
                "gloo:all_reduce", "user_annotation", asked + 30, begin + 9 * MS, tid=9, args=shape
            ),
        ]
    job = {"backend": "gloo", "rank": rank, "world_size": 2, "pg_count": 1}
    group = {"pg_name": "0", "pg_desc": "default_pg", "pg_size": 2, "ranks": [0, 1]}
    return {
        "deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}],
        "distributedInfo": {**job, "pg_config": [group | {"backend_config": "gloo"}]},
        "traceEvents": events,
    }


def test_what_gloo_executes_for_a_gpu_is_exposed_communication(tmp_path: Path) -> None:
    """Rank 1 computes 1 ms longer, so rank 0 waits 1 ms, and 3.97 ms of transfer are exposed."""
    for rank in range(2):
        text = json.dumps(trace_of(rank, late=rank * MS))
        (tmp_path / f"rank{rank}.json.gz").write_bytes(gzip.compress(text.encode()))

    report = distprof.analyze(tmp_path, debug=True)

    total, num_samples = report.waterfall.all, 2 * 3
    assert total.exposed_transfer_ns / num_samples == pytest.approx(3_970_000, rel=1e-3)
    assert total.exposed_wait_ns / num_samples == pytest.approx(500_000, rel=1e-3)
    assert "COM124" in {finding.code for finding in report.findings}
