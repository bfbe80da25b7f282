"""Exports of Nsight Systems: their processes, and the trace of each as torch.profiler events.

The database is untrusted: extensions cannot be loaded, views and virtual tables are refused,
functions in a schema do not run, the size of values is bounded, and slow queries are stopped.

Source: NVIDIA, "Nsight Systems: SQLite Export Schema Reference" of 2026.4, schema 3.28.1
(``CUPTI_ACTIVITY_KIND_…``, ``NVTX_EVENTS``, ``StringIds``, ``TARGET_INFO_…``; process and thread of
a globalTid); CUPTI, ``CUpti_ActivityMemcpyKind`` and ``CUpti_ActivityMemoryKind``; SQLite, "Defense
Against The Dark Arts".
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO
from urllib.parse import quote

import msgspec

from distprof.bounds import Bound, NotAFileError, open_plain
from distprof.errors import InputError
from distprof.ingest.kineto.made import StepRanges, on_device, on_host, opened_events

if TYPE_CHECKING:  # few jobs are recorded with Nsight Systems, and SQLite takes 0.9 MB
    import sqlite3

ENDINGS = (".sqlite", ".sqlite3")  # of exports in a folder

BOUND = Bound(
    reads="an export of Nsight Systems",
    num_bytes=1 << 40,
    rows=1 << 24,
    names=200_000,
    beyond="skipped",
    seconds_per_mb=3,
)


def processes_in(path: str | Path) -> list[Process]:
    """Processes with kernels, each of which is a rank, ordered by GPU, then by process id."""
    found: dict[int, int] = {}
    with opened_database(path) as database:
        for table in (_KERNELS, _GRAPHS):
            if not set(_DEVICE_COLUMNS) <= database.columns(table):
                continue
            query = f"SELECT globalPid / 16777216, MIN(deviceId) FROM {table} GROUP BY 1 LIMIT ?"
            for number, device in database.rows(query, _MAX_PROCESSES):
                if isinstance(number, int) and isinstance(device, int):
                    found[number] = min(found.get(number, device), device)
    if not found:
        raise InputError(
            str(path),
            expected=EXPECTED,
            found="a database without kernels",
            fix="record with nsys profile --trace=cuda,nvtx, and export the report again",
        )
    made = [Process(number=n, pid=n % (1 << 24), device=device) for n, device in found.items()]
    return sorted(made, key=lambda one: (one.device, one.pid))


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
    """The trace of one process, to be read once from start to end."""
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
    known = database.columns(_KERNELS)
    named = [name for name in ("demangledName", "shortName") if name in known][:1]
    for row in _device_rows(database, _KERNELS, number, *named):
        yield _activity(b"kernel", names.json(row[5] if named else None), row)
    for row in _device_rows(database, _GRAPHS, number):  # recorded as a whole, without kernels
        yield _activity(b"kernel", b'"CUDA graph"', row)
    yield from _copies(database, number)
    more = [name for name in ("bytes",) if name in database.columns(_SETS)]
    for row in _device_rows(database, _SETS, number, *more):
        yield _activity(b"gpu_memset", b'"Memset (Device)"', row, row[5] if more else None)
    yield from _calls(database, number, names)
    yield from _ranges(database, number, names)


def _gpus(database: Database) -> Iterator[dict[str, Any]]:
    known = database.columns("TARGET_INFO_GPU")
    wanted = {name: name for name in ("id", "name", "computeMajor", "computeMinor")}
    wanted |= {"totalMemory": "totalGlobalMem", "smCount": "numSms"}
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
        is_known = type(start) is type(end) is type(device) is type(stream) is int
        if is_known and max(abs(start), abs(end)) < _LARGEST:
            yield row


def _activity(category: bytes, name: bytes, row: tuple[Any, ...], num_bytes: Any = None) -> bytes:
    start, end, device, stream, correlation = row[:5]
    launch = correlation if type(correlation) is int else None
    size = num_bytes if type(num_bytes) is int else None
    where = {"device": device, "stream": stream}
    return on_device(category, name, start, end, correlation=launch, num_bytes=size, **where)


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
    category: bytes, name: bytes, start: int, end: int, thread: int, correlation: int | None = None
) -> bytes:
    pid, tid = thread >> 24 & 0xFFFFFF, thread & 0xFFFFFF
    return on_host(category, name, start, end, pid=pid, tid=tid, correlation=correlation)


def _ranges(database: Database, number: int, names: _Names) -> Iterator[bytes]:
    """Events of ranges that ended, and additional events with Kineto's names for steps."""
    known = database.columns(_RANGES)
    if not {"start", "end", "globalTid", "eventType"} <= known:
        return
    text, key = (name if name in known else "NULL" for name in ("text", "textId"))
    query = (
        f'SELECT start, "end", globalTid, {text}, {key} FROM {_RANGES} '
        f"WHERE globalTid / 16777216 = ? AND eventType IN ({_PUSHED}, {_STARTED})"
    )
    steps = StepRanges()
    for start, end, thread, text, key in database.rows(query, number):
        if not type(start) is type(end) is type(thread) is int or not 0 <= end - start < _LARGEST:
            continue
        name = text[:_MAX_NAME] if isinstance(text, str) and text else names.text(key)
        operator = _OPERATOR.fullmatch(name)
        if operator is not None:  # written by torch.autograd.profiler.emit_nvtx
            name = operator[1]
        category = b"user_annotation" if operator is None else b"cpu_op"
        yield _call(category, msgspec.json.encode(name or "unknown"), start, end, thread)
        steps.note(name, start, end, thread)

    for step, start, end, thread in steps.chosen():
        yield _call(b"user_annotation", step, start, end, thread)


MAGIC = b"SQLite format 3\0"
EXPECTED = "an export of Nsight Systems with CUDA activity (nsys export --type sqlite)"
_RECORD = (
    "record with nsys profile --trace=cuda,nvtx, then nsys export --type sqlite REPORT.nsys-rep"
)
_MAX_VALUE_BYTES = 1 << 20
_MAX_COLUMNS = 500
_STEPS_BETWEEN_LOOKS = 100_000
_LEAST_SECONDS = 60.0
_SECONDS_PER_MB = 2.0


class Database:
    """A database and the columns of its tables; the path is for messages."""

    def __init__(self, connection: sqlite3.Connection, path: str) -> None:
        self._connection = connection
        self.path = path
        self._columns: dict[str, frozenset[str]] = {}

    def columns(self, table: str) -> frozenset[str]:
        """Columns of a real table; empty if there is no table of that name."""
        if table not in self._columns:
            (declared,) = next(
                self.rows("SELECT sql FROM sqlite_master WHERE type = 'table' AND name = ?", table),
                ("",),
            )
            is_real = str(declared).upper().startswith("CREATE TABLE")
            found = self.rows(f"PRAGMA table_info({table})") if is_real else ()
            self._columns[table] = frozenset(str(row[1]) for row in found)
        return self._columns[table]

    def rows(self, query: str, *values: Any) -> Iterator[tuple[Any, ...]]:
        """Rows of a query; ``InputError`` if the database is damaged or it takes too long."""
        import sqlite3

        try:
            with closing(self._connection.execute(query, values)) as cursor:
                yield from cursor
        except (sqlite3.Error, OverflowError, UnicodeDecodeError) as error:
            raise InputError(
                self.path,
                expected=EXPECTED,
                found=f"a database that cannot be read: {' '.join(str(error).split())}",
                fix="export the report again",
            ) from error


def is_database(path: str | Path) -> bool:
    """Whether a regular file begins like a database; never raises."""
    try:
        with open_plain(path) as stream:
            return stream.read(len(MAGIC)) == MAGIC
    except (OSError, ValueError):
        return False


@contextmanager
def opened_database(path: str | Path) -> Iterator[Database]:
    """Open a database from an untrusted source."""
    import sqlite3

    if not is_database(path):
        raise InputError(
            str(path), expected=EXPECTED, found="a file other than an SQLite database", fix=_RECORD
        )
    try:
        size = Path(path).stat().st_size
        place = f"file:{quote(str(Path(path).resolve()))}?mode=ro&immutable=1"
        connection = sqlite3.connect(place, uri=True, check_same_thread=False)
    except (sqlite3.Error, NotAFileError, OSError) as error:
        raise InputError(str(path), expected=EXPECTED, found=str(error), fix=_RECORD) from error
    connection.text_factory = lambda data: data.decode("utf-8", "replace")
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MAX_VALUE_BYTES)
    connection.setlimit(sqlite3.SQLITE_LIMIT_COLUMN, _MAX_COLUMNS)
    connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
    latest = time.process_time() + _LEAST_SECONDS + _SECONDS_PER_MB * size / 1e6
    connection.set_progress_handler(lambda: time.process_time() > latest, _STEPS_BETWEEN_LOOKS)
    with closing(connection):
        database = Database(connection, str(path))
        for setting in ("trusted_schema = OFF", "cell_size_check = ON", "query_only = ON"):
            for _ in database.rows(f"PRAGMA {setting}"):
                pass
        yield database
