"""Exports of Nsight Systems, generated: databases with the tables and columns of its schema.

Source of the schema: NVIDIA, "Nsight Systems: SQLite Export Schema Reference", 2024.5.
"""

from __future__ import annotations

import gzip
import json
import re
import sqlite3
from pathlib import Path
from typing import Any

SCHEMA = """
CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE TARGET_INFO_SYSTEM_ENV (globalVid INTEGER, devStateName TEXT NOT NULL,
  name TEXT NOT NULL, nameEnum INTEGER NOT NULL, value TEXT NOT NULL);
CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INTEGER, utcTime TEXT, localTime TEXT);
CREATE TABLE TARGET_INFO_GPU (vmId INTEGER NOT NULL, id INTEGER NOT NULL, name TEXT,
  busLocation TEXT, totalMemory INTEGER, smCount INTEGER, computeMajor INTEGER,
  computeMinor INTEGER);
CREATE TABLE NVTX_EVENTS (start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL,
  rangeId INTEGER, category INTEGER, color INTEGER, text TEXT, globalTid INTEGER,
  endGlobalTid INTEGER, textId INTEGER, domainId INTEGER, uint64Value INTEGER, jsonText TEXT);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER NOT NULL, end INTEGER NOT NULL,
  eventClass INTEGER NOT NULL, globalTid INTEGER, correlationId INTEGER, nameId INTEGER NOT NULL,
  returnValue INTEGER NOT NULL, callchainId INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER NOT NULL, end INTEGER NOT NULL,
  deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL, greenContextId INTEGER,
  streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER,
  demangledName INTEGER NOT NULL, shortName INTEGER NOT NULL, mangledName INTEGER,
  gridX INTEGER NOT NULL, gridY INTEGER NOT NULL, gridZ INTEGER NOT NULL);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INTEGER NOT NULL, end INTEGER NOT NULL,
  deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL, streamId INTEGER NOT NULL,
  correlationId INTEGER, globalPid INTEGER, bytes INTEGER NOT NULL, copyKind INTEGER NOT NULL,
  srcKind INTEGER, dstKind INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMSET (start INTEGER NOT NULL, end INTEGER NOT NULL,
  deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL, streamId INTEGER NOT NULL,
  correlationId INTEGER, globalPid INTEGER, value INTEGER NOT NULL, bytes INTEGER NOT NULL);
"""
_KINDS = {"HtoD": 1, "DtoH": 2, "DtoD": 8}
_PLACES = {"Pageable": 1, "Pinned": 2, "Device": 3}
_COPY = re.compile(r"Memcpy (\w+) \((\w+) -> (\w+)\)")


class Export:
    """A database that is filled row by row.

    Args:
        path: Where it is made.
        host: Host name.
        gpus: Names of GPUs.
        start_ns: Start of the session, since the epoch.
    """

    def __init__(
        self,
        path: Path,
        *,
        host: str = "node-1",
        gpus: tuple[str, ...] = ("NVIDIA H100 80GB HBM3",) * 8,
        start_ns: int = 1_740_327_858_000_000_000,
    ) -> None:
        self._db = sqlite3.connect(path)
        self._db.executescript(SCHEMA)
        self._ids: dict[str, int] = {}
        self._insert("TARGET_INFO_SESSION_START_TIME", start_ns, "", "")
        self._insert("TARGET_INFO_SYSTEM_ENV", 0, "", "Hostname", 0, host)
        for index, name in enumerate(gpus):
            self._insert("TARGET_INFO_GPU", 0, index, name, "", 80 << 30, 132, 9, 0)

    def _insert(self, table: str, *values: Any) -> None:
        self._db.execute(f"INSERT INTO {table} VALUES ({','.join('?' * len(values))})", values)

    def _text(self, text: str) -> int:
        if text not in self._ids:
            self._ids[text] = len(self._ids) + 1
            self._insert("StringIds", self._ids[text], text)
        return self._ids[text]

    @staticmethod
    def process(pid: int) -> int:
        """``globalPid`` on a machine whose upper bits are set, as real ones are."""
        return (1 << 48) | (pid << 24)

    def kernel(
        self, pid: int, name: str, start: int, end: int, *, device: int, stream: int, number: int
    ) -> None:
        key = self._text(name)
        self._insert(
            "CUPTI_ACTIVITY_KIND_KERNEL", start, end, device, 1, None, stream, number,
            self.process(pid), key, key, key, 1, 1, 1,
        )  # fmt: skip

    def call(self, pid: int, tid: int, name: str, start: int, end: int, number: int) -> None:
        thread = self.process(pid) | tid
        key = self._text(f"{name}_v3020")
        self._insert("CUPTI_ACTIVITY_KIND_RUNTIME", start, end, 0, thread, number, key, 0, None)

    def copy(
        self, pid: int, name: str, start: int, end: int, *, device: int, stream: int, number: int,
        num_bytes: int,
    ) -> None:  # fmt: skip
        kind, source, target = _COPY.match(name).groups()  # type: ignore[union-attr]
        self._insert(
            "CUPTI_ACTIVITY_KIND_MEMCPY", start, end, device, 1, stream, number, self.process(pid),
            num_bytes, _KINDS[kind], _PLACES[source], _PLACES[target],
        )  # fmt: skip

    def fill(
        self, pid: int, start: int, end: int, *, device: int, stream: int, number: int, size: int
    ) -> None:
        self._insert(
            "CUPTI_ACTIVITY_KIND_MEMSET", start, end, device, 1, stream, number, self.process(pid),
            0, size,
        )  # fmt: skip

    def range(
        self, pid: int, tid: int, name: str, start: int, end: int, *, by_id: bool = True
    ) -> None:
        text, key = (None, self._text(name)) if by_id else (name, None)
        thread = self.process(pid) | tid
        self._insert(
            "NVTX_EVENTS", start, end, 59, None, None, None, text, thread, None, key, 0, None, None,
        )  # fmt: skip

    def close(self) -> None:
        self._db.commit()
        self._db.close()


def add_kineto(export: Export, trace: Path, pid: int, *, device: int | None = None) -> None:
    """What a trace of torch.profiler holds that Nsight Systems records too.

    Args:
        export: Where to.
        trace: The trace, gzipped or not.
        pid: Process id in the export.
        device: GPU in the export; the trace's own by default.
    """
    data = trace.read_bytes()
    said = json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
    for event in said["traceEvents"]:
        if event.get("ph") != "X":
            continue
        category, name, told = event.get("cat"), event["name"], event.get("args", {})
        start = round(event["ts"] * 1_000)
        end = start + round(event["dur"] * 1_000)
        if category in ("kernel", "gpu_memcpy", "gpu_memset"):
            place = {
                "device": told["device"] if device is None else device,
                "stream": told["stream"],
                "number": told["correlation"],
            }
            if category == "kernel":
                export.kernel(pid, name, start, end, **place)
            elif category == "gpu_memcpy":
                export.copy(pid, name, start, end, num_bytes=told["bytes"], **place)
            else:
                export.fill(pid, start, end, size=told["bytes"], **place)
        elif category in ("cuda_runtime", "cuda_driver"):
            tid = int(event["tid"]) & 0xFFFFFF
            export.call(pid, tid, name, start, end, told["correlation"])
        elif category == "user_annotation":
            step = name.replace("ProfilerStep#", "step ")
            tid = int(event["tid"]) & 0xFFFFFF
            export.range(pid, tid, step, start, end, by_id=start % 2 == 0)
