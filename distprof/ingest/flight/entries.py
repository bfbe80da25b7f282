"""Entries of a Flight Recorder dump as a table; a damaged entry does not affect the others."""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import prod
from typing import Any

import msgspec
import numpy as np

from distprof.ingest.communication import collective_kind
from distprof.run.records import FLIGHT, FlightState
from distprof.schema import ABSENT, Coded, Int64Array, Table

MAX_ENTRIES = 1_000_000
MAX_TEXT = 512
MAX_DIMS = 64
MAX_FRAMES = 64
LARGEST = 1 << 62
"""Numbers from here on are invalid."""

_MAX_ELEMENTS = 1 << 50
_STATES = {
    "scheduled": FlightState.SCHEDULED,
    "started": FlightState.STARTED,
    "completed": FlightState.COMPLETED,
}
_LIBRARY_CODE = re.compile(r"/(?:site|dist)-packages/|/lib/python\d|^<frozen")
BROKEN = (
    msgspec.MsgspecError,
    UnicodeDecodeError,
    RecursionError,
    ValueError,
    OverflowError,
    TypeError,
)


class EntriesError(ValueError):
    """The entries are not a list."""


class _Frame(msgspec.Struct, frozen=True):
    name: str = ""
    filename: str = ""
    line: int = 0


class _Entry(msgspec.Struct):
    """The fields used, in all versions of the format."""

    time_created_ns: int = ABSENT
    profiling_name: str = ""
    record_id: int = ABSENT
    id: int = ABSENT  # record_id in version 1
    pg_id: int = ABSENT
    process_group: tuple[str, ...] = ()
    collective_seq_id: int = ABSENT
    seq_id: int = ABSENT  # version 1, which counts collectives and messages together
    p2p_seq_id: int = ABSENT
    input_sizes: tuple[tuple[int, ...], ...] | None = None
    output_sizes: tuple[tuple[int, ...], ...] | None = None
    input_dtypes: tuple[str, ...] | str | None = None
    state: str = ""
    time_discovered_started_ns: int | None = None
    time_discovered_completed_ns: int | None = None
    retired: bool = False
    timeout_ms: int = ABSENT
    is_p2p: bool | None = None
    frames: tuple[_Frame, ...] = ()


_FIELDS: dict[str, Any] = {
    field.encode_name: field.default for field in msgspec.structs.fields(_Entry)
}
_NUMBERS = (
    "time_created_ns", "record_id", "id", "pg_id", "collective_seq_id", "seq_id", "p2p_seq_id",
    "timeout_ms", "time_discovered_started_ns", "time_discovered_completed_ns",
)  # fmt: skip
_KINDS: dict[str, set[type]] = {
    **{key: {int} for key in _NUMBERS},
    "time_discovered_started_ns": {int, type(None)},
    "time_discovered_completed_ns": {int, type(None)},
    "profiling_name": {str},
    "state": {str},
    "retired": {bool},
    "is_p2p": {bool, type(None)},
    "process_group": {tuple, list},
    "input_dtypes": {tuple, list, str, type(None)},
    "frames": {tuple, list},
}


def convert(value: Any, kind: Any) -> Any:
    """Convert a part of a dump, from a pickle or from raw JSON.

    Raises:
        msgspec.ValidationError: Or another of :data:`BROKEN`, if it is not of that kind.
    """
    if isinstance(value, msgspec.Raw):
        return msgspec.json.decode(value, type=kind, strict=False)
    return msgspec.convert(value, type=kind, strict=False)


def entries_table(value: Any, source: str, notes: list[str]) -> Table:
    """The entries as FLIGHT, converted at once or, if one is damaged, one by one.

    ``value`` is the content of a pickle, or raw JSON, None without entries; ``notes`` receives a
    note on skipped entries.

    Raises:
        EntriesError: If the entries are not a list.
    """
    if value is None:
        return Table.empty(FLIGHT)
    try:
        return _table(_columns(value))
    except BROKEN:
        pass
    found, lost = _each(value)
    good = [entry for entry in found[:MAX_ENTRIES] if _is_sane(entry)]
    lost += len(found) - len(good)
    if lost:
        notes.append(f"{lost:,} damaged entries of {source} were skipped.")
    return _table(_columns_of(good))


def _columns(value: Any) -> dict[str, list[Any]]:
    """Field to its values.

    Raises:
        TypeError: Or another of :data:`BROKEN`, if an entry is invalid.
    """
    if isinstance(value, msgspec.Raw):
        return _columns_of(
            msgspec.json.decode(value, type=list[_Entry], strict=False)[:MAX_ENTRIES]
        )
    if not (isinstance(value, list) and all(type(entry) is dict for entry in value)):
        raise TypeError("entries are not a list of dicts")
    entries: list[dict[str, Any]] = value[:MAX_ENTRIES]
    columns = {name: [e.get(name, default) for e in entries] for name, default in _FIELDS.items()}
    for name, kinds in _KINDS.items():
        if not set(map(type, columns[name])) <= kinds:
            raise TypeError(f"{name} has the wrong type")
    return columns


def _columns_of(entries: Sequence[_Entry]) -> dict[str, list[Any]]:
    return {name: [getattr(entry, name) for entry in entries] for name in _FIELDS}


def _each(value: Any) -> tuple[list[_Entry], int]:
    try:
        parts = convert(value, list[msgspec.Raw]) if isinstance(value, msgspec.Raw) else value
    except BROKEN as error:
        raise EntriesError("entries that are not a list") from error
    if not isinstance(parts, list | tuple):
        raise EntriesError("entries that are not a list")
    found, lost = [], 0
    for part in parts:
        try:
            found.append(convert(part, _Entry))
        except BROKEN:
            lost += 1
    return found, lost


def _is_sane(entry: _Entry) -> bool:
    numbers = [getattr(entry, name) or 0 for name in _NUMBERS]
    return min(numbers) > -LARGEST and max(numbers) < LARGEST


def _table(columns: dict[str, list[Any]]) -> Table:
    """Fields of entries as FLIGHT, in order of launch."""
    numbers = {name: _numbers(columns[name]) for name in _NUMBERS}
    texts = columns["profiling_name"]
    if max(map(len, texts), default=0) > MAX_TEXT:
        texts = [text[:MAX_TEXT] for text in texts]
    names = Coded.encode(texts)
    kinds = np.array([int(collective_kind(name)) for name in names.values] or [0], dtype=np.int8)
    is_message = ["send " in name or "recv " in name for name in names.values] or [False]
    recorded = columns["is_p2p"]
    guessed = np.array(is_message)[names.codes].tolist() if None in recorded else recorded
    shapes, inputs = _shapes(columns["input_sizes"])
    _, outputs = _shapes(columns["output_sizes"])
    states = [_STATES.get(state, FlightState.UNKNOWN) for state in columns["state"]]
    pairs = columns["process_group"]
    table = Table(
        FLIGHT,
        {
            "record": np.maximum(numbers["record_id"], numbers["id"]),
            "pg": numbers["pg_id"],
            "group": Coded.encode([_text(pair, 0) for pair in pairs]),
            "description": Coded.encode([_description(pair) for pair in pairs]),
            "seq": np.maximum(numbers["collective_seq_id"], numbers["seq_id"]),
            "p2p_seq": np.maximum(numbers["p2p_seq_id"], ABSENT),
            "name": names,
            "kind": kinds[names.codes],
            "is_p2p": np.array(
                [guess if is_p2p is None else is_p2p
                 for is_p2p, guess in zip(recorded, guessed, strict=True)], dtype=np.bool_),
            "shape": shapes,
            "in_dtype": _spelled(columns["input_dtypes"], _dtypes),
            "in_elements": inputs,
            "out_elements": outputs,
            "state": np.array(states, dtype=np.int8),
            "retired": np.array(columns["retired"], dtype=np.bool_),
            "created_ns": _times(numbers["time_created_ns"]),
            "started_ns": _times(numbers["time_discovered_started_ns"]),
            "completed_ns": _times(numbers["time_discovered_completed_ns"]),
            "timeout_ms": np.maximum(numbers["timeout_ms"], ABSENT),
            "frame": _spelled(columns["frames"], _frame),
        },
    )  # fmt: skip
    record = table["record"]
    by = record if len(record) and record.min() >= 0 else table["created_ns"]
    if len(by) < 2 or (np.diff(by) >= 0).all():
        return table
    return table.take(np.argsort(by, kind="stable"))


def _numbers(values: Sequence[int | None]) -> Int64Array:
    """Integers, ABSENT for None.

    Raises:
        ValueError: If a number is out of range.
    """
    if None in values:
        values = [ABSENT if value is None else value for value in values]
    found = np.array(values, dtype=np.int64)
    if len(found) and not (found.min() > -LARGEST and found.max() < LARGEST):
        raise ValueError("a number is too large")
    return found


def _times(found: Int64Array) -> Int64Array:
    """Times, ABSENT for 0 and less, which some versions write for unknown times."""
    return np.where(found > 0, found, ABSENT)


def _spelled(values: Sequence[Any], text: Any) -> Coded:
    """A column of texts for values; each distinct value is converted once."""
    keys, distinct = _distinct(values)
    texts = {key: text(value) for key, value in distinct.items()}
    return Coded.encode([texts[key] for key in keys])


def _distinct(values: Sequence[Any]) -> tuple[list[Any], dict[Any, Any]]:
    """A key for each value, and the distinct values by key.

    Lists come from a pickle, in which equal lists are one object, so their identity is the key.
    """
    is_shared = any(type(value) is list for value in values)
    keys = [id(value) for value in values] if is_shared else list(values)
    return keys, dict(zip(keys, values, strict=True))


def _shapes(values: Sequence[Any]) -> tuple[Coded, Int64Array]:
    """Sizes for display, and the number of elements."""
    keys, distinct = _distinct(values)
    texts = {key: _sizes(value) for key, value in distinct.items()}
    counts = {key: _elements(value) for key, value in distinct.items()}
    shown = Coded.encode([texts[key] for key in keys])
    return shown, np.array([counts[key] for key in keys], dtype=np.int64)


def _sizes(shapes: Sequence[Sequence[int]] | None) -> str:
    text = ", ".join("×".join(map(str, shape[:16])) or "scalar" for shape in (shapes or ())[:16])
    return text[:MAX_TEXT]


def _elements(shapes: Sequence[Sequence[int]] | None) -> int:
    if not shapes or any(len(shape) > MAX_DIMS or min(shape, default=0) < 0 for shape in shapes):
        return ABSENT
    total = sum(prod(shape) for shape in shapes)
    return total if total < _MAX_ELEMENTS else ABSENT


def _text(pair: Sequence[str], index: int) -> str:
    return pair[index][:MAX_TEXT] if index < len(pair) else ""


def _description(pair: Sequence[str]) -> str:
    text = _text(pair, 1)
    return "" if text == "undefined" else text


def _dtypes(dtypes: Sequence[str] | str | None) -> str:
    if dtypes is None or isinstance(dtypes, str):
        return (dtypes or "")[:MAX_TEXT]
    return ", ".join(dict.fromkeys(dtypes[:16]))[:MAX_TEXT]


def _frame(frames: Sequence[Any]) -> str:
    """The innermost call in the user's code, else the innermost call."""
    calls = msgspec.convert(frames[:MAX_FRAMES], tuple[_Frame, ...], strict=False)
    own = next((f for f in calls if not _LIBRARY_CODE.search(f.filename)), None)
    frame = own or (calls[0] if calls else None)
    if frame is None:
        return ""
    return f"{frame.name} ({frame.filename.rpartition('/')[2]}:{frame.line})"[:MAX_TEXT]
