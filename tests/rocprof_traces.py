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


# The same as a Perfetto trace ---------------------------------------------------------------------

BOOT = 6  # clock of the packets


class Perfetto:
    """Writes packets as Perfetto's SDK does: names are interned, per sequence, when first used.

    Args:
        definitions: Perfetto's messages, of its own package.
    """

    def __init__(self, definitions: Any, *, sequence: int = 1) -> None:
        self.trace = definitions.Trace()
        self._sequence = sequence
        self._known: dict[tuple[str, str], int] = {}
        packet = self._packet()
        packet.sequence_flags = 1
        packet.trace_packet_defaults.timestamp_clock_id = BOOT

    def _packet(self) -> Any:
        packet = self.trace.packet.add()
        packet.trusted_packet_sequence_id = self._sequence
        return packet

    def forget(self) -> None:
        """Begin again with no name known, as after a lost packet."""
        self._known.clear()
        self._packet().sequence_flags = 1

    def process(self, pid: int) -> None:
        track = self._packet().track_descriptor
        track.uuid, track.process.pid = 99, pid

    def track(self, number: int, name: str) -> None:
        track = self._packet().track_descriptor
        track.uuid, track.name = number, name

    def _number(self, packet: Any, table: str, text: str) -> int:
        found = self._known.get((table, text))
        if found is None:
            found = self._known[table, text] = len(self._known) + 1
            entry = getattr(packet.interned_data, table).add()
            entry.iid, entry.name = found, text
        return found

    def slice(
        self, category: str, name: str, track: int, start: int, end: int, **told: Any
    ) -> None:
        packet = self._packet()
        packet.timestamp, packet.sequence_flags = start, 2
        event = packet.track_event
        event.type, event.track_uuid = event.TYPE_SLICE_BEGIN, track
        event.category_iids.append(self._number(packet, "event_categories", category))
        event.name_iid = self._number(packet, "event_names", name)
        event.flow_ids.append(told.get("corr_id", 0))
        for key, value in {"begin_ns": start, "end_ns": end, **told}.items():
            said = event.debug_annotations.add()
            said.name_iid = self._number(packet, "debug_annotation_names", key)
            if isinstance(value, str):
                said.string_value = value
            else:
                said.uint_value = value
        packet = self._packet()
        packet.timestamp = end
        packet.track_event.type, packet.track_event.track_uuid = 2, track


def perfetto_of(tool: dict[str, Any], definitions: Any, *, by_queue: bool = False) -> Perfetto:
    """The same records of one process as a Perfetto trace."""
    out = Perfetto(definitions)
    out.process(tool["metadata"]["pid"])
    records, tracks = tool["buffer_records"], dict[str, int]()

    def track(name: str) -> int:
        if name not in tracks:
            tracks[name] = 1_000 + len(tracks)
            out.track(tracks[name], name)
        return tracks[name]

    def place(record: dict[str, Any], agent: int, stream: int, what: str) -> int:
        kind = "GPU" if agent >= 0xA0 else "CPU"
        node = agent - 0xA0 + 2 if agent >= 0xA0 else 0  # two CPUs come first
        queue = "QUEUE" if what == "COMPUTE" else "THREAD"
        return track(f"{what} AGENT [{node}] {queue if by_queue else 'STREAM'} [{stream}] ({kind})")

    symbols = {one["kernel_id"]: one["formatted_kernel_name"] for one in tool["kernel_symbols"]}
    kinds = tool["strings"]["buffer_records"]
    texts = {one["key"]: one["value"] for one in tool["strings"]["marker_api"]}
    streams: dict[int, int] = {}
    kernels = []
    for record in records["kernel_dispatch"]:
        info = record["dispatch_info"]
        queue, agent = info["queue_id"]["handle"], info["agent_id"]["handle"]
        stream = streams.setdefault(queue, len(streams))
        where = place(record, agent, stream, "COMPUTE")
        more = {"agent": f"Agent-{agent - 0xA0 + 2}", "queue": queue}
        kernels.append((record, symbols.get(info["kernel_id"], ""), where, more))
    copies = [
        (record, kinds[3]["operations"][record["operation"]],
         place(record, record["dst_agent_id"]["handle"], 0, "COPY to"),
         {"copy_bytes": record["bytes"], "src_agent": "Agent-0", "dst_agent": "Agent-2"})
        for record in records["memory_copy"]
    ]  # fmt: skip
    calls = [(r, kinds[1]["operations"][r["operation"]], 1, {}) for r in records["hip_api"]]
    marks = [(r, texts[r["correlation_id"]["internal"]], 1, {}) for r in records["marker_api"]]
    parts = {"hip_api": calls, "marker_api": marks, "memory_copy": copies}
    for category, rows in {**parts, "kernel_dispatch": kernels}.items():
        for record, name, where, more in rows:
            out.slice(
                category, name, where, record["start_timestamp"], record["end_timestamp"],
                tid=record["thread_id"], corr_id=record["correlation_id"]["internal"], **more,
            )  # fmt: skip
    return out
