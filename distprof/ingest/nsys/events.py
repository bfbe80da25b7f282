"""Convert rows of an export to torch.profiler events, one process at a time.

Source: NVIDIA, "Nsight Systems: SQLite Export Schema Reference" (CUPTI_ACTIVITY_KIND_…,
NVTX_EVENTS, StringIds, TARGET_INFO_…; process and thread of a globalTid); CUPTI,
``CUpti_ActivityMemcpyKind`` and ``CUpti_ActivityMemoryKind``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from distprof.ingest.kineto.made import StepRanges, on_device, on_host
from distprof.ingest.nsys.database import Database
from distprof.ingest.nsys.payloads import Calls, Payloads

KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
_RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"
_COPIES = "CUPTI_ACTIVITY_KIND_MEMCPY"
_SETS = "CUPTI_ACTIVITY_KIND_MEMSET"
_GRAPHS = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
_RANGES = "NVTX_EVENTS"
_DEVICE_TABLES = (KERNELS, _GRAPHS, _COPIES, _SETS)
_DEVICE_COLUMNS = ("start", "end", "deviceId", "streamId", "correlationId", "globalPid")
_PUSHED, _STARTED = 59, 60  # types of events of NVTX that are ranges
_MAX_PROCESSES = 4_096
_MAX_NAMES = 200_000
_MAX_NAME = 2_000
_LARGEST_NS = 1 << 62

_KINDS = {1: "HtoD", 2: "DtoH", 3: "HtoA", 4: "AtoH", 5: "AtoA", 6: "AtoD", 7: "DtoA", 8: "DtoD",
          9: "HtoH", 10: "PtoP"}  # fmt: skip
_PLACES = {1: "Pageable", 2: "Pinned", 3: "Device", 4: "Array", 5: "Managed", 6: "Device",
           7: "Managed"}  # fmt: skip
_ENDS = {"H": "Pinned", "D": "Device", "A": "Array", "P": "Device"}

_OPERATOR = re.compile(r"([\w:]{1,200}), (?:op_id|seq|sizes) = .*", re.DOTALL)
_VERSION = re.compile(r"_v\d{4,6}(?:_ptsz|_ptds)?$")


class Process(msgspec.Struct, frozen=True, kw_only=True):
    """A process that used a GPU."""

    number: int  # ``globalPid`` divided by 2²⁴, its number in the export.
    pid: int  # Process id.
    device: int  # Lowest number of the GPUs that it used.


def processes_of(database: Database) -> list[Process]:
    """Processes with kernels, ordered by GPU, then by process id."""
    found: dict[int, int] = {}
    for table in (KERNELS, _GRAPHS):
        if not set(_DEVICE_COLUMNS) <= database.columns(table):
            continue
        query = f"SELECT globalPid / 16777216, MIN(deviceId) FROM {table} GROUP BY 1 LIMIT ?"
        for number, device in database.rows(query, _MAX_PROCESSES):
            if isinstance(number, int) and isinstance(device, int):
                found[number] = min(found.get(number, device), device)
    made = [Process(number=n, pid=n % (1 << 24), device=device) for n, device in found.items()]
    return sorted(made, key=lambda one: (one.device, one.pid))


def head_of(database: Database) -> dict[str, Any]:
    """The header that Kineto writes before its events: start time, GPUs, host."""
    head: dict[str, Any] = {"schemaVersion": 1}
    start = _first(database, "TARGET_INFO_SESSION_START_TIME", "utcEpochNs")
    if isinstance(start, int) and 0 < start < _LARGEST_NS:
        head["baseTimeNanoseconds"] = start
    head["deviceProperties"] = list(_gpus(database))
    if {"name", "value"} <= database.columns("TARGET_INFO_SYSTEM_ENV"):
        query = "SELECT value FROM TARGET_INFO_SYSTEM_ENV WHERE name IN ('Hostname', 'HostName')"
        host = next(database.rows(query), (None,))[0]
        if isinstance(host, str):
            head["host_name"] = host[:200]
    return head


def events_of(database: Database, number: int) -> Iterator[bytes]:
    """Events of one process as JSON, in the order of the tables."""
    names = _Names(database)
    yield from _kernels(database, number, names)
    yield from _graphs(database, number)
    yield from _copies(database, number)
    yield from _sets(database, number)
    yield from _calls(database, number, names)
    yield from _ranges(database, number, names)


def _first(database: Database, table: str, column: str) -> Any:
    if column not in database.columns(table):
        return None
    return next(database.rows(f"SELECT {column} FROM {table} LIMIT 1"), (None,))[0]


def _gpus(database: Database) -> Iterator[dict[str, Any]]:
    known = database.columns("TARGET_INFO_GPU")
    wanted = {
        "id": "id",
        "name": "name",
        "totalMemory": "totalGlobalMem",
        "smCount": "numSms",
        "computeMajor": "computeMajor",
        "computeMinor": "computeMinor",
    }
    columns = [name for name in wanted if name in known]
    if not {"id", "name"} <= set(columns):
        return
    for row in database.rows(f"SELECT {', '.join(columns)} FROM TARGET_INFO_GPU LIMIT 1024"):
        properties = dict(zip(columns, row, strict=True))
        yield {
            wanted[name]: value[:200] if isinstance(value, str) else value
            for name, value in properties.items()
            if isinstance(value, int | str)
        }


class _Names:
    """Texts of StringIds as JSON, each looked up once."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._has_table = {"id", "value"} <= database.columns("StringIds")
        self._known: dict[tuple[Callable[[str], str] | None, Any], bytes] = {}

    def text(self, key: Any) -> str:
        """The text of a number; empty without one."""
        if not self._has_table or not isinstance(key, int):
            return ""
        query = "SELECT value FROM StringIds WHERE id = ?"
        found = next(self._database.rows(query, key), ("",))[0]
        return found[:_MAX_NAME] if isinstance(found, str) else ""

    def json(self, key: Any, change: Callable[[str], str] | None = None) -> bytes:
        """The text as JSON, after ``change`` is applied to it."""
        known = self._known.get((change, key))
        if known is None:
            text = self.text(key)
            known = msgspec.json.encode((change(text) if change else text) or "unknown")
            if len(self._known) < _MAX_NAMES:
                self._known[change, key] = known
        return known


def _device_rows(
    database: Database, table: str, number: int, *more: str
) -> Iterator[tuple[Any, ...]]:
    """Rows with valid times: start, end, device, stream, correlation, and further columns."""
    known = database.columns(table)
    if not {*_DEVICE_COLUMNS, *more} <= known:
        return
    columns = ", ".join(("start", '"end"', "deviceId", "streamId", "correlationId", *more))
    query = f"SELECT {columns} FROM {table} WHERE globalPid / 16777216 = ?"
    for row in database.rows(query, number):
        start, end, device, stream = row[:4]
        if (
            type(start) is type(end) is type(device) is type(stream) is int
            and -_LARGEST_NS < start < _LARGEST_NS
            and -_LARGEST_NS < end < _LARGEST_NS
        ):
            yield row


def _activity(category: bytes, name: bytes, row: tuple[Any, ...], num_bytes: Any = None) -> bytes:
    start, end, device, stream, correlation = row[:5]
    return on_device(
        category,
        name,
        start,
        end,
        device=device,
        stream=stream,
        correlation=correlation if type(correlation) is int else None,
        num_bytes=num_bytes if type(num_bytes) is int else None,
    )


def _kernels(database: Database, number: int, names: _Names) -> Iterator[bytes]:
    known = database.columns(KERNELS)
    column = next((name for name in ("demangledName", "shortName") if name in known), None)
    more = () if column is None else (column,)
    for row in _device_rows(database, KERNELS, number, *more):
        yield _activity(b"kernel", names.json(row[5] if more else None), row)


def _graphs(database: Database, number: int) -> Iterator[bytes]:
    """Graphs that were recorded as a whole, without their kernels."""
    for row in _device_rows(database, _GRAPHS, number):
        yield _activity(b"kernel", b'"CUDA graph"', row)


def _copies(database: Database, number: int) -> Iterator[bytes]:
    known = database.columns(_COPIES)
    more = [name for name in ("bytes", "copyKind", "srcKind", "dstKind") if name in known]
    for row in _device_rows(database, _COPIES, number, *more):
        details = dict(zip(more, row[5:], strict=True))
        kind = _KINDS.get(details.get("copyKind", 0), "Unknown")
        ends = [
            _PLACES.get(details.get(name, 0), _ENDS.get(kind[at], "Unknown"))
            for name, at in (("srcKind", 0), ("dstKind", -1))
        ]
        name = f'"Memcpy {kind} ({ends[0]} -> {ends[1]})"'.encode()
        yield _activity(b"gpu_memcpy", name, row, details.get("bytes"))


def _sets(database: Database, number: int) -> Iterator[bytes]:
    more = [name for name in ("bytes",) if name in database.columns(_SETS)]
    for row in _device_rows(database, _SETS, number, *more):
        yield _activity(b"gpu_memset", b'"Memset (Device)"', row, row[5] if more else None)


def _plain_call(name: str) -> str:
    """The name of a call without its version, such as ``_v7000``."""
    return _VERSION.sub("", name)


def _calls(database: Database, number: int, names: _Names) -> Iterator[bytes]:
    """Calls of the CUDA runtime and driver."""
    wanted = {"start", "end", "globalTid", "correlationId", "nameId"}
    if not wanted <= database.columns(_RUNTIME):
        return
    query = (
        f'SELECT start, "end", globalTid, correlationId, nameId FROM {_RUNTIME} '
        "WHERE globalTid / 16777216 = ?"
    )
    for start, end, thread, correlation, key in database.rows(query, number):
        if not type(start) is type(end) is type(correlation) is int:
            continue
        name = names.json(key, _plain_call)
        is_driver = name.startswith(b'"cu') and not name.startswith(b'"cuda')
        category = b"cuda_driver" if is_driver else b"cuda_runtime"
        yield _call(category, name, start, end, thread, correlation)


def _call(
    category: bytes,
    name: bytes,
    start: int,
    end: int,
    thread: int,
    correlation: int | None = None,
    arguments: bytes = b"",
) -> bytes:
    pid, tid = thread >> 24 & 0xFFFFFF, thread & 0xFFFFFF
    return on_host(
        category, name, start, end, pid=pid, tid=tid, correlation=correlation, told=arguments
    )


# NVTX ranges --------------------------------------------------------------------------------------


def _range_rows(database: Database, number: int) -> Iterator[tuple[int, int, int, Any, Any, Any]]:
    """Start, end, thread, text, text number and event number of each range that ended."""
    known = database.columns(_RANGES)
    if not {"start", "end", "globalTid", "eventType"} <= known:
        return
    text = "text" if "text" in known else "NULL"
    key = "textId" if "textId" in known else "NULL"
    event = "eventId" if "eventId" in known else "NULL"
    query = (
        f'SELECT start, "end", globalTid, {text}, {key}, {event} FROM {_RANGES} '
        f"WHERE globalTid / 16777216 = ? AND eventType IN ({_PUSHED}, {_STARTED})"
    )
    for row in database.rows(query, number):
        start, end, thread = row[:3]
        if type(start) is type(end) is type(thread) is int and 0 <= end - start < _LARGEST_NS:
            yield row


def _ranges(database: Database, number: int, names: _Names) -> Iterator[bytes]:
    """Events of ranges, and additional events with Kineto's names for steps and NCCL calls."""
    steps, calls = StepRanges(), Calls(Payloads(database, number))
    for start, end, thread, text, key, event in _range_rows(database, number):
        name = text[:_MAX_NAME] if isinstance(text, str) and text else names.text(key)
        operator = _OPERATOR.fullmatch(name)
        if operator is not None:  # written by torch.autograd.profiler.emit_nvtx
            name = operator[1]
        category = b"user_annotation" if operator is None else b"cpu_op"
        yield _call(category, msgspec.json.encode(name or "unknown"), start, end, thread)
        steps.note(name, start, end, thread)
        calls.note(name, start, end, thread, event)
    for call, arguments in calls.described():
        yield _call(
            b"cpu_op",
            b'"record_param_comms"',
            call.start,
            call.end,
            call.thread,
            arguments=arguments,
        )
    for step, start, end, thread in steps.chosen():
        yield _call(b"user_annotation", step, start, end, thread)
