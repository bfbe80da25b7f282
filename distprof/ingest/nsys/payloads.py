"""Communicator and message size of NCCL calls, from NVTX payloads.

An export made with ``--dynamic-tables=all`` has a separate table for each payload schema, with a
column for each field. Other exports store payloads as bytes (``NVTX_EVENTS.binaryData``) in a
format that NVIDIA does not publish, so these are not read.

Calls between ``ncclGroupStart`` and ``ncclGroupEnd`` launch nothing themselves, as the end of the
group does. A group with one call counts as that call. In a group with several calls, it is unknown
which kernel belongs to which call.

Source: NVIDIA, "Nsight Systems: SQLite Export Schema Reference" of 2026.4, schema 3.28.1
(``NVTX_EVENTS_PAYLOAD_SCHEMAS``, ``NVTX_EXPORT_TRANSLATION``,
``DYNAMIC_NVTXPAYLOAD_DATATYPE_<globalPid>_<domainId>_<schemaId>``); NVIDIA/nccl,
``src/include/nvtx_payload_schemas.h`` (names of fields), ``src/collectives.cc`` (message sizes).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from distprof.ingest.collectives.sizes import COUNTED_IN_BYTES
from distprof.ingest.nsys.database import Database

_LINKS, _NAMES = "NVTX_EVENTS_PAYLOAD_SCHEMAS", "NVTX_EXPORT_TRANSLATION"
_TABLE = "DYNAMIC_NVTXPAYLOAD_DATATYPE"
_COMMUNICATOR, _SIZE, _RANKS = "NCCL communicator ID", "Message size [bytes]", "No. of ranks"
_COLUMN = re.compile(r"[A-Za-z_]\w{0,200}", re.ASCII)
_MOST_TABLES = 4_096
_MOST_PAYLOADS = 1 << 20
_MOST_CALLS = 1 << 20
_LARGEST = 1 << 62

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
