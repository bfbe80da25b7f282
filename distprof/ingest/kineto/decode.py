"""Decode a chunk of bytes into columns.

The compiled kernel reads the usual chunk (:mod:`.native`). A chunk that it declines is decoded into
typed structs by one call, one with unusual types event by event (:mod:`.damage`), and one that is
not JSON at all is cut up by :mod:`.reader`.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress
from math import prod
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from distprof.ingest.kineto.comm import (
    NO_ROWS,
    CommColumns,
    Wanted,
    columns_of_arguments,
    find_arguments,
)
from distprof.ingest.kineto.damage import NO_STREAM, as_int, as_stream, decode_permissively
from distprof.ingest.kineto.events import (
    DECODE_RAW,
    INVALID_NS,
    LONGEST_NS,
    MODULE_PREFIX,
    NO_COLLECTIVE,
    Complete,
    ExactComplete,
    Metadata,
    UsualComplete,
    decode_array,
    inputs_of,
    micros_to_ns,
    needs_text,
    texts_to_ns,
)
from distprof.ingest.kineto.framing import Boundary
from distprof.ingest.kineto.native import EventColumns, NativeReader, NativeResult
from distprof.ingest.kineto.parsed import DROPPED, HOST, Columns, Symbols, SymbolTable
from distprof.schema import ABSENT, Int64Array


class Rows(msgspec.Struct, frozen=True):
    """Complete events and the columns that all of them have."""

    events: Sequence[Complete]  # The decoded structs.
    index: NDArray[np.intp]  # Position of each among the complete events of the chunk.
    start_ns: Int64Array  # Start, int64, without the file's base.
    end_ns: Int64Array  # End, int64.
    category: NDArray[np.int32]  # int32 code.
    kind: NDArray[np.int8]  # int8: an ActivityKind or HOST.
    name: NDArray[np.int32]  # int32 code.
    correlation: Int64Array  # int64.
    num_clamped: int = 0  # Rows whose impossible duration became 0.

    def __len__(self) -> int:
        return len(self.events)

    @staticmethod
    def of(
        events: Sequence[Complete],
        start_ns: Int64Array,
        symbols: SymbolTable,
        *,
        device_only: bool = False,
    ) -> Rows:
        """The rows to keep: those with a readable start, except Python frames of functions.

        ``device_only`` keeps device rows and step marks only.
        """
        codes, names = symbols.categories, symbols.names
        category = coded([codes[event.cat] for event in events])
        kind = symbols.kinds.of(category)
        for row in np.flatnonzero(kind == DROPPED).tolist():
            if events[row].name.startswith(MODULE_PREFIX):
                kind[row] = HOST
        keep = (start_ns != INVALID_NS) & (kind != DROPPED)
        kept = np.flatnonzero(keep)
        events = _selected(events, keep)
        name = coded([names[event.name] for event in events])
        if device_only:
            wanted = (kind[kept] >= 0) | symbols.is_step.of(name)
            events, kept, name = _selected(events, wanted), kept[wanted], name[wanted]
        if len(kept) < len(start_ns):
            start_ns, category, kind = start_ns[kept], category[kept], kind[kept]
        duration = micros_to_ns(floats([event.dur for event in events]))
        absurd = (duration < 0) | (duration > LONGEST_NS)
        num_clamped = int(np.count_nonzero(absurd))
        if num_clamped:
            duration[absurd] = 0
        correlation = integers([event.args.correlation for event in events], as_int)
        end_ns = start_ns + duration
        return Rows(events, kept, start_ns, end_ns, category, kind, name, correlation, num_clamped)

    def where(self, keep: NDArray[np.bool_]) -> Rows:
        """The rows that ``keep`` selects."""
        kept = np.flatnonzero(keep)  # several arrays are gathered faster by index than by mask
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
    """ACTIVITY columns; ``pid`` and ``tid`` replace missing arguments for device and stream."""
    events = rows.events
    stream = integers([event.args.stream for event in events], as_stream)
    stream[stream == NO_STREAM] = ABSENT
    device = integers([event.args.device for event in events], as_int)
    for row in np.flatnonzero(stream == ABSENT).tolist():
        stream[row] = as_stream(events[row].tid)
    for row in np.flatnonzero(device == ABSENT).tolist():
        device[row] = as_int(events[row].pid)
    return {
        "start_ns": rows.start_ns,
        "end_ns": rows.end_ns,
        "name": rows.name,
        "kind": rows.kind,
        "stream": stream,
        "device": _fitting(device),
        "correlation": rows.correlation,
        "bytes": integers([event.args.bytes for event in events], as_int),
        "blocks": coded([_BLOCKS[event.args.grid] for event in events]),
    }


class _Blocks(dict[tuple[int, ...] | None, int]):
    """Cache of thread blocks per grid; a job launches few different grids."""

    def __missing__(self, grid: tuple[int, ...] | None) -> int:
        if not grid or len(grid) > _DIMENSIONS or min(grid) < 1:
            return ABSENT
        if len(self) >= _MOST_GRIDS:
            self.clear()
        blocks = prod(grid)
        self[grid] = blocks = blocks if blocks <= _MOST_BLOCKS else ABSENT
        return blocks


_DIMENSIONS = 3
_MOST_GRIDS = 1 << 16  # cached, so a hostile trace cannot fill the memory
_MOST_BLOCKS = np.iinfo(np.int32).max
_BLOCKS = _Blocks()


def host_columns(rows: Rows, symbols: SymbolTable) -> Columns:
    """HOST columns of host rows."""
    return {
        "start_ns": rows.start_ns,
        "end_ns": rows.end_ns,
        "name": rows.name,
        "category": rows.category,
        "thread": _thread_codes(rows.events, symbols.threads),
        "correlation": rows.correlation,
        "sequence": _fitting(integers([event.args.sequence for event in rows.events], as_int)),
        "inputs": _inputs(rows, symbols),
    }


def _inputs(rows: Rows, symbols: SymbolTable) -> NDArray[np.int32]:
    """Codes of the inputs of operators that may launch kernels, and of the empty text."""
    if not len(rows):
        return np.empty(0, np.int32)
    found = np.full(len(rows), symbols.inputs[b""], np.int32)
    needed = symbols.has_inputs.of(rows.name)
    found[needed] = [
        symbols.inputs[inputs_of(event.args)] for event in _selected(rows.events, needed)
    ]
    return found


def _fitting(numbers: Int64Array) -> NDArray[np.int32]:
    """The numbers as int32; ABSENT for those that do not fit, and for negative ones."""
    fits = (numbers >= 0) & (numbers <= np.iinfo(np.int32).max)
    return np.where(fits, numbers, ABSENT).astype(np.int32)


def _thread_codes(events: Sequence[Complete], codes: Symbols) -> NDArray[np.int32]:
    """Code of each event's thread; profilers write thread by thread, so it rarely changes."""
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
    run_codes = [codes[key] for key in zip(pid[first].tolist(), tid[first].tolist(), strict=True)]
    return np.repeat(np.array(run_codes, np.int32), np.diff(first, append=len(pid)))


def _selected(events: Sequence[Complete], keep: NDArray[np.bool_]) -> Sequence[Complete]:
    return events if keep.all() else list(compress(events, keep.tobytes()))


def floats(values: list[float]) -> NDArray[np.float64]:
    """float64 array; :class:`array.array` is filled faster than numpy fills one."""
    return np.frombuffer(array("d", values), np.float64)


def coded(codes: list[int]) -> NDArray[np.int32]:
    """int32 array of codes."""
    return np.frombuffer(array("i", codes), np.int32)


def integers(values: list[Any], convert: Callable[[Any], int]) -> Int64Array:
    """int64 array; ``convert`` is called only if a value is not an int64."""
    try:
        return np.array(array("q", values), np.int64)
    except (TypeError, OverflowError):
        return np.array([convert(value) for value in values], np.int64)


# Chunks -------------------------------------------------------------------------------------------


@dataclass(kw_only=True, slots=True)
class DecodeState:
    """State of the decoder while it reads one file."""

    symbols: SymbolTable = field(default_factory=SymbolTable)  # Dictionaries, which grow.
    # Text between two events of this file; a hint.
    boundary: Boundary = field(default_factory=lambda: Boundary(b"},{"))
    device_only: bool = False  # Whether only device rows and step marks are kept.
    exact: bool | None = None  # Whether times must be read as text; None before the first chunk.
    usual: bool = True  # Whether all categories so far were usual ones.
    permissive: bool = False  # Whether the last chunk needed the permissive decoder.
    native: NativeReader = field(init=False)  # The kernel's part of the state.

    def __post_init__(self) -> None:
        self.native = NativeReader(self.symbols)


FindArguments = Callable[[Rows], Sequence[Mapping[str, Any]]]


def decode_events(data: bytes | bytearray, stop: int, state: DecodeState) -> EventColumns:
    """Columns of the events in ``data[:stop]``, a JSON array; ``DecodeError`` if it is none."""
    found = find_events(data, stop, state)
    return decode_in_python(data, stop, state) if found is None else state.native.with_codes(found)


def decode_in_python(data: bytes | bytearray, stop: int, state: DecodeState) -> EventColumns:
    """:func:`decode_events` for a chunk that the kernel declined."""
    if not state.permissive:
        try:
            return _decode_typed(data, stop, state)
        except (msgspec.ValidationError, UnicodeDecodeError):
            pass  # unusual types, or a name that is not UTF-8: event by event
    texts = DECODE_RAW(memoryview(data)[:stop])
    return decode_texts([bytes(text) for text in texts], state)


def find_events(data: bytes | bytearray, stop: int, state: DecodeState) -> NativeResult | None:
    """The kernel's half of :func:`decode_events`; None, and no change, if Python must read."""
    if state.permissive:
        return None
    # Times since 1970 must be read as text. The kernel declines the first of them as numbers.
    for exact in (False, True) if state.exact is None else (state.exact,):
        found = state.native.find(data, stop, exact=exact, device_only=state.device_only)
        if found is not None:
            state.exact = exact
            return found
    return None


def decode_texts(texts: Sequence[bytes], state: DecodeState) -> EventColumns:
    """Columns of events given as separate texts, each of which may be damaged."""
    events = decode_permissively(texts)
    state.permissive = events.num_unusual > 0
    start_ns = np.array(events.start_ns, np.int64)
    rows = Rows.of(events.rows, start_ns, state.symbols, device_only=state.device_only)
    given = events.arguments
    columns = _columns(rows, state, lambda chosen: [given[row] for row in chosen.index.tolist()])
    return replace(
        columns,
        metadata=events.metadata,
        num_events=len(texts),
        num_repaired=events.num_repaired,
        num_quarantined=events.num_quarantined,
        first_fault=events.first_fault,
    )


def _decode_typed(data: bytes | bytearray, stop: int, state: DecodeState) -> EventColumns:
    view = memoryview(data)[:stop]
    if not state.exact:
        decoded, metadata, kind = _decode_inexact(view, state)
        complete = [event for event in decoded if type(event) is kind]
        events: Sequence[Complete] = complete
        micros = floats([event.ts for event in complete])
        start_ns = micros_to_ns(micros)
        state.exact = needs_text(micros)
    if state.exact:
        decoded, metadata = decode_array(view, ExactComplete)
        exact = [event for event in decoded if type(event) is ExactComplete]
        events, start_ns = exact, texts_to_ns([event.ts for event in exact])
    rows = Rows.of(events, start_ns, state.symbols, device_only=state.device_only)
    columns = _columns(rows, state, lambda chosen: _reread(data, stop, chosen, state.boundary))
    return replace(
        columns,
        metadata=metadata,
        num_events=len(decoded),
        num_quarantined=int(np.count_nonzero(start_ns == INVALID_NS)),
    )


def _decode_inexact(
    view: memoryview, state: DecodeState
) -> tuple[list[Struct], list[Metadata], type[Complete]]:
    """The events of an array, its metadata events, and the type of complete ones."""
    if state.usual:
        try:
            return *decode_array(view, UsualComplete), UsualComplete
        except msgspec.ValidationError:
            state.usual = False  # a custom category; an unusual type raises again below
    decoded, metadata = decode_array(view, Complete)
    return decoded, metadata, Complete


def _reread(
    data: bytes | bytearray, stop: int, rows: Rows, boundary: Boundary
) -> Sequence[Mapping[str, Any]]:
    base = _address(memoryview(data)[:stop])
    wanted = []
    for event in rows.events:
        ts = event.ts if isinstance(event.ts, float) else float(bytes(event.ts))
        # the decoder does not copy raw values: they are views of the text itself
        named = event.args.names_collective
        place = _address(event.args.collective) - base if named else ABSENT
        wanted.append(Wanted(event.name, ts, place))
    return find_arguments(data, stop, wanted, boundary)


def _address(text: memoryview | msgspec.Raw) -> int:
    address: int = np.frombuffer(text, np.uint8).__array_interface__["data"][0]
    return address


def _columns(rows: Rows, state: DecodeState, arguments: FindArguments) -> EventColumns:
    symbols = state.symbols
    on_device = rows.kind >= 0
    device_rows, host_rows = rows.where(on_device), rows.where(~on_device)
    device = device_columns(device_rows)
    stream = np.full(len(rows), ABSENT)
    stream[on_device] = device["stream"]
    # device rows with collective arguments, and host rows with names of communication
    is_comm = symbols.is_comm.of(rows.name) & ~on_device
    is_comm[on_device] = [
        event.args.collective is not NO_COLLECTIVE and event.args.names_collective
        for event in device_rows.events
    ]
    host = host_columns(host_rows, symbols)
    return EventColumns(
        device=device,
        host=host,
        kept=symbols.needed(host),
        comm=_comm_rows(rows, is_comm, stream, symbols, arguments),
        metadata=(),
        num_events=len(rows),
        num_clamped=rows.num_clamped,
    )


def _comm_rows(
    rows: Rows,
    chosen: NDArray[np.bool_],
    stream: Int64Array,
    symbols: SymbolTable,
    arguments: FindArguments,
) -> CommColumns:
    if not chosen.any():
        return NO_ROWS
    picked = rows.where(chosen)
    integers, codes = columns_of_arguments(arguments(picked), symbols)
    integers |= {"start_ns": picked.start_ns, "end_ns": picked.end_ns}
    integers |= {"stream": stream[chosen], "correlation": picked.correlation}
    threads = coded([symbols.threads[event.pid, event.tid] for event in picked.events])
    codes |= {"name": picked.name, "category": picked.category, "thread": threads}
    return CommColumns(integers, codes)
