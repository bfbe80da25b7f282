"""Exports of Nsight Systems: their processes, and the trace of each as torch.profiler events.

Communicator and message size of NCCL calls come from NVTX payloads. An export made with
``--dynamic-tables=all`` has a separate table for each payload schema, with a column for each field.
Other exports store payloads as bytes (``NVTX_EVENTS.binaryData``) in a format that NVIDIA does not
publish, so these are not read.

Calls between ``ncclGroupStart`` and ``ncclGroupEnd`` launch nothing themselves, as the end of the
group does. A group with one call counts as that call. In a group with several calls, it is unknown
which kernel belongs to which call.

Source: NVIDIA, "Nsight Systems: SQLite Export Schema Reference" of 2026.4, schema 3.28.1
(``CUPTI_ACTIVITY_KIND_…``, ``NVTX_EVENTS``, ``StringIds``, ``TARGET_INFO_…``; process and thread of
a globalTid; ``NVTX_EVENTS_PAYLOAD_SCHEMAS``, ``NVTX_EXPORT_TRANSLATION``,
``DYNAMIC_NVTXPAYLOAD_DATATYPE_<globalPid>_<domainId>_<schemaId>``); CUPTI,
``CUpti_ActivityMemcpyKind`` and ``CUpti_ActivityMemoryKind``; NVIDIA/nccl,
``src/include/nvtx_payload_schemas.h`` (names of fields), ``src/collectives.cc`` (message sizes).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from distprof.bounds import Bound
from distprof.errors import InputError
from distprof.ingest.collectives.sizes import COUNTED_IN_BYTES
from distprof.ingest.kineto.made import StepRanges, on_device, on_host, opened_events
from distprof.ingest.nsys.database import EXPECTED, Database, is_database, opened_database

ENDINGS = (".sqlite", ".sqlite3")
"""Endings of the names of exports in a folder."""

BOUND = Bound(
    reads="an export of Nsight Systems",
    num_bytes=1 << 40,
    rows=1 << 24,
    names=200_000,
    beyond="skipped",
    seconds_per_mb=3,
)


def processes_in(path: str | Path) -> list[Process]:
    """Processes of an export, each of which is a rank.

    Raises:
        InputError: If it is not an export, or has no kernel.
    """
    with opened_database(path) as database:
        found = processes_of(database)
    if not found:
        raise InputError(
            str(path),
            expected=EXPECTED,
            found="a database without kernels",
            fix="record with nsys profile --trace=cuda,nvtx, and export the report again",
        )
    return found


def why_not_an_export(path: str | Path) -> str:
    """Why a file is not an export with kernels; empty if it is one."""
    if not is_database(path):
        return "a file other than an SQLite database"
    try:
        processes_in(path)
    except InputError as error:
        return error.found
    return ""


@contextmanager
def opened_process(path: str | Path, number: int) -> Iterator[BinaryIO]:
    """The trace of one process, to be read once from start to end.

    Raises:
        InputError: If the file is not a database.
    """
    with opened_database(path) as database:
        head, events = head_of(database), events_of(database, number)
        with opened_events(head, events) as stream:
            yield stream


_KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
_RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"
_COPIES = "CUPTI_ACTIVITY_KIND_MEMCPY"
_SETS = "CUPTI_ACTIVITY_KIND_MEMSET"
_GRAPHS = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
_RANGES = "NVTX_EVENTS"
_DEVICE_COLUMNS = ("start", "end", "deviceId", "streamId", "correlationId", "globalPid")
_PUSHED, _STARTED = 59, 60  # types of events of NVTX that are ranges
_MAX_PROCESSES = 4_096
_MAX_NAMES = 200_000
_MAX_NAME = 2_000
_LARGEST = 1 << 62  # ns or bytes

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
    for table in (_KERNELS, _GRAPHS):
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
    if "utcEpochNs" in database.columns("TARGET_INFO_SESSION_START_TIME"):
        query = "SELECT utcEpochNs FROM TARGET_INFO_SESSION_START_TIME LIMIT 1"
        start = next(database.rows(query), (None,))[0]
        if isinstance(start, int) and 0 < start < _LARGEST:
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
        self._known: dict[tuple[bool, Any], bytes] = {}

    def text(self, key: Any) -> str:
        """The text of a number; empty without one."""
        if not self._has_table or not isinstance(key, int):
            return ""
        query = "SELECT value FROM StringIds WHERE id = ?"
        found = next(self._database.rows(query, key), ("",))[0]
        return found[:_MAX_NAME] if isinstance(found, str) else ""

    def json(self, key: Any, *, is_call: bool = False) -> bytes:
        """The text as JSON; that of a call without its version, such as ``_v7000``."""
        known = self._known.get((is_call, key))
        if known is None:
            text = _VERSION.sub("", self.text(key)) if is_call else self.text(key)
            known = msgspec.json.encode(text or "unknown")
            if len(self._known) < _MAX_NAMES:
                self._known[is_call, key] = known
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
            and -_LARGEST < start < _LARGEST
            and -_LARGEST < end < _LARGEST
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
    known = database.columns(_KERNELS)
    column = next((name for name in ("demangledName", "shortName") if name in known), None)
    more = () if column is None else (column,)
    for row in _device_rows(database, _KERNELS, number, *more):
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


def _calls(database: Database, number: int, names: _Names) -> Iterator[bytes]:
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
        name = names.json(key, is_call=True)
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
        if type(start) is type(end) is type(thread) is int and 0 <= end - start < _LARGEST:
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


# Payloads of NCCL calls ---------------------------------------------------------------------------

_LINKS, _NAMES = "NVTX_EVENTS_PAYLOAD_SCHEMAS", "NVTX_EXPORT_TRANSLATION"
_TABLE = "DYNAMIC_NVTXPAYLOAD_DATATYPE"
_COMMUNICATOR, _SIZE, _RANKS = "NCCL communicator ID", "Message size [bytes]", "No. of ranks"
_COLUMN = re.compile(r"[A-Za-z_]\w{0,200}", re.ASCII)
_MOST_TABLES = 4_096
_MOST_PAYLOADS = 1 << 20
_MOST_CALLS = 1 << 20

_OPERATIONS = {
    "ncclAllReduce": ("allreduce", "In"),
    "ncclAllGather": ("allgather", "In"),
    "ncclReduceScatter": ("reduce_scatter", "Out"),
    "ncclBroadcast": ("broadcast", "In"),
    "ncclBcast": ("broadcast", "In"),
    "ncclReduce": ("reduce", "In"),
    "ncclSend": ("send", "In"),
    "ncclRecv": ("recv", "Out"),
}
"""NCCL function to the operation, and the buffer that the size refers to: one rank's part."""

_BEGIN, _END = "ncclGroupStart", "ncclGroupEnd"


class Payloads:
    """Payloads of one process."""

    def __init__(self, database: Database, number: int) -> None:
        self._database = database
        self._of_event: dict[int, tuple[int, int]] = {}
        self._num_ranks: dict[int, int] = {}
        if {"globalPid", "domainId", "payloadSchemaID"} <= database.columns(_LINKS):
            columns = self._columns()
            for table in self._tables(number) if columns else ():
                self._read(table, columns)

    def of_event(self, event: Any) -> tuple[int, int] | None:
        """Communicator and message size in bytes; None if the event has no payload with them."""
        return self._of_event.get(event) if type(event) is int else None

    def num_ranks(self, communicator: int) -> int | None:
        """Ranks of a communicator; None if it was created before the recording."""
        return self._num_ranks.get(communicator)

    def _columns(self) -> dict[str, set[str]]:
        """NCCL's name of a field to the columns that hold it."""
        if not {"originalName", "sanitizedName"} <= self._database.columns(_NAMES):
            return {}
        found: dict[str, set[str]] = {}
        which = "originalName IN (?, ?, ?) LIMIT ?"
        query = f"SELECT originalName, sanitizedName FROM {_NAMES} WHERE {which}"
        wanted = (_COMMUNICATOR, _SIZE, _RANKS, _MOST_TABLES)
        for original, name in self._database.rows(query, *wanted):
            if isinstance(name, str) and _COLUMN.fullmatch(name):
                found.setdefault(original, set()).add(name)
        return found if _COMMUNICATOR in found else {}

    def _tables(self, number: int) -> Iterator[str]:
        query = (
            f"SELECT DISTINCT globalPid, domainId, payloadSchemaID FROM {_LINKS} "
            "WHERE globalPid / 16777216 = ? LIMIT ?"
        )
        for ids in self._database.rows(query, number, _MOST_TABLES):
            if all(type(one) is int and one >= 0 for one in ids):
                yield "_".join((_TABLE, *map(str, ids)))

    def _read(self, table: str, columns: dict[str, set[str]]) -> None:
        known = self._database.columns(table)
        communicator, size, ranks = (
            next(iter(columns.get(field, set()) & known), "")
            for field in (_COMMUNICATOR, _SIZE, _RANKS)
        )
        if "eventId" not in known or not communicator:
            return
        if ranks:
            query = f'SELECT DISTINCT "{communicator}", "{ranks}" FROM {table} LIMIT ?'
            for one, count in self._database.rows(query, _MOST_TABLES):
                if type(one) is type(count) is int and 0 < count < 1 << 31:
                    self._num_ranks[one] = count
        if size:
            query = f'SELECT eventId, "{communicator}", "{size}" FROM {table} LIMIT ?'
            left = _MOST_PAYLOADS - len(self._of_event)
            for event, one, num_bytes in self._database.rows(query, left):
                if type(event) is type(one) is type(num_bytes) is int and 0 <= num_bytes < _LARGEST:
                    self._of_event[event] = (one, num_bytes)


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """An NCCL call on a thread, until its kernel is launched. Times in ns."""

    start: int
    end: int
    thread: int
    name: str
    payload: tuple[int, int] | None


class Calls:
    """Collects the NCCL ranges of one process."""

    def __init__(self, payloads: Payloads) -> None:
        self._payloads = payloads
        self._threads: dict[int, list[Call]] = {}
        self._count = 0

    def note(self, name: str, start: int, end: int, thread: int, event: Any) -> None:
        """Add a range; only NCCL calls with a payload and group limits are kept."""
        payload = self._payloads.of_event(event) if name in _OPERATIONS else None
        if (payload is None and name not in (_BEGIN, _END)) or self._count >= _MOST_CALLS:
            return
        self._count += 1
        call = Call(start=start, end=end, thread=thread, name=name, payload=payload)
        self._threads.setdefault(thread, []).append(call)

    def described(self) -> Iterator[tuple[Call, bytes]]:
        """Calls, each until the end of its group, with Kineto's arguments for them as JSON."""
        if self._count < _MOST_CALLS:  # else groups may be incomplete
            for calls in self._threads.values():
                for call in _alone(sorted(calls, key=lambda one: one.start)):
                    yield call, self._arguments(call)

    def _arguments(self, call: Call) -> bytes:
        assert call.payload is not None
        communicator, num_bytes = call.payload
        operation, buffer = _OPERATIONS[call.name]
        arguments: dict[str, Any] = {
            "Collective name": operation,
            f"{buffer} msg nelems": num_bytes,
            "dtype": COUNTED_IN_BYTES,
            "Process Group Name": f"{communicator & (1 << 64) - 1:#018x}",
        }
        count = self._payloads.num_ranks(communicator)
        if count is not None:
            arguments["Group size"] = count
        return msgspec.json.encode(arguments)[1:-1]


def _alone(calls: list[Call]) -> Iterator[Call]:
    """Calls outside of groups, and calls that are alone in their group, until its end."""
    depth, inside = 0, list[Call]()
    for call in calls:
        if call.name == _BEGIN:
            depth += 1
        elif call.name == _END:
            depth = max(0, depth - 1)
            if depth == 0:
                if len(inside) == 1:
                    yield msgspec.structs.replace(inside[0], end=max(inside[0].end, call.end))
                inside = []
        elif depth:
            inside.append(call)
        else:
            yield call
