"""The trace of one process of an export, as bytes that are made while they are read."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

import msgspec

from distprof.bounds import Bound
from distprof.errors import InputError
from distprof.ingest.nsys.database import EXPECTED, is_database, opened_database
from distprof.ingest.nsys.events import Process, events_of, head_of, processes_of

__all__ = ["BOUND", "ENDINGS", "opened_process", "processes_in", "why_not_an_export"]

ENDINGS = (".sqlite", ".sqlite3")
"""Of names under which exports are looked for in a folder."""

BOUND = Bound(
    reads="an export of Nsight Systems",
    num_bytes=1 << 40,
    rows=1 << 24,
    names=200_000,
    beyond="skipped",
    seconds_per_mb=3,
)
_BLOCK_EVENTS = 2_000
_BUFFER_BYTES = 1 << 20


def processes_in(path: str | Path) -> list[Process]:
    """Processes of an export, each of which is a rank.

    Raises:
        InputError: If it is no export, or has no kernel.
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
    """Why a file is no export with kernels; empty where it is one."""
    if not is_database(path):
        return "no SQLite database"
    try:
        processes_in(path)
    except InputError as error:
        return error.found
    return ""


@contextmanager
def opened_process(path: str | Path, number: int) -> Iterator[BinaryIO]:
    """The trace of one process, to be read once from its start to its end.

    Raises:
        InputError: If the file is no database.
    """
    with opened_database(path) as database:
        head = msgspec.json.encode(head_of(database)).removesuffix(b"}")
        blocks = _blocks(head + b',"traceEvents":[\n', events_of(database, number))
        with io.BufferedReader(_Made(blocks), _BUFFER_BYTES) as stream:
            yield cast("BinaryIO", stream)


def _blocks(head: bytes, events: Iterator[bytes]) -> Iterator[bytes]:
    yield head
    some: list[bytes] = []
    before = b""
    for event in events:
        some.append(event)
        if len(some) == _BLOCK_EVENTS:
            yield before + b",\n".join(some)
            some, before = [], b",\n"
    yield (before if some else b"") + b",\n".join(some) + b"\n]}"


class _Made(io.RawIOBase):
    """A stream of blocks.

    Args:
        blocks: In order.
    """

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._blocks = blocks
        self._rest = b""

    def readable(self) -> bool:
        """Yes."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill ``buffer`` with what is there."""
        while not self._rest:
            block = next(self._blocks, None)
            if block is None:
                return 0
            self._rest = block
        size = min(len(memoryview(buffer)), len(self._rest))
        buffer[:size] = self._rest[:size]
        self._rest = self._rest[size:]
        return size
