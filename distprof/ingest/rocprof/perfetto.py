"""Perfetto traces of rocprofv3: slices of one process, converted to torch.profiler events.

Times come from the annotations ``begin_ns`` and ``end_ns`` of each slice, which hold the recorded
values. The tracks of threads and of agents' streams are described before the first slice.

Source: ROCm/rocprofiler-sdk, ``source/lib/output/generatePerfetto.cpp``; google/perfetto,
``protos/perfetto/trace``: ``trace_packet``, ``interned_data``, ``track_event``,
``track_descriptor``, ``debug_annotation``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from distprof.bounds import Bound
from distprof.errors import InputError
from distprof.ingest.files import DAMAGE, beginning, opened
from distprof.ingest.rocprof.records import (
    LARGEST_NS,
    MAX_NAME,
    RECORD,
    Ranges,
    call_event,
    copy_event,
    kernel_event,
)
from distprof.ingest.rocprof.wire import fields, packets

ENDINGS = (".pftrace", ".pftrace.gz", ".perfetto-trace")

BOUND = Bound(
    reads="a Perfetto trace of rocprofv3",
    num_bytes=1 << 29,
    names=1 << 18,
    beyond="refused",
    seconds_per_mb=2,
)
_EXPECTED = "a Perfetto trace of rocprofv3 (rocprofv3 --runtime-trace --output-format pftrace)"
_SNIFFED_BYTES = 1 << 16
_LONGEST_PACKET = 1 << 24
_MOST_ANNOTATIONS = 64

_KERNEL, _COPY, _CALL, _RANGE = "kernel_dispatch", "memory_copy", "hip_api", "marker_api"
_COMPUTE = re.compile(rb"COMPUTE [^\0-\x1f]{0,40}\] (?:STREAM|QUEUE) \[")
_AGENT = re.compile(r"\[(\d{1,9})\]")
_STREAM = re.compile(r"\bSTREAM \[(\d{1,18})\]")
_DIGITS = re.compile(r"\d{1,9}")

Values = dict[int, int | bytes]
"""Field of a message to its value, or to the last one if it is repeated."""


class _Packet:
    SEQUENCE, TRACK_EVENT, INTERNED, FLAGS, TRACK = 10, 11, 12, 13, 60
    STATE_CLEARED = 1  # a flag


class _Interned:
    CATEGORIES, NAMES, ANNOTATIONS, TEXTS = 1, 2, 3, 29
    NUMBER, TEXT = 1, 2  # of each entry


class _Event:
    CATEGORY_NUMBER, ANNOTATION, TYPE, NAME_NUMBER, TRACK, CATEGORY, NAME = 3, 4, 9, 10, 11, 22, 23
    SLICE_BEGIN = 1  # a type


class _Annotation:
    NAME_NUMBER, UNSIGNED, SIGNED, TEXT, NAME, TEXT_NUMBER = 1, 3, 4, 6, 10, 17


class _Track:
    NUMBER, NAME, PROCESS = 1, 2, 3
    PID = 1  # of a process


class _Slice(msgspec.Struct):
    category: str
    name: str
    track: int
    annotations: dict[str, int | str]

    def number(self, name: str) -> int:
        """The annotation of this name if it is a number, else -1."""
        value = self.annotations.get(name, -1)
        return value if isinstance(value, int) else -1


def is_begin(head: bytes) -> bool:
    """Whether a file with this beginning is a Perfetto trace of rocprofv3 with agents' streams."""
    return head[:1] == b"\n" and _COMPUTE.search(head) is not None


def is_perfetto(path: str | Path) -> bool:
    """Whether a regular file is such a trace, by its name and beginning; never raises."""
    return is_begin(beginning(str(path), _SNIFFED_BYTES, endings=ENDINGS))


def has_kernels(path: str | Path) -> bool:
    """Whether the trace contains a kernel.

    Raises:
        InputError: If the trace cannot be read.
    """
    with _refusing(path), opened(str(path)) as stream:
        return any(found.category == _KERNEL for found in _Reader(stream).slices())


@contextmanager
def opened_slices(path: str | Path) -> Iterator[tuple[dict[str, Any], Iterator[bytes]]]:
    """The header that Kineto writes before its events, and the events as JSON.

    Raises:
        InputError: If the trace cannot be read; also while iterating over the events.
    """
    with _refusing(path), opened(str(path)) as stream:
        reader = _Reader(stream)
        slices = reader.slices()
        first = next(slices, None)
        gpus = _gpus(reader.tracks.values())
        head = {"schemaVersion": 1, "deviceProperties": [{"id": gpu} for gpu in gpus.values()]}
        events = _Events(reader.tracks, gpus, reader.pid)
        yield head, events.of(chain([] if first is None else [first], slices))


@contextmanager
def _refusing(path: str | Path) -> Iterator[None]:
    try:
        yield
    except (*DAMAGE, ValueError) as error:
        found = " ".join(f"{error}".split())[:200]
        raise InputError(str(path), expected=_EXPECTED, found=found, fix=RECORD) from error


# Packets ------------------------------------------------------------------------------------------


class _Reader:
    """Reads packets in order; names are indices into a table per packet sequence."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._tables: dict[int, dict[tuple[int, int], str]] = {}
        self._num_names = 0
        self.tracks: dict[int, str] = {}
        self.pid = 0

    def slices(self) -> Iterator[_Slice]:
        """Slices with their annotations; also collects tracks and the process id."""
        most = BOUND.num_bytes
        for packet in packets(self._stream, most_bytes=most, longest=_LONGEST_PACKET):
            values: Values = dict(fields(packet))
            sequence = _whole(values, _Packet.SEQUENCE)
            if _whole(values, _Packet.FLAGS) & _Packet.STATE_CLEARED:
                self._tables.pop(sequence, None)
            table = self._tables.setdefault(sequence, {})
            self._intern(_message(values, _Packet.INTERNED), table)
            self._note_track(dict(fields(_message(values, _Packet.TRACK))))
            event = _message(values, _Packet.TRACK_EVENT)
            if event:
                yield from _begun(event, table)

    def _intern(self, data: bytes, table: dict[tuple[int, int], str]) -> None:
        for which, entry in fields(data):
            if isinstance(entry, bytes):
                values: Values = dict(fields(entry))
                table[which, _whole(values, _Interned.NUMBER)] = _text(values, _Interned.TEXT)
                self._check_names()

    def _note_track(self, values: Values) -> None:
        if _Track.NAME in values:
            self.tracks[_whole(values, _Track.NUMBER)] = _text(values, _Track.NAME)
            self._check_names()
        process: Values = dict(fields(_message(values, _Track.PROCESS)))
        self.pid = self.pid or _whole(process, _Track.PID) & 0x7FFFFFFF

    def _check_names(self) -> None:
        self._num_names += 1
        if BOUND.names is not None and self._num_names > BOUND.names:
            raise ValueError(f"more than {BOUND.names:,} names")


def _whole(values: Values, which: int) -> int:
    """A number; 0 without one."""
    value = values.get(which, 0)
    return value if isinstance(value, int) else 0


def _message(values: Values, which: int) -> bytes:
    """A nested message; empty without one."""
    value = values.get(which, b"")
    return value if isinstance(value, bytes) else b""


def _text(values: Values, which: int) -> str:
    return _message(values, which)[: 4 * MAX_NAME].decode("utf-8", "replace")[:MAX_NAME]


def _begun(data: bytes, table: dict[tuple[int, int], str]) -> Iterator[_Slice]:
    """The slice that an event begins; nothing for other events."""
    annotations: list[int | bytes] = []
    values: Values = {}
    for which, value in fields(data):
        values[which] = value
        if which == _Event.ANNOTATION and len(annotations) < _MOST_ANNOTATIONS:
            annotations.append(value)
    if _whole(values, _Event.TYPE) != _Event.SLICE_BEGIN:
        return
    category = table.get((_Interned.CATEGORIES, _whole(values, _Event.CATEGORY_NUMBER)), "")
    name = table.get((_Interned.NAMES, _whole(values, _Event.NAME_NUMBER)), "")
    yield _Slice(
        category=category or _text(values, _Event.CATEGORY),
        name=name or _text(values, _Event.NAME),
        track=_whole(values, _Event.TRACK),
        annotations=dict(
            _annotation(each, table) for each in annotations if isinstance(each, bytes)
        ),
    )


def _annotation(data: bytes, table: dict[tuple[int, int], str]) -> tuple[str, int | str]:
    values: Values = dict(fields(data))
    name = table.get((_Interned.ANNOTATIONS, _whole(values, _Annotation.NAME_NUMBER)), "")
    name = name or _text(values, _Annotation.NAME)
    if _Annotation.UNSIGNED in values:
        return name, _whole(values, _Annotation.UNSIGNED)
    if _Annotation.SIGNED in values:
        return name, _whole(values, _Annotation.SIGNED)
    text = table.get((_Interned.TEXTS, _whole(values, _Annotation.TEXT_NUMBER)), "")
    return name, text or _text(values, _Annotation.TEXT)


# Events -------------------------------------------------------------------------------------------


def _gpus(tracks: Iterable[str]) -> dict[int, int]:
    """Agent number of each GPU to its GPU number, in the order of the system."""
    agents = {_agent(name) for name in tracks if name.rstrip().endswith("(GPU)")}
    return {agent: gpu for gpu, agent in enumerate(sorted(agents))}


def _agent(track: str) -> int:
    """Number of the agent in the name of a track; -1 without one."""
    found = _AGENT.search(track)
    return int(found[1]) if found else -1


class _Events:
    """Converts slices to events; ``gpus`` maps the agent number of each GPU to its GPU number."""

    def __init__(self, tracks: dict[int, str], gpus: dict[int, int], pid: int) -> None:
        self._tracks = tracks
        self._gpus = gpus
        self._pid = pid
        self._ranges = Ranges(pid)
        self._streams: dict[tuple[int, int], int] = {}

    def of(self, slices: Iterator[_Slice]) -> Iterator[bytes]:
        """Events as JSON, in the order of the slices, followed by step marks."""
        for found in slices:
            start, end = found.number("begin_ns"), found.number("end_ns")
            if 0 <= start <= end < LARGEST_NS:
                yield from self._events_of(found, start, end)
        yield from self._ranges.steps()

    def _events_of(self, found: _Slice, start: int, end: int) -> Iterator[bytes]:
        thread, correlation = found.number("tid"), found.number("corr_id")
        if found.category == _KERNEL:
            yield kernel_event(
                msgspec.json.encode(found.name or "unknown"),
                start,
                end,
                device=self._device(found, "agent"),
                stream=self._stream(found),
                correlation=correlation,
            )
        elif found.category == _COPY:
            yield copy_event(
                found.name,
                start,
                end,
                device=self._device(found, "src_agent"),
                stream=self._stream(found),
                correlation=correlation,
                num_bytes=found.number("copy_bytes"),
            )
        elif found.category == _CALL:
            yield from call_event(
                found.name, start, end, pid=self._pid, thread=thread, correlation=correlation
            )
        elif found.category == _RANGE and not found.name.startswith("roctx"):
            yield from self._ranges.event(found.name, start, end, thread)

    def _device(self, found: _Slice, other: str) -> int:
        """Number of the track's GPU, or of the other agent's GPU if the track belongs to a CPU."""
        gpu = self._gpus.get(_agent(self._tracks.get(found.track, "")))
        if gpu is not None:
            return gpu
        digits = _DIGITS.search(str(found.annotations.get(other, "")))
        return self._gpus.get(int(digits[0]), 0) if digits else 0

    def _stream(self, found: _Slice) -> int:
        """A small number for the stream, or for the queue or track if the stream is unknown."""
        stream = _STREAM.search(self._tracks.get(found.track, ""))
        if stream:
            key = (0, int(stream[1]))
        elif "queue" in found.annotations:
            key = (1, found.number("queue"))
        else:
            key = (2, found.track)
        return self._streams.setdefault(key, len(self._streams))
