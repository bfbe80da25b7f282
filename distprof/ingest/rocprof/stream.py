"""The processes in a rocprofv3 file of any format, and the trace of each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from distprof.errors import InputError
from distprof.ingest.kineto.made import opened_events
from distprof.ingest.rocprof import json_file, perfetto
from distprof.ingest.rocprof.records import RECORD

PERFETTO_ENDINGS = perfetto.ENDINGS
"""Endings that several tools use, so the content of the file decides."""


def begins_rocprof(head: bytes) -> bool:
    """Whether a file with this uncompressed beginning is from rocprofv3."""
    return json_file.is_begin(head) or perfetto.is_begin(head)


def is_rocprof(path: str | Path) -> bool:
    """Whether a regular file is from rocprofv3, by its name and beginning; never raises."""
    return json_file.is_json(path) or perfetto.is_perfetto(path)


def processes_in_rocprof(path: str | Path) -> list[int]:
    """Positions of the processes with kernels in a file, usually a single one.

    Raises:
        InputError: If it cannot be read, or has none.
    """
    if perfetto.is_perfetto(path):
        found = [0] if perfetto.has_kernels(path) else []
    else:
        found = json_file.places_of_processes(path)
    if not found:
        raise InputError(
            str(path),
            expected="a trace of rocprofv3 with kernels",
            found="a trace of rocprofv3 without kernels",
            fix=RECORD,
        )
    return found


@contextmanager
def opened_rocprof(path: str | Path, place: int) -> Iterator[BinaryIO]:
    """The trace of one process, to be read once from start to end.

    Raises:
        InputError: If it cannot be read, or has no process at this position.
    """
    if perfetto.is_perfetto(path):
        with (
            perfetto.opened_slices(path) as (head, events),
            opened_events(head, events) as stream,
        ):
            yield stream
        return
    with opened_events(*json_file.head_and_events(path, place)) as stream:
        yield stream
