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
from distprof.ingest.kineto.symbols import DROPPED, SymbolTable
from distprof.ingest.kineto.times import INVALID_NS, micros_to_ns
from distprof.ingest.kineto.values import as_int, as_stream
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
        category: int32 code.
        kind: int8: an ActivityKind, HOST or DROPPED.
        name: int32 code.
    """

    events: Sequence[Event]
    index: NDArray[np.intp]
    start_ns: Int64Array
    category: NDArray[np.int32]
    kind: NDArray[np.int8]
    name: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.events)

    @staticmethod
    def of(events: Sequence[Event], start_ns: Int64Array, symbols: SymbolTable) -> Rows:
        """The rows worth keeping: with a readable start, and no Python frames."""
        codes = symbols.categories
        category = coded([codes[event.cat] for event in events])
        kind = symbols.kinds.of(category)
        index = np.arange(len(events))
        keep = (start_ns != INVALID_NS) & (kind != DROPPED)
        if not keep.all():
            events = list(compress(events, keep.tolist()))
            index, start_ns = index[keep], start_ns[keep]
            category, kind = category[keep], kind[keep]
        names = symbols.names
        name = coded([names[event.name] for event in events])
        return Rows(events, index, start_ns, category, kind, name)

    def where(self, keep: NDArray[np.bool_]) -> Rows:
        """The rows that ``keep`` selects."""
        if keep.all():
            return self
        return Rows(
            list(compress(self.events, keep.tolist())),
            self.index[keep],
            self.start_ns[keep],
            self.category[keep],
            self.kind[keep],
            self.name[keep],
        )

    def ends(self) -> tuple[Int64Array, int]:
        """End of each row, and how many had a duration that cannot be (they get none)."""
        duration = micros_to_ns(floats([event.dur for event in self.events]))
        absurd = (duration < 0) | (duration > LONGEST_NS)
        num_absurd = int(np.count_nonzero(absurd))
        if num_absurd:
            duration[absurd] = 0
        return self.start_ns + duration, num_absurd


def device_columns(rows: Rows) -> tuple[Columns, int]:
    """ACTIVITY columns of device rows, and how many durations were clamped.

    Kineto puts the device in ``pid`` and the stream in ``tid`` of a device row; they stand in for
    arguments that are not there.
    """
    events = rows.events
    end_ns, num_clamped = rows.ends()
    stream = integers([event.args.stream for event in events], as_stream)
    stream[stream == _NO_STREAM] = ABSENT
    device = integers([event.args.device for event in events], as_int)
    _fill(stream, lambda row: as_stream(events[row].tid))
    _fill(device, lambda row: as_int(events[row].pid))
    device[(device < 0) | (device > np.iinfo(np.int32).max)] = ABSENT
    columns: Columns = {
        "start_ns": rows.start_ns,
        "end_ns": end_ns,
        "name": rows.name,
        "kind": rows.kind,
        "stream": stream,
        "device": device.astype(np.int32),
        "correlation": integers([event.args.correlation for event in events], as_int),
        "bytes": integers([event.args.bytes for event in events], as_int),
    }
    return columns, num_clamped


def host_columns(rows: Rows, symbols: SymbolTable) -> tuple[Columns, int]:
    """HOST columns of host rows, and how many durations were clamped."""
    events, threads = rows.events, symbols.threads
    end_ns, num_clamped = rows.ends()
    columns: Columns = {
        "start_ns": rows.start_ns,
        "end_ns": end_ns,
        "name": rows.name,
        "category": rows.category,
        "thread": coded([threads[event.pid, event.tid] for event in events]),
        "correlation": integers([event.args.correlation for event in events], as_int),
    }
    return columns, num_clamped


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


_NO_STREAM = 2**32 - 1


def _fill(column: Int64Array, value: Callable[[int], int]) -> None:
    for row in np.flatnonzero(column == ABSENT).tolist():
        column[row] = value(row)
