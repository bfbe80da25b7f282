"""A chunk of bytes to columns: the one function that a compiled kernel could replace.

The usual chunk is decoded by one call into typed structs, and columns are filled from those. A
chunk with unusual types goes event by event (:mod:`.permissive`); a chunk that is no JSON at all is
cut up by :mod:`.salvage`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from distprof.ingest.kineto.boundary import Boundary
from distprof.ingest.kineto.comm import CommRow, Wanted, find_arguments
from distprof.ingest.kineto.events import (
    DECODE_RAW,
    NO_COLLECTIVE,
    Arguments,
    Complete,
    ExactComplete,
    Metadata,
    UsualComplete,
    decode_array,
)
from distprof.ingest.kineto.permissive import decode_permissively
from distprof.ingest.kineto.rows import (
    Columns,
    Event,
    Rows,
    device_columns,
    floats,
    host_columns,
)
from distprof.ingest.kineto.symbols import SymbolTable
from distprof.ingest.kineto.times import INVALID_NS, micros_to_ns, needs_text, texts_to_ns
from distprof.schema import ABSENT, Int64Array

__all__ = ["DecodeState", "EventColumns", "decode_events", "decode_texts"]


@dataclass(slots=True, kw_only=True)
class DecodeState:
    """What the decoder learned so far of one file.

    Args:
        symbols: Dictionaries, which grow.
        boundary: What stands between two events of this file; a hint.
        device_only: Whether only device rows and step marks are wanted.
        exact: Whether times must be read as text.
        usual: Whether all categories so far were usual ones.
        permissive: Whether the last chunk needed the permissive decoder.
    """

    symbols: SymbolTable = field(default_factory=SymbolTable)
    boundary: Boundary = field(default_factory=lambda: Boundary(b"},{"))
    device_only: bool = False
    exact: bool = False
    usual: bool = True
    permissive: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class EventColumns:
    """Rows of one chunk. Times are int64 ns as the file counts them, the base not added.

    Args:
        device: The columns of ACTIVITY.
        host: The columns of HOST.
        kept: Host rows that analyses need, as a mask.
        comm: Communication rows.
        metadata: Process and thread names.
        num_events: Elements of the array.
        num_repaired: Events mended.
        num_quarantined: Events given up.
        num_clamped: Events kept with duration 0.
        first_fault: Text of the first event that was mended or given up.
    """

    device: Columns
    host: Columns
    kept: NDArray[np.bool_]
    comm: Sequence[CommRow]
    metadata: Sequence[Metadata]
    num_events: int
    num_repaired: int = 0
    num_quarantined: int = 0
    num_clamped: int = 0
    first_fault: bytes | None = None


FindArguments = Callable[[Rows], Sequence[Mapping[str, Any]]]


def decode_events(data: bytes | bytearray, stop: int, state: DecodeState) -> EventColumns:
    """Columns of the events in ``data[:stop]``, a JSON array.

    Raises:
        msgspec.DecodeError: If it is no JSON array.
        RecursionError: If it is nested absurdly deep.
    """
    if not state.permissive:
        try:
            return _decode_typed(data, stop, state)
        except (msgspec.ValidationError, UnicodeDecodeError):
            pass  # unusual types, or a name that is not UTF-8: event by event
    texts = DECODE_RAW(memoryview(data)[:stop])
    return decode_texts([bytes(text) for text in texts], state)


def decode_texts(texts: Sequence[bytes], state: DecodeState) -> EventColumns:
    """Columns of events given as separate texts, each of which may be damaged."""
    events = decode_permissively(texts)
    state.permissive = events.num_unusual > 0
    start_ns = np.array(events.start_ns, np.int64)
    rows = Rows.of(events.rows, start_ns, state.symbols, device_only=state.device_only)
    columns = _columns(
        rows, state, lambda chosen: [events.arguments[row] for row in chosen.index.tolist()]
    )
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
        events: Sequence[Event] = complete
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
            state.usual = False  # a category of its own, or an unusual type: then so is this next
    decoded, metadata = decode_array(view, Complete)
    return decoded, metadata, Complete


def _reread(
    data: bytes | bytearray, stop: int, rows: Rows, boundary: Boundary
) -> Sequence[Mapping[str, Any]]:
    base = _address(memoryview(data)[:stop])
    wanted = [
        Wanted(event.name, _as_float(event.ts), _place(event.args, base)) for event in rows.events
    ]
    return find_arguments(data, stop, wanted, boundary)


def _place(arguments: Arguments, base: int) -> int:
    """Where in the text the name of the collective stands, ABSENT without one.

    The decoder does not copy raw values: they are views of the text itself.
    """
    return _address(arguments.collective) - base if arguments.names_collective else ABSENT


def _address(text: memoryview | msgspec.Raw) -> int:
    address: int = np.frombuffer(text, np.uint8).__array_interface__["data"][0]
    return address


def _as_float(ts: float | msgspec.Raw) -> float:
    return ts if isinstance(ts, float) else float(bytes(ts))


def _columns(rows: Rows, state: DecodeState, arguments: FindArguments) -> EventColumns:
    symbols = state.symbols
    on_device = rows.kind >= 0
    device_rows, host_rows = rows.where(on_device), rows.where(~on_device)
    device = device_columns(device_rows)
    operators = symbols.is_operator.of(host_rows.category)
    stream = np.full(len(rows), ABSENT)
    stream[on_device] = device["stream"]
    return EventColumns(
        device=device,
        host=host_columns(host_rows, symbols),
        kept=~operators | symbols.is_kept.of(host_rows.name),
        comm=_comm_rows(rows, _is_comm(rows, device_rows, symbols), stream, symbols, arguments),
        metadata=(),
        num_events=len(rows),
        num_clamped=rows.num_clamped,
    )


def _is_comm(rows: Rows, device_rows: Rows, symbols: SymbolTable) -> NDArray[np.bool_]:
    """Device rows with collective arguments, host rows that communication is known by."""
    on_device = rows.kind >= 0
    is_comm = symbols.is_comm.of(rows.name) & ~on_device
    is_comm[on_device] = [
        event.args.collective is not NO_COLLECTIVE and event.args.names_collective
        for event in device_rows.events
    ]
    return is_comm


def _comm_rows(
    rows: Rows,
    chosen: NDArray[np.bool_],
    stream: Int64Array,
    symbols: SymbolTable,
    arguments: FindArguments,
) -> list[CommRow]:
    if not chosen.any():
        return []
    picked = rows.where(chosen)
    threads = symbols.threads
    return [
        CommRow(*cells)
        for cells in zip(
            picked.start_ns.tolist(),
            picked.end_ns.tolist(),
            picked.name.tolist(),
            picked.category.tolist(),
            [threads[event.pid, event.tid] for event in picked.events],
            stream[chosen].tolist(),
            picked.correlation.tolist(),
            arguments(picked),
            strict=True,
        )
    ]
