"""The processes of an export, and the trace of each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from distprof.bounds import Bound
from distprof.errors import InputError
from distprof.ingest.kineto.made import opened_events
from distprof.ingest.nsys.database import EXPECTED, is_database, opened_database
from distprof.ingest.nsys.events import Process, events_of, head_of, processes_of

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
