"""Arguments of communication events, read in a second pass over the few events that have them."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from distprof.ingest.kineto.damage import as_int, as_text
from distprof.ingest.kineto.events import DECODE_ANY, DECODE_RAW
from distprof.ingest.kineto.framing import Boundary
from distprof.ingest.kineto.parsed import COMM_ARGS, SymbolTable, compact
from distprof.schema import ABSENT, Coded, Table

COLLECTIVE_KEY = b'"Collective name"'
_NAME_KEY = b'"name": '
_SAMPLE = 1 << 16
_NEAR = 1 << 14

INTEGER_KEYS = {
    "external_id": ("External id", "external id"),
    "in_nelems": ("In msg nelems",),
    "out_nelems": ("Out msg nelems",),
    "group_size": ("Group size",),
    "seq": ("Seq",),
    "src_rank": ("Src Rank",),
    "dst_rank": ("Dst Rank",),
}
"""Integer columns of COMM_ARGS, and the argument keys to try for each, in order."""

TEXT_KEYS = {
    "collective": ("Collective name",),
    "dtype": ("dtype",),
    "group": ("Process Group Name",),
    "group_desc": ("Process Group Description",),
    "group_ranks": ("Process Group Ranks",),
    "comms_id": ("Comms Id",),
    "in_splits": ("In split size",),
    "out_splits": ("Out split size",),
    "input_dims": ("Input Dims", "Input dims"),
    "input_types": ("Input type",),
    "concrete_inputs": ("Concrete Inputs",),
}
"""Text columns and their argument keys; other values become JSON."""


class Wanted(NamedTuple):
    """A row whose arguments must be found again in the text."""

    name: str
    ts: float
    place: int  # Of a byte inside its event; ABSENT without the arguments of a collective.


class CommColumns(NamedTuple):
    """COMM_ARGS rows of a chunk, as columns."""

    integers: Mapping[str, NDArray[np.int64]]  # int64 columns.
    # int32 codes of names, categories, threads and texts of arguments.
    codes: Mapping[str, NDArray[np.int32]]


NO_ROWS = CommColumns(
    {
        name: np.empty(0, np.int64)
        for name in ("start_ns", "end_ns", "stream", "correlation", *INTEGER_KEYS)
    },
    {name: np.empty(0, np.int32) for name in ("name", "category", "thread", *TEXT_KEYS)},
)
_CHUNKS_AT_ONCE = 64


def columns_of_arguments(
    rows: Sequence[Mapping[str, Any]], symbols: SymbolTable
) -> tuple[dict[str, NDArray[np.int64]], dict[str, NDArray[np.int32]]]:
    """The columns that the arguments of events hold, as in :class:`CommColumns`."""
    integers = {
        name: np.array([ABSENT if v is None else as_int(v) for v in _values(rows, keys)], np.int64)
        for name, keys in INTEGER_KEYS.items()
    }
    codes = {}
    for name, keys in TEXT_KEYS.items():
        known = symbols.arguments[name]
        codes[name] = np.array([known[as_text(v)] for v in _values(rows, keys)], np.int32)
    return integers, codes


class CommRows:
    """Collects COMM_ARGS rows as columns."""

    def __init__(self, symbols: SymbolTable) -> None:
        self._symbols = symbols
        self._integers = {name: array("q") for name in NO_ROWS.integers}
        self._codes = {name: array("i") for name in NO_ROWS.codes}
        self._waiting: list[CommColumns] = []

    def extend(self, rows: CommColumns) -> None:
        """Add rows."""
        self._waiting.append(rows)
        if len(self._waiting) >= _CHUNKS_AT_ONCE:
            self._take_waiting()

    def _take_waiting(self) -> None:
        """Add the columns of many chunks at once, because most chunks have few rows."""
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        for name, integers in self._integers.items():
            integers.frombytes(np.concatenate([c.integers[name] for c in waiting]).tobytes())
        for name, codes in self._codes.items():
            codes.frombytes(np.concatenate([c.codes[name] for c in waiting]).tobytes())

    def to_table(self, base_ns: int) -> Table:
        """The rows as a COMM_ARGS table, ``base_ns`` added to the times."""
        self._take_waiting()
        integers = {name: np.array(values, np.int64) for name, values in self._integers.items()}
        integers["start_ns"] += base_ns
        integers["end_ns"] += base_ns
        columns: dict[str, NDArray[Any] | Coded] = {**integers}
        texts = {
            "name": self._symbols.names,
            "category": self._symbols.categories,
            "thread": self._symbols.threads,
            **{name: self._symbols.arguments[name] for name in TEXT_KEYS},
        }
        for name, codes in self._codes.items():
            columns[name] = compact(np.array(codes, np.int32), texts[name].texts)
        return Table(COMM_ARGS, columns)


def find_arguments(
    data: bytes | bytearray, stop: int, wanted: Sequence[Wanted], boundary: Boundary
) -> list[Mapping[str, Any]]:
    """The arguments of the wanted rows, in text order; empty for an event that was not found again.

    ``data[:stop]`` is a valid JSON array of events, and ``boundary`` the text between two of them,
    a hint only.
    """
    found = list(_search(data, stop, wanted, boundary))
    if len(found) == len(wanted):
        return found
    # one event after another, in any layout
    found = []
    remaining = iter([bytes(event) for event in DECODE_RAW(memoryview(data)[:stop])])
    for row in wanted:
        needle = _needle(row)
        candidates = (_arguments_if(row, event) for event in remaining if needle in event)
        found.append(next((match for match in candidates if match is not None), {}))
    return found


def _search(
    data: bytes | bytearray, stop: int, wanted: Sequence[Wanted], boundary: Boundary
) -> Iterator[Mapping[str, Any]]:
    """Yield arguments from one forward pass; stop early if the boundary hint misleads."""
    position = 0
    key = _NAME_KEY if data.find(_NAME_KEY, 0, _SAMPLE) >= 0 else b""
    limit = stop
    limits = []  # for each row, the known place of this or the next such row
    for row in reversed(wanted):
        limit = row.place if row.place != ABSENT else limit
        limits.append(limit)
    for row, limit in zip(wanted, reversed(limits), strict=True):
        if row.place != ABSENT:
            found = _event_at(data, row.place, stop, row, boundary)
        else:
            found = _near_first(data, position, limit, stop, row, key, boundary)
        if found is None:
            return
        arguments, position = found
        yield arguments


def _event_at(
    data: bytes | bytearray, place: int, stop: int, row: Wanted, boundary: Boundary
) -> tuple[Mapping[str, Any], int] | None:
    """Arguments and end of the event around ``place``, None if it is not that of ``row``."""
    start, end = boundary.event_around(data, place, stop)
    arguments = _arguments_if(row, data[start:end])
    return None if arguments is None else (arguments, end)


def _near_first(
    data: bytes | bytearray,
    position: int,
    limit: int,
    stop: int,
    row: Wanted,
    key: bytes,
    boundary: Boundary,
) -> tuple[Mapping[str, Any], int] | None:
    """Arguments and end of an event known by name only, between ``position`` and ``limit``.

    The host events of a collective are right after the last event found or right before the next.
    Searching there first avoids reading everything in between.
    """
    needle = _needle(row, key)
    ahead, behind = min(position + _NEAR, limit), max(limit - _NEAR, position)
    for low, high in ((position, ahead), (behind, limit), (position, limit)):
        hit = data.find(needle, low, high)
        while hit >= 0:
            found = _event_at(data, hit, stop, row, boundary)
            if found is not None:
                return found
            hit = data.find(needle, hit + len(needle), high)
    return None


def _needle(row: Wanted, key: bytes = b"") -> bytes:
    """The text to search for; with the key before the name it is longer, so found faster."""
    if row.place != ABSENT:
        return COLLECTIVE_KEY
    plain = row.name.encode("ascii", "ignore")
    for stop, char in enumerate(plain):
        if char in b'"\\/' or char < 32:
            plain = plain[:stop]
            break
    is_prefix = row.name.startswith(plain.decode())
    return key + b'"' + (plain[:24] if is_prefix else b"")


def _arguments_if(row: Wanted, text: bytes | bytearray) -> Mapping[str, Any] | None:
    """The arguments in ``text`` if it is the event of ``row``."""
    try:
        event = DECODE_ANY(text)
        if event["ph"] != "X" or event["name"] != row.name or float(event["ts"]) != row.ts:
            return None
    except (ValueError, RecursionError, LookupError, TypeError):  # not JSON, or no event
        return None
    arguments = event.get("args")
    return arguments if isinstance(arguments, dict) else {}


def _values(rows: Sequence[Mapping[str, Any]], keys: tuple[str, ...]) -> list[Any]:
    """The value of each row under the first of ``keys`` that its arguments have, else None."""
    key, *others = keys
    values = [arguments.get(key) for arguments in rows]
    for other in others:
        values = [
            arguments.get(other) if value is None and key not in arguments else value
            for value, arguments in zip(values, rows, strict=True)
        ]
    return values
