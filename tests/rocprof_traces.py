"""JSON of rocprofv3, generated from traces of torch.profiler: what both record is the same."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

KINDS = ["NONE", "HIP_RUNTIME_API", "MARKER_CORE_RANGE_API", "MEMORY_COPY", "KERNEL_DISPATCH"]
COPIES = ["MEMORY_COPY_NONE", "MEMORY_COPY_HOST_TO_HOST", "MEMORY_COPY_HOST_TO_DEVICE",
          "MEMORY_COPY_DEVICE_TO_HOST", "MEMORY_COPY_DEVICE_TO_DEVICE"]  # fmt: skip
WAYS = {"HtoH": 1, "HtoD": 2, "DtoH": 3, "DtoD": 4}


def tool_of(trace: Path, *, host: str = "node-1", pid: int = 77) -> dict[str, Any]:
    """The entry of one process."""
    data = trace.read_bytes()
    said = json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
    kernels: dict[str, int] = {}
    calls: dict[str, int] = {}
    texts: list[dict[str, Any]] = []
    records: dict[str, list[dict[str, Any]]] = {
        "kernel_dispatch": [], "memory_copy": [], "hip_api": [], "marker_api": [],
    }  # fmt: skip
    for event in said["traceEvents"]:
        if event.get("ph") != "X":
            continue
        told, start = event.get("args", {}), round(event["ts"] * 1_000)
        record: dict[str, Any] = {
            "size": 64, "start_timestamp": start,
            "end_timestamp": start + round(event["dur"] * 1_000),
            "correlation_id": {"internal": told.get("correlation", 0), "external": 0},
            "thread_id": int(event["tid"]) if str(event["tid"]).isdigit() else 0,
        }  # fmt: skip
        name = event["name"]
        if event["cat"] == "kernel":
            info = {
                "size": 64, "agent_id": {"handle": 0xA0 + told["device"]},
                "queue_id": {"handle": 0x7F00_0000_0000 + told["stream"]},
                "kernel_id": kernels.setdefault(name, len(kernels)), "dispatch_id": 1,
            }  # fmt: skip
            records["kernel_dispatch"].append({**record, "kind": 4, "dispatch_info": info})
        elif event["cat"] == "gpu_memcpy":
            records["memory_copy"].append(
                {
                    **record, "kind": 3, "operation": WAYS[name.split()[1]],
                    "bytes": told.get("bytes", 0), "src_agent_id": {"handle": 1},
                    "dst_agent_id": {"handle": 0xA0 + told["device"]},
                }
            )  # fmt: skip
        elif event["cat"] == "cuda_runtime":
            number = calls.setdefault(name, len(calls))
            records["hip_api"].append({**record, "kind": 1, "operation": number})
        elif event["cat"] == "user_annotation":
            key = 1_000_000_000 + len(texts)
            texts.append({"key": key, "value": name.replace("ProfilerStep#", "step ")})
            marker = {**record, "correlation_id": {"internal": key, "external": 0}}
            records["marker_api"].append({**marker, "kind": 2, "operation": 0})
    operations = [[], list(calls), ["roctxThreadRangeA"], COPIES, []]
    return {
        "metadata": {"pid": pid, "node": {"hostname": host}},
        "agents": [
            {"id": {"handle": 1}, "type": 1, "name": "CPU", "logical_node_id": 0},
            *(
                {"id": {"handle": 0xA0 + gpu}, "type": 2, "name": "gfx90a", "logical_node_id": gpu,
                 "product_name": "AMD Instinct MI250X"}
                for gpu in range(8)
            ),
        ],
        "strings": {
            "buffer_records": [
                {"kind": kind, "operations": names}
                for kind, names in zip(KINDS, operations, strict=True)
            ],
            "marker_api": texts,
        },
        "kernel_symbols": [
            {"kernel_id": number, "formatted_kernel_name": name} for name, number in kernels.items()
        ],
        "buffer_records": records,
    }  # fmt: skip


def write(path: Path, *tools: dict[str, Any]) -> Path:
    """A file of one or several processes."""
    path.write_text(json.dumps({"rocprofiler-sdk-tool": list(tools)}))
    return path
