"""Columns filled from decoded events: host rows, device rows, communication rows."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distprof.ingest.kineto.events import Complete, ExactComplete
from distprof.ingest.kineto.repair import NO_STREAM, as_int, as_stream
from distprof.ingest.kineto.symbols import DROPPED, Symbols, SymbolTable
from distprof.ingest.kineto.times import INVALID_NS, micros_to_ns
from distprof.schema import ABSENT, Int64Array
from distprof.units import NS_PER_S

__all__ = [
    "Columns",
    "Event",
    "Rows",
    "coded",
    "device_columns",
    "floats",
    "host_columns",
    "integers",
]

LONGEST_NS = 7 * 24 * 3600 * NS_PER_S
"""A longer event is a broken record: no profiler records for a week."""

Columns = dict[str, NDArray[Any]]
Event = Complete | ExactComplete


@dataclass(frozen=True, slots=True)
class Rows:
    """Complete events and the columns that all of them have.

    Args:
        events: The decoded structs.
        index: Place of each among the complete events of the chunk.
        start_ns: Start, int64, the file's base not added.
        end_ns: End, int64.
        category: int32 code.
        kind: int8: an ActivityKind or HOST.
        name: int32 code.
        correlation: int64.
        num_clamped: Rows whose duration could not be, and which got none.
    """

    events: Sequence[Event]
    index: NDArray[np.intp]
    start_ns: Int64Array
    end_ns: Int64Array
    category: NDArray[np.int32]
    kind: NDArray[np.int8]
    name: NDArray[np.int32]
    correlation: Int64Array
    num_clamped: int = 0

    def __len__(self) -> int:
        return len(self.events)

    @staticmethod
    def of(
        events: Sequence[Event],
        start_ns: Int64Array,
        symbols: SymbolTable,
        *,
        device_only: bool = False,
    ) -> Rows:
        """The rows worth keeping: those with a readable start, Python frames apart.

        Args:
            events: Complete events of a chunk.
            start_ns: Their starts.
            symbols: Dictionaries, which grow.
            device_only: Keep device rows and step marks only.
        """
        codes, names = symbols.categories, symbols.names
        category = coded([codes[event.cat] for event in events])
        kind = symbols.kinds.of(category)
        keep = (start_ns != INVALID_NS) & (kind != DROPPED)
        kept = np.flatnonzero(keep)
        events = _selected(events, keep)
        name = coded([names[event.name] for event in events])
        if device_only:
            wanted = (kind[kept] >= 0) | symbols.is_step.of(name)
            events, kept, name = _selected(events, wanted), kept[wanted], name[wanted]
        if len(kept) < len(start_ns):
            start_ns, category, kind = start_ns[kept], category[kept], kind[kept]
        duration, num_clamped = _durations(events)
        correlation = integers([event.args.correlation for event in events], as_int)
        end_ns = start_ns + duration
        return Rows(events, kept, start_ns, end_ns, category, kind, name, correlation, num_clamped)

    def where(self, keep: NDArray[np.bool_]) -> Rows:
        """The rows that ``keep`` selects."""
        kept = np.flatnonzero(keep)  # several arrays are gathered faster by place than by mask
        return Rows(
            _selected(self.events, keep),
            self.index[kept],
            self.start_ns[kept],
            self.end_ns[kept],
            self.category[kept],
            self.kind[kept],
            self.name[kept],
            self.correlation[kept],
        )


def device_columns(rows: Rows) -> Columns:
    """ACTIVITY columns of device rows.

    Kineto puts the device in ``pid`` and the stream in ``tid`` of a device row; they stand in for
    arguments that are not there.
    """
    events = rows.events
    stream = integers([event.args.stream for event in events], as_stream)
    stream[stream == NO_STREAM] = ABSENT
    device = integers([event.args.device for event in events], as_int)
    _fill(stream, lambda row: as_stream(events[row].tid))
    _fill(device, lambda row: as_int(events[row].pid))
    device[(device < 0) | (device > np.iinfo(np.int32).max)] = ABSENT
    return {
        "start_ns": rows.start_ns,
        "end_ns": rows.end_ns,
        "name": rows.name,
        "kind": rows.kind,
        "stream": stream,
        "device": device.astype(np.int32),
        "correlation": rows.correlation,
        "bytes": integers([event.args.bytes for event in events], as_int),
    }


def host_columns(rows: Rows, symbols: SymbolTable) -> Columns:
    """HOST columns of host rows."""
    return {
        "start_ns": rows.start_ns,
        "end_ns": rows.end_ns,
        "name": rows.name,
        "category": rows.category,
        "thread": _thread_codes(rows.events, symbols.threads),
        "correlation": rows.correlation,
    }


def _thread_codes(events: Sequence[Event], codes: Symbols) -> NDArray[np.int32]:
    """Code of each event's thread. Profilers write thread by thread: few events begin another."""
    pids: list[Any] = [event.pid for event in events]
    tids: list[Any] = [event.tid for event in events]
    try:
        pid = np.frombuffer(array("q", pids), np.int64)
        tid = np.frombuffer(array("q", tids), np.int64)
    except (TypeError, OverflowError):  # a name, or a number beyond int64
        return coded([codes[key] for key in zip(pids, tids, strict=True)])
    if len(pid) == 0:
        return np.empty(0, np.int32)
    first = np.flatnonzero((pid[1:] != pid[:-1]) | (tid[1:] != tid[:-1])) + 1
    first = np.concatenate(([0], first))
    found = [codes[key] for key in zip(pid[first].tolist(), tid[first].tolist(), strict=True)]
    return np.repeat(np.array(found, np.int32), np.diff(first, append=len(pid)))


def _durations(events: Sequence[Event]) -> tuple[Int64Array, int]:
    """Duration of each event, and how many had one that cannot be (they get none)."""
    duration = micros_to_ns(floats([event.dur for event in events]))
    absurd = (duration < 0) | (duration > LONGEST_NS)
    num_absurd = int(np.count_nonzero(absurd))
    if num_absurd:
        duration[absurd] = 0
    return duration, num_absurd


def _selected(events: Sequence[Event], keep: NDArray[np.bool_]) -> Sequence[Event]:
    return events if keep.all() else list(compress(events, keep.tobytes()))


def floats(values: list[float]) -> NDArray[np.float64]:
    """float64 array; :class:`array.array` is filled faster than numpy fills one."""
    return np.frombuffer(array("d", values), np.float64)


def coded(codes: list[int]) -> NDArray[np.int32]:
    """int32 array of codes."""
    return np.frombuffer(array("i", codes), np.int32)


def integers(values: list[Any], convert: Callable[[Any], int]) -> Int64Array:
    """int64 array; ``convert`` is asked only when a value is no int64."""
    try:
        return np.array(array("q", values), np.int64)
    except (TypeError, OverflowError):
        return np.array([convert(value) for value in values], np.int64)


def _fill(column: Int64Array, value: Callable[[int], int]) -> None:
    for row in np.flatnonzero(column == ABSENT).tolist():
        column[row] = value(row)
